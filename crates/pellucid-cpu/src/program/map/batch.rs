//! Batched dense maps: one program over several sets of dense operands, with one check and one distribution to threads.

use crate::{operand, program};
use pellucid_ir::backend::DenseMap;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::Params;
use pellucid_ir::{Error, Result};

/// Runs the program on every set of operands.
///
/// All operands are checked before the first output is written. The outputs of one set must overlap no operand of
/// another.
///
/// # Errors
/// Returns an error if a set does not match the inputs and outputs of the program, if an operand is outside its buffer,
/// if an input was never written, if an output cannot be allocated, or if the program is not supported.
pub(crate) fn run_dense_maps(program: &Program, params: &Params, maps: &[DenseMap<'_>]) -> Result<()> {
    let (inputs, outputs) = (program.inputs.len(), program.outputs.len());
    let fits =
        |m: &DenseMap<'_>| (m.inputs.len(), m.outputs.len()) == (inputs, outputs) && m.outputs.iter().all(|o| !o.once);
    if program.is_row() || outputs == 0 || !maps.iter().all(fits) {
        let reason = format!(
            "every map must be elementwise, with {inputs} inputs and {outputs} outputs that are not single values"
        );
        return Err(Error::invalid(program.name, reason));
    }
    let mut operands = Vec::with_capacity(maps.len() * (inputs + outputs));
    for map in maps {
        for (input, load) in map.inputs.iter().zip(&program.inputs) {
            let address = operand::dense_input(program.name, input, map.size, load.storage.size())?.as_ptr();
            operands.push(program::DensePtr { address, once: input.once });
        }
        for (output, store) in map.outputs.iter().zip(&program.outputs) {
            let address = operand::dense_output(program.name, output, map.size, store.storage.size())?.as_ptr();
            operands.push(program::DensePtr::full(address));
        }
    }
    let sizes: Vec<usize> = maps.iter().map(|m| m.size).collect();
    // SAFETY: the contract of `dense_batch`. *Operands*: every operand was checked against its buffer, with the dtype
    // of the program. *Aliasing* and *Sets*: the contract of `Backend` requires that an output overlaps an input of its
    // set only if both have the same elements, and overlaps no operand of another set.
    unsafe { program::dense_batch(program, params, &sizes, &operands) }
}

#[cfg(test)]
mod tests {
    use crate::{Cpu, with_threads};
    use pellucid_ir::backend::{Backend, DenseMap, DenseView, Storage};
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
        let program = formula!(|p, g, k| (p - k * g, p + g)).uniform_program(DType::F32).unwrap().clone();
        // Empty, small, and large enough for one set to be split among threads.
        let sizes = [3, 0, 1, 70_000, 17];
        let multiples = |n: usize, by: f32| (0..n).map(|i| i as f32 * by).collect::<Vec<f32>>();
        for threads in [1, 3] {
            let sets = sizes.map(|n| [filled(&multiples(n, 0.5)), filled(&multiples(n, 0.25)), filled(&vec![0.0; n])]);
            let rates = filled(&[9.0, 2.0]);
            let operands = sets.each_ref().map(|[p, g, sum]| {
                let inputs = [dense(p, 0, false), dense(g, 0, false), dense(&rates, 1, true)];
                (inputs, [dense(p, 0, false), dense(sum, 0, false)])
            });
            let maps: Vec<DenseMap<'_>> = (operands.iter().zip(sizes))
                .map(|((inputs, outputs), size)| DenseMap { size, inputs, outputs })
                .collect();
            with_threads(threads, || Cpu.maps_dense(&program, &Default::default(), &maps).unwrap());
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
        let [good, short] = [&p, &q].map(|s| ([dense(s, 0, false), dense(s, 0, false)], [dense(s, 0, false)]));
        let set = |(inputs, outputs), size| DenseMap { size, inputs, outputs };
        let maps = [set((&good.0[..], &good.1[..]), 2), set((&short.0[..], &short.1[..]), 2)];
        assert!(Cpu.maps_dense(&program, &Default::default(), &maps).is_err());
        let too_few_inputs = [set((&good.0[..1], &good.1[..]), 2)];
        assert!(Cpu.maps_dense(&program, &Default::default(), &too_few_inputs).is_err());
        assert_eq!(read(&p, 2), [1.0, 2.0]);
    }
}
