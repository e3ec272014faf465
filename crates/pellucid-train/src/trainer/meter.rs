//! [`LossMeter`]: sums the losses of an epoch.

use super::state::RunProgress;
use super::task::NamedScalars;
use pellucid_nn::loss::BatchWeight;
use pellucid_tensor::{Result, Tensor, no_grad, ops};

/// Adds scalars to the sums of an epoch. On a device other than the CPU, reading a value waits for the device, so sums
/// remain on the device until they are read.
#[derive(Default)]
pub(super) struct LossMeter {
    /// The values of the last step whose values were read.
    values: Vec<(&'static str, f64)>,
    /// Sums on the device that were not yet added to the progress.
    pending: NamedScalars,
    /// The sum of weights on the device that was not yet added to the progress.
    pending_weight: Option<Tensor>,
}

impl LossMeter {
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
        let (factor, weight) = weight.factor_and_weight(samples)?;
        progress.weight += weight;
        for (name, scalar) in scalars {
            let value = scalar.try_item::<f64>()?;
            // The mean of a batch in which all targets are ignored is 0/0.
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
        match (weight, &mut self.pending_weight) {
            (BatchWeight::Sum(weight), Some(sum)) => *sum = ops::add(&*sum, weight)?,
            (BatchWeight::Sum(weight), sum) => *sum = Some(weight.clone()),
            _ => progress.weight += samples,
        }
        for (name, scalar) in scalars {
            let weighted = match weight {
                BatchWeight::Samples => ops::mul(scalar, samples)?,
                // The next step may overwrite the scalar.
                BatchWeight::SumOfSamples => ops::copy(scalar)?,
                BatchWeight::Sum(weight) => {
                    let weight = ops::to_dtype(&weight.try_to(scalar.device())?, scalar.dtype())?;
                    ops::where_(&ops::ne(&weight, 0.0)?, &ops::mul(scalar, &weight)?, 0.0)?
                }
            };
            match self.pending.iter_mut().find(|(existing, _)| existing == name) {
                Some((_, sum)) => *sum = ops::add(&*sum, &weighted)?,
                None => self.pending.push((name, weighted)),
            }
        }
        Ok(())
    }

    /// Reads the sums of the device into the progress. Returns false if one is not finite.
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
