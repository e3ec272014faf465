//! Snapshots of state that a rejected step or a validation must not change: random numbers and buffers.

use pellucid_nn::Buffer;
use pellucid_tensor::{Device, Generator, Result, Tensor, no_grad, ops};

/// The state of the thread's random number generator at one point of the run.
pub(super) struct RandomSnapshot {
    generator: Generator,
    /// The state on the CPU, which is read without a kernel.
    host: Vec<i64>,
    /// The states on other devices.
    others: Vec<(Device, Tensor)>,
}

impl RandomSnapshot {
    pub(super) fn new() -> Result<RandomSnapshot> {
        let generator = Generator::default();
        let host = generator.state().try_to_vec()?;
        let others = generator.states().into_iter().filter(|(device, _)| !device.is_cpu());
        let others = others.map(|(device, state)| Ok((device, ops::copy(&state)?))).collect::<Result<_>>()?;
        Ok(RandomSnapshot { generator, host, others })
    }

    pub(super) fn restore(&self) -> Result<()> {
        let host = (Device::cpu(), Tensor::try_new(&self.host[..], [self.host.len()])?);
        let states: Vec<(Device, Tensor)> = [host].into_iter().chain(self.others.iter().cloned()).collect();
        self.generator.set_states(&states)
    }
}

/// A copy of the state that a training step changes even if it fails: buffers, such as the running statistics of a
/// normalization, and random numbers. The copy is made before the step.
#[derive(Default)]
pub(super) struct StepSnapshot {
    /// The buffers, with copies of their values in memory that all steps reuse.
    buffers: Vec<(Buffer, Tensor)>,
    random: Option<RandomSnapshot>,
}

impl StepSnapshot {
    /// Returns a snapshot of these buffers and of the random numbers.
    pub(super) fn new(buffers: Vec<Buffer>) -> Result<StepSnapshot> {
        let _off = no_grad();
        let buffers = buffers.into_iter().map(|buffer| {
            let values = ops::copy(&buffer.detach())?;
            Ok((buffer, values))
        });
        Ok(StepSnapshot { buffers: buffers.collect::<Result<_>>()?, random: Some(RandomSnapshot::new()?) })
    }

    /// Replaces the snapshot with the current values.
    pub(super) fn renew(&mut self) -> Result<()> {
        let _off = no_grad();
        for (buffer, values) in &mut self.buffers {
            // The model may have been moved or converted since the last step.
            match (buffer.device(), buffer.dtype()) == (values.device(), values.dtype()) {
                true => ops::copy_(values, &*buffer)?,
                false => *values = ops::copy(&buffer.detach())?,
            }
        }
        self.random = Some(RandomSnapshot::new()?);
        Ok(())
    }

    /// Restores buffers and random numbers.
    pub(super) fn restore(&self) -> Result<()> {
        let _off = no_grad();
        self.buffers.iter().try_for_each(|(buffer, values)| ops::copy_(buffer, values))?;
        self.random.as_ref().map_or(Ok(()), RandomSnapshot::restore)
    }

    /// Restores the buffers if the loss is not finite. On a device other than the CPU, the device evaluates this
    /// condition.
    pub(super) fn restore_buffers_unless_finite(&self, loss: &Tensor) -> Result<()> {
        let _off = no_grad();
        let is_finite = ops::isfinite(&loss.detach())?;
        if self.buffers.is_empty() || loss.device().is_cpu() && is_finite.try_item::<bool>()? {
            return Ok(());
        }
        self.buffers.iter().try_for_each(|(buffer, values)| {
            let kept = ops::where_(&is_finite.try_to(buffer.device())?, buffer.tensor(), values)?;
            ops::copy_(buffer, &kept)
        })
    }
}
