//! The sums of the losses of an epoch.

use super::state::RunProgress;
use super::task::NamedScalars;
use pellucid_tensor::{Result, Tensor, no_grad, ops};

/// Adds scalars to the sums of an epoch. On a device other than the CPU, reading a value waits for the device, so sums
/// stay there until they are read.
#[derive(Default)]
pub(super) struct LossMeter {
    /// The values of the last step that were read.
    values: Vec<(&'static str, f64)>,
    /// Sums on the device that have not been added to the progress.
    pending: NamedScalars,
}

impl LossMeter {
    /// Adds the scalars of a batch of `samples` samples. Returns their values, which are empty on a device other than
    /// the CPU unless they `must_be_read`.
    pub(super) fn add(
        &mut self,
        progress: &mut RunProgress,
        scalars: &NamedScalars,
        samples: f64,
        must_be_read: bool,
    ) -> Result<&[(&'static str, f64)]> {
        self.values.clear();
        progress.weight += samples;
        if scalars.iter().any(|(_, scalar)| !scalar.device().is_cpu()) {
            self.add_on_device(scalars, samples)?;
            for (name, scalar) in scalars.iter().filter(|_| must_be_read) {
                self.values.push((name, scalar.try_item()?));
            }
            return Ok(&self.values);
        }
        for (name, scalar) in scalars {
            let value = scalar.try_item::<f64>()?;
            add_to_sum(progress, name, value * samples);
            self.values.push((name, value));
        }
        Ok(&self.values)
    }

    fn add_on_device(&mut self, scalars: &NamedScalars, samples: f64) -> Result<()> {
        let _off = no_grad();
        for (name, scalar) in scalars {
            let weighted = ops::mul(scalar, samples)?;
            match self.pending.iter_mut().find(|(existing, _)| existing == name) {
                Some((_, sum)) => *sum = ops::add(&*sum, &weighted)?,
                None => self.pending.push((name, weighted)),
            }
        }
        Ok(())
    }

    /// Reads the sums of the device into the progress. Returns false if one is not finite.
    pub(super) fn read(&mut self, progress: &mut RunProgress) -> Result<bool> {
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
