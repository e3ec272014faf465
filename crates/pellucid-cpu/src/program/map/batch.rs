//! Batched dense maps: one program over several sets of dense operands, with one check and one distribution to threads.

use crate::{operand, program};
use pellucid_ir::backend::DenseView;
use pellucid_ir::borrow::BatchBorrowGuard;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::Params;
use pellucid_ir::{Error, Result};

/// Runs the program on every set of operands. Operands of set i have `sizes[i]` elements or are single values. The
/// outputs overwrite the targets, which are the first operands of a set.
///
/// All operands are checked before the first output is written.
///
/// # Errors
/// Returns an error if a set does not match the inputs and outputs of the program, if an operand is outside its buffer,
/// if an input was never written, or if the program is not supported.
pub(crate) fn run_dense_maps(
    program: &Program,
    params: &Params,
    sizes: &[usize],
    sets: &BatchBorrowGuard<'_, DenseView<'_>>,
) -> Result<()> {
    let (inputs, outputs, targets) = (program.inputs.len(), program.outputs.len(), sets.targets());
    let fits = |set: &[DenseView<'_>]| set.len() == inputs && set[..outputs].iter().all(|target| !target.once);
    let stores_inputs = program.inputs.iter().zip(&program.outputs).all(|(load, store)| load.storage == store.storage);
    let is_map = !program.is_row() && outputs > 0 && outputs <= inputs && stores_inputs;
    if !is_map || targets != outputs || sets.sets().len() != sizes.len() || !sets.sets().all(fits) {
        let reason = format!(
            "a batch of maps needs an elementwise program whose first {outputs} inputs have the dtypes of its \
             {outputs} outputs, one size per set, and {inputs} operands per set, of which the first {outputs} are \
             overwritten and must not be single values"
        );
        return Err(Error::invalid(program.name, reason));
    }
    let mut operands = Vec::with_capacity(sizes.len() * (inputs + outputs));
    for (set, &size) in sets.sets().zip(sizes) {
        let first = operands.len();
        for (input, load) in set.iter().zip(&program.inputs) {
            let address = operand::dense_input(program.name, input, size, load.storage.size())?.as_ptr();
            operands.push(program::DensePtr { address, once: input.once });
        }
        operands.extend_from_within(first..first + outputs);
    }
    // SAFETY: the contract of `dense_batch`. *Operands*: every operand was checked against its buffer, with the dtype
    // of the program, and the guard holds the borrow words. *Aliasing* and *Sets*: an output has the elements of the
    // target that it overwrites. The guard holds a target as its only operand in that storage, so the output overlaps
    // no other operand of any set.
    unsafe { program::dense_batch(program, params, sizes, &operands) }
}

#[cfg(test)]
mod tests {
    use crate::{Cpu, with_threads};
    use pellucid_ir::backend::{Backend, DenseView, Storage};
    use pellucid_ir::borrow::BatchBorrowGuard;
    use pellucid_ir::{DType, formula};
    use std::sync::Arc;

    fn filled(values: &[f32]) -> Arc<Storage> {
        let storage = Cpu.storage(values.len() * 4).unwrap();
        Cpu.upload(bytemuck::cast_slice(values), &storage).unwrap();
        storage
    }

    fn read(storage: &Storage, len: usize) -> Vec<f32> {
        let mut values = vec![0.0; len];
        Cpu.download(storage, 0, bytemuck::cast_slice_mut(&mut values)).unwrap();
        values
    }

    fn dense(storage: &Storage, offset: usize, once: bool) -> DenseView<'_> {
        DenseView { storage, offset, once }
    }

    #[test]
    fn every_set_is_mapped_for_all_thread_counts() {
        let program = formula!(|p, sum, g, k| (p - k * g, sum + p + g)).uniform_program(DType::F32).unwrap().clone();
        // The sets are empty, small, or so large that one set is split among threads.
        let sizes = [3, 0, 1, 70_000, 17];
        let multiples = |n: usize, by: f32| (0..n).map(|i| i as f32 * by).collect::<Vec<f32>>();
        for threads in [1, 3] {
            let sets = sizes.map(|n| [filled(&multiples(n, 0.5)), filled(&multiples(n, 0.25)), filled(&vec![0.0; n])]);
            let rates = filled(&[9.0, 2.0]);
            let operands: Vec<DenseView<'_>> = (sets.iter())
                .flat_map(|[p, g, sum]| {
                    [dense(p, 0, false), dense(sum, 0, false), dense(g, 0, false), dense(&rates, 1, true)]
                })
                .collect();
            with_threads(threads, || {
                let guard = BatchBorrowGuard::acquire(&operands, 4, 2).unwrap();
                Cpu.maps_dense(&program, &Default::default(), &sizes, &guard).unwrap();
            });
            for ([p, _, sum], n) in sets.iter().zip(sizes) {
                let (p, sum) = (read(p, n), read(sum, n));
                assert_eq!(p, vec![0.0; n], "{n} elements: p − 2·p/2");
                assert_eq!(sum, multiples(n, 0.75), "{n} elements");
            }
        }
    }

    #[test]
    fn a_set_outside_its_buffer_is_an_error_and_nothing_is_written() {
        let program = formula!(|p, g| p + g).uniform_program(DType::F32).unwrap().clone();
        let (p, q) = (filled(&[1.0, 2.0]), filled(&[3.0]));
        let g = filled(&[5.0, 6.0]);
        let [p_view, q_view, g_view] = [&p, &q, &g].map(|storage| dense(storage, 0, false));
        let run = |operands: &[DenseView<'_>], set, targets, sizes: &[usize]| {
            let guard = BatchBorrowGuard::acquire(operands, set, targets).unwrap();
            Cpu.maps_dense(&program, &Default::default(), sizes, &guard)
        };
        let sets = [p_view, g_view, q_view, g_view];
        assert!(run(&sets, 2, 1, &[2, 2]).is_err(), "a target with too few elements must be an error");
        assert!(run(&sets[..1], 1, 1, &[2]).is_err(), "a set without its second input must be an error");
        assert!(run(&sets[..2], 2, 1, &[]).is_err(), "a set without a size must be an error");
        assert!(run(&sets[..2], 2, 0, &[2]).is_err(), "an output without a target must be an error");
        assert!(BatchBorrowGuard::acquire(&[p_view, p_view], 2, 1).is_none());
        assert_eq!(read(&p, 2), [1.0, 2.0]);
    }
}
