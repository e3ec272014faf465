//! [`LossMeter`]: sums the losses of an epoch.

use super::state::RunProgress;
use super::task::NamedScalars;
use pellucid_nn::loss::BatchWeight;
use pellucid_tensor::{DType, Result, Tensor, no_grad, ops};

/// Adds scalars to the sums of an epoch. On a device other than the CPU, reading a value waits for the device, so sums
/// remain on the device until they are read.
#[derive(Default)]
pub(super) struct LossMeter {
    /// Whether batches whose first loss is not finite are skipped, because the gradient scaler skips their updates.
    skips_non_finite: bool,
    /// The scalars of the last step at which they were read.
    values: Vec<(&'static str, f64)>,
    /// Sums on the device that were not yet added to the progress.
    pending: NamedScalars,
    /// The sum of weights on the device that was not yet added to the progress.
    pending_weight: Option<Tensor>,
}

impl LossMeter {
    pub(super) fn new(skips_non_finite: bool) -> LossMeter {
        LossMeter { skips_non_finite, ..LossMeter::default() }
    }

    /// Returns false for a batch that is skipped. This call waits for the device.
    pub(super) fn is_counted(&self, scalars: &NamedScalars) -> Result<bool> {
        match scalars.first() {
            Some((_, loss)) if self.skips_non_finite => Ok(loss.try_item::<f64>()?.is_finite()),
            _ => Ok(true),
        }
    }

    /// Adds the scalars of a batch with its weight and its number of samples. Returns their values. On a device other
    /// than the CPU, the result is empty unless `must_be_read` is true.
    pub(super) fn add(
        &mut self,
        progress: &mut RunProgress,
        scalars: &NamedScalars,
        (weight, samples): (&BatchWeight, usize),
        must_be_read: bool,
    ) -> Result<&[(&'static str, f64)]> {
        self.values.clear();
        if scalars.iter().any(|(_, scalar)| !scalar.device().is_cpu()) {
            self.add_on_device(progress, scalars, weight, samples as f64)?;
            for (name, scalar) in scalars.iter().filter(|_| must_be_read) {
                self.values.push((name, scalar.try_item()?));
            }
            return Ok(&self.values);
        }
        let (mut factor, weight) = weight.factor_and_weight(samples)?;
        match self.is_counted(scalars)? {
            true => progress.weight += weight,
            false => factor = 0.0,
        }
        for (name, scalar) in scalars {
            let value = scalar.try_item::<f64>()?;
            // The mean of a batch in which all targets are ignored is 0/0. The loss of a skipped batch is not finite.
            add_to_sum(progress, name, if factor == 0.0 { 0.0 } else { value * factor });
            self.values.push((name, value));
        }
        Ok(&self.values)
    }

    fn add_on_device(
        &mut self,
        progress: &mut RunProgress,
        scalars: &NamedScalars,
        weight: &BatchWeight,
        samples: f64,
    ) -> Result<()> {
        let _off = no_grad();
        // A sum in half precision would overflow or stop growing.
        let wide = |number: &Tensor| ops::to_dtype(number, number.dtype().promote(DType::F32));
        let is_counted = match scalars.first() {
            Some((_, loss)) if self.skips_non_finite => Some(ops::isfinite(loss)?),
            _ => None,
        };
        let counted = |value: Tensor| match &is_counted {
            Some(is_counted) => ops::where_(is_counted, &value.try_to(is_counted.device())?, 0.0),
            None => Ok(value),
        };
        let batch_weight = match (weight, &is_counted) {
            (BatchWeight::Sum(weight), _) => Some(counted(wide(weight)?)?),
            (_, Some(is_counted)) => Some(ops::mul(&ops::to_dtype(is_counted, DType::I64)?, samples as i64)?),
            (_, None) => None,
        };
        match (batch_weight, &mut self.pending_weight) {
            (Some(weight), Some(sum)) => *sum = ops::add(&*sum, &weight)?,
            (Some(weight), sum) => *sum = Some(weight),
            (None, _) => progress.weight += samples,
        }
        for (name, scalar) in scalars {
            let value = wide(scalar)?;
            let weighted = match weight {
                BatchWeight::Samples => ops::mul(&value, samples)?,
                // The next step may overwrite the scalar.
                BatchWeight::SumOfSamples => ops::copy(&value)?,
                BatchWeight::Sum(weight) => {
                    let weight = ops::to_dtype(&weight.try_to(scalar.device())?, value.dtype())?;
                    ops::where_(&ops::ne(&weight, 0.0)?, &ops::mul(&value, &weight)?, 0.0)?
                }
            };
            let weighted = counted(weighted)?;
            match self.pending.iter_mut().find(|(existing, _)| existing == name) {
                Some((_, sum)) => *sum = ops::add(&*sum, &weighted)?,
                None => self.pending.push((name, weighted)),
            }
        }
        Ok(())
    }

    /// Adds the pending sums on the device to the progress. Returns false if a sum is not finite.
    pub(super) fn read(&mut self, progress: &mut RunProgress) -> Result<bool> {
        if let Some(weight) = self.pending_weight.take() {
            progress.weight += weight.try_item::<f64>()?;
        }
        let mut all_finite = true;
        for (name, sum) in self.pending.drain(..) {
            let sum = Tensor::try_item::<f64>(&sum)?;
            all_finite &= sum.is_finite();
            add_to_sum(progress, name, sum);
        }
        Ok(all_finite)
    }
}

fn add_to_sum(progress: &mut RunProgress, name: &str, value: f64) {
    match progress.sums.iter_mut().find(|(existing, _)| existing == name) {
        Some((_, sum)) => *sum += value,
        None => progress.sums.push((name.to_string(), value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scaler skips the update of a batch whose loss is not finite.
    #[test]
    fn batches_that_are_not_finite_are_skipped() {
        for weight in [BatchWeight::Samples, BatchWeight::SumOfSamples, BatchWeight::Sum(Tensor::from(4.0f32))] {
            for on_device in [false, true] {
                let (mut meter, mut progress) = (LossMeter::new(true), RunProgress::default());
                for loss in [f32::NAN, 2.0, f32::INFINITY, 3.0] {
                    let scalars = vec![("loss", Tensor::from(loss)), ("norm", Tensor::from(1.0f32))];
                    match on_device {
                        true => meter.add_on_device(&mut progress, &scalars, &weight, 4.0).unwrap(),
                        false => drop(meter.add(&mut progress, &scalars, (&weight, 4), false).unwrap().to_vec()),
                    }
                }
                assert!(meter.read(&mut progress).unwrap());
                let factor = if matches!(weight, BatchWeight::SumOfSamples) { 1.0 } else { 4.0 };
                let sums = progress.sums.iter().map(|(_, sum)| *sum).collect::<Vec<_>>();
                assert_eq!((sums, progress.weight), (vec![5.0 * factor, 2.0 * factor], 8.0), "{weight:?}, {on_device}");
            }
        }
    }

    /// 512 batches with a loss of 4.5 and 256 samples: the sum exceeds the range of `f16` and the precision of `bf16`.
    #[test]
    fn sums_on_a_device_are_wider_than_half_precision() {
        for dtype in [DType::F16, DType::BF16] {
            let loss = vec![("loss", Tensor::from(4.5).to_dtype(dtype))];
            let count = Tensor::from(256.0).to_dtype(dtype);
            for (weight, samples) in [(BatchWeight::Samples, 256.0), (BatchWeight::Sum(count), 1.0)] {
                let (mut meter, mut progress) = (LossMeter::default(), RunProgress::default());
                for _ in 0..512 {
                    meter.add_on_device(&mut progress, &loss, &weight, samples).unwrap();
                }
                assert!(meter.read(&mut progress).unwrap(), "{dtype}");
                assert_eq!(progress.sums, [("loss".to_string(), 4.5 * 256.0 * 512.0)], "{dtype}");
                assert_eq!(progress.weight, 256.0 * 512.0, "{dtype}");
            }
        }
    }
}
