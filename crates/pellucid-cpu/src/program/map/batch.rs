//! One program over several sets of dense operands: a few checks a set, and threads that share them all.

use crate::{operand, program};
use pellucid_ir::backend::DenseMap;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::Params;
use pellucid_ir::{Error, Result};

/// Runs the program on every set. All operands are looked at before the first is written; none of a set may be
/// written by another one.
pub(crate) fn maps(program: &Program, params: &Params, maps: &[DenseMap<'_>]) -> Result<()> {
    let (inputs, outputs) = (program.inputs.len(), program.outputs.len());
    let fits =
        |m: &DenseMap<'_>| (m.inputs.len(), m.outputs.len()) == (inputs, outputs) && m.outputs.iter().all(|o| !o.once);
    if program.is_row() || outputs == 0 || !maps.iter().all(fits) {
        return Err(Error::invalid(program.name, "not maps of so many inputs and outputs"));
    }
    let mut places = Vec::with_capacity(maps.len() * (inputs + outputs));
    for map in maps {
        for (input, load) in map.inputs.iter().zip(&program.inputs) {
            let at = operand::dense_input(program.name, input, map.size, load.storage.size())?.as_ptr();
            places.push(program::Dense { at, once: input.once });
        }
        for (output, store) in map.outputs.iter().zip(&program.outputs) {
            let at = operand::dense_output(program.name, output, map.size, store.storage.size())?.as_ptr();
            places.push(program::Dense::full(at));
        }
    }
    let sizes: Vec<usize> = maps.iter().map(|m| m.size).collect();
    // SAFETY: all operands lie in their buffers and are of the program's dtypes; the caller passes no output that
    // overlaps an input other than exactly, and no set that writes what another one touches.
    unsafe { program::several(program, params, &sizes, &places) }
}

#[cfg(test)]
mod tests {
    use crate::{Cpu, with_threads};
    use pellucid_ir::backend::{Backend, Dense, DenseMap, Storage};
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

    fn dense(storage: &Storage, offset: usize, once: bool) -> Dense<'_> {
        Dense { storage, offset, once }
    }

    #[test]
    fn every_set_is_a_map_with_any_number_of_threads() {
        let program = formula!(|p, g, k| (p - k * g, p + g)).uniform_program(DType::F32).unwrap().clone();
        // Empty, small, and so large that one set is worth several threads.
        let sizes = [3, 0, 1, 70_000, 17];
        let numbers = |n: usize, by: f32| (0..n).map(|i| i as f32 * by).collect::<Vec<f32>>();
        for threads in [1, 3] {
            let sets = sizes.map(|n| [filled(&numbers(n, 0.5)), filled(&numbers(n, 0.25)), filled(&vec![0.0; n])]);
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
                assert_eq!(p, vec![0.0; n], "{n}: p − 2·p/2");
                assert_eq!(sum, numbers(n, 0.75), "{n}");
            }
        }
    }

    #[test]
    fn a_set_that_reaches_out_of_its_buffer_leaves_all_as_they_are() {
        let program = formula!(|p, g| p + g).uniform_program(DType::F32).unwrap().clone();
        let (p, q) = (filled(&[1.0, 2.0]), filled(&[3.0]));
        let [good, short] = [&p, &q].map(|s| ([dense(s, 0, false), dense(s, 0, false)], [dense(s, 0, false)]));
        let set = |(inputs, outputs), size| DenseMap { size, inputs, outputs };
        let maps = [set((&good.0[..], &good.1[..]), 2), set((&short.0[..], &short.1[..]), 2)];
        assert!(Cpu.maps_dense(&program, &Default::default(), &maps).is_err());
        let few = [set((&good.0[..1], &good.1[..]), 2)];
        assert!(Cpu.maps_dense(&program, &Default::default(), &few).is_err());
        assert_eq!(read(&p, 2), [1.0, 2.0]);
    }
}
