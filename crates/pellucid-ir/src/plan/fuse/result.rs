//! Fusion with the program that a reduction or a matrix product applies to its result.

use super::{FusedArrays, FusionRejection, FusionSide, LaunchPair, map_of};
use crate::dtype::Compute;
use crate::formula::{Load, Program, Splice, SpliceOperand, Spliced, SplicedValue};
use crate::kernel::{Kernel, MatMul, Params, Reduce, ReduceOp};
use crate::plan::{Launch, SlotView};
use crate::shape::Layout;
use std::sync::Arc;

/// The program that is applied to the result of a reduction or a matrix product, during its extension by fusion. Array
/// 0 represents the result; the other arrays follow.
struct ResultProgram {
    splice: Splice,
    arrays: FusedArrays,
}

impl ResultProgram {
    fn new(result: &SlotView) -> ResultProgram {
        let mut arrays = FusedArrays::default();
        arrays.number(&SlotView { slot: usize::MAX, ..result.clone() });
        ResultProgram { splice: Splice::new(false), arrays }
    }

    /// Adds the program that the producer applies to its result and to `others`, and returns its values. If there is no
    /// program, the only value is the result itself.
    fn add_applied(
        &mut self,
        applied: Option<(&Arc<Program>, &Params)>,
        result: SplicedValue,
        others: &[SlotView],
    ) -> Result<Vec<SplicedValue>, FusionRejection> {
        let Some((program, params)) = applied else { return Ok(vec![result]) };
        let others = others.iter().map(|o| SpliceOperand::Array(self.arrays.number(o)));
        let inputs: Vec<SpliceOperand> = [SpliceOperand::Array(0)].into_iter().chain(others).collect();
        self.splice.append(program, params, &inputs).map_err(Some)
    }

    /// Adds the program of the consumer, and returns its values.
    fn add_consumer(
        &mut self,
        pair: &LaunchPair<'_>,
        produced: &[SplicedValue],
    ) -> Result<Vec<SplicedValue>, FusionRejection> {
        let (program, params) = map_of(pair.consumer.launch)?;
        let inputs = pair.sources(&pair.consumer.inputs, produced, &mut self.arrays)?;
        self.splice.append(&program, &params, &inputs).map_err(Some)
    }

    /// Returns the program that stores `values`, and the arrays that it reads, except the result of the reduction or
    /// product.
    fn finish(self, values: &[SplicedValue]) -> Result<(Spliced, Vec<SlotView>), FusionRejection> {
        let spliced = self.splice.finish("fused", values).map_err(Some)?;
        if spliced.arrays[0] != 0 {
            return Err(None);
        }
        if spliced.arrays[1..].contains(&0) {
            return Err(Some("the result is read in two dtypes"));
        }
        let others = self.arrays.select(&spliced).into_iter().skip(1).collect();
        Ok((spliced, others))
    }
}

impl LaunchPair<'_> {
    /// Fuses a map into the other inputs of the finishing program of a reduction.
    pub(super) fn fuse_into_finish(&self, reduce: &Reduce, finish: &Arc<Program>) -> Result<Launch, FusionRejection> {
        let LaunchPair { producer, consumer, .. } = self;
        map_of(producer.launch)?;
        let mut fused = ResultProgram::new(&consumer.outputs[0]);
        fused.splice.load_as(0, finish.inputs[0], finish.inputs[0].storage);
        let produced = self.splice_producer(&mut fused.splice, &mut fused.arrays)?;
        let (reduced, finishing) = consumer.inputs.split_at(reduce.program.inputs.len());
        let mut inputs = vec![SpliceOperand::Array(0)];
        inputs.extend(self.sources(finishing, &produced, &mut fused.arrays)?);
        let read = fused.splice.append(finish, &reduce.finish_params, &inputs).map_err(Some)?;
        let (outputs, values) = self.outputs(&produced, read);
        let (spliced, others) = fused.finish(&values)?;
        Ok(self.with_finish(reduce, spliced, (reduced, others), outputs))
    }

    /// Fuses a map on the result of a reduction into the reduction. With `wide`, the map may have other operands and
    /// several outputs.
    pub(super) fn fuse_finish(&self, reduce: &Reduce, wide: bool) -> Result<Launch, FusionRejection> {
        map_of(self.consumer.launch)?;
        let accumulator = match reduce.op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => Compute::I64,
            _ => reduce.program.outputs[0].compute,
        };
        let load = Load { storage: accumulator.storage(), compute: accumulator, per_row: false };
        let mut fused = ResultProgram::new(&self.producer.outputs[0]);
        let result = fused.splice.load_as(0, load, reduce.output);
        let (reduced, finishing) = self.producer.inputs.split_at(reduce.program.inputs.len());
        let applied = reduce.finish.as_ref().map(|finish| (finish, &reduce.finish_params));
        let produced = fused.add_applied(applied, result, finishing)?;
        let read = fused.add_consumer(self, &produced)?;
        let (outputs, values) = self.outputs(&produced, read);
        let (spliced, others) = fused.finish(&values)?;
        let is_result_alone = others.is_empty() && outputs.len() == 1;
        if !(wide || is_result_alone) {
            return Err(None);
        }
        Ok(self.with_finish(reduce, spliced, (reduced, others), outputs))
    }

    /// Fuses a map on the result of a matrix product into its epilogue.
    pub(super) fn fuse_epilogue(&self, product: &MatMul) -> Result<Launch, FusionRejection> {
        let FusionSide { launch, space, inputs, .. } = &self.producer;
        map_of(self.consumer.launch)?;
        let (layout, dtype) = (Layout::contiguous(space.clone()), product.product_dtype(launch.inputs[0].dtype));
        let mut fused = ResultProgram::new(&SlotView { slot: usize::MAX, layout, dtype });
        let product_value = fused.splice.load(0, dtype);
        let applied = product.epilogue.as_ref().map(|epilogue| (epilogue, &product.params));
        let produced = fused.add_applied(applied, product_value, &inputs[2..])?;
        let read = fused.add_consumer(self, &produced)?;
        let (outputs, values) = self.outputs(&produced, read);
        let (spliced, others) = fused.finish(&values)?;
        let inputs = launch.inputs[..2].iter().cloned().chain(others).collect();
        let kernel = Kernel::MatMul(MatMul { epilogue: Some(Arc::new(spliced.program)), params: spliced.params });
        Ok(self.launch(kernel, inputs, outputs))
    }

    /// Returns the launch of `reduce` on the inputs `reduced`, with the finishing program `spliced`, whose further
    /// inputs are `others`.
    fn with_finish(
        &self,
        reduce: &Reduce,
        spliced: Spliced,
        (reduced, others): (&[SlotView], Vec<SlotView>),
        outputs: Vec<SlotView>,
    ) -> Launch {
        let kernel = Kernel::Reduce(Reduce {
            finish: Some(Arc::new(spliced.program)),
            finish_params: spliced.params,
            output: outputs[0].dtype,
            ..reduce.clone()
        });
        self.launch(kernel, reduced.iter().cloned().chain(others).collect(), outputs)
    }
}
