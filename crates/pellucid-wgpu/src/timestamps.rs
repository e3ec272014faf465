//! [`Timestamps`]: the time that a device spends on work, by timestamps of the device.

use crate::device::{GraphicsDevice, TIMESTAMPS};
use pellucid_ir::Result;
use std::time::Duration;

/// The size of a timestamp in bytes.
const TIMESTAMP_BYTES: usize = wgpu::QUERY_SIZE as usize;

/// Two timestamps of a device, the first of which is submitted.
pub struct Timestamps {
    queries: wgpu::QuerySet,
    values: wgpu::Buffer,
}

impl Timestamps {
    /// The size of both timestamps in bytes.
    pub(crate) const BYTES: usize = 2 * TIMESTAMP_BYTES;

    /// Submits the first timestamp. Returns `None` if the adapter has no timestamps.
    ///
    /// # Errors
    /// The error of the device.
    pub(crate) fn start(graphics: &GraphicsDevice) -> Result<Option<Timestamps>> {
        if !graphics.device.features().contains(TIMESTAMPS) {
            return Ok(None);
        }
        let timestamps = graphics.scoped("device_time", || {
            let queries = graphics.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            });
            let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
            Timestamps { queries, values: graphics.create_buffer("timestamps", Timestamps::BYTES, usage) }
        })?;
        timestamps.write(graphics, 0, |_| {})?;
        Ok(Some(timestamps))
    }

    /// Submits the second timestamp, and returns the buffer of the values of both.
    ///
    /// # Errors
    /// The error of the device.
    pub(crate) fn stop(self, graphics: &GraphicsDevice) -> Result<wgpu::Buffer> {
        self.write(graphics, 1, |encoder| encoder.resolve_query_set(&self.queries, 0..2, &self.values, 0))?;
        Ok(self.values)
    }

    /// Submits a timestamp, and then the commands that `finish` adds.
    fn write(
        &self,
        graphics: &GraphicsDevice,
        index: u32,
        finish: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<()> {
        graphics.scoped("device_time", || {
            let mut encoder = graphics.device.create_command_encoder(&Default::default());
            let writes = wgpu::ComputePassTimestampWrites {
                query_set: &self.queries,
                beginning_of_pass_write_index: Some(index),
                end_of_pass_write_index: None,
            };
            let pass = wgpu::ComputePassDescriptor { label: Some("timestamp"), timestamp_writes: Some(writes) };
            drop(encoder.begin_compute_pass(&pass));
            finish(&mut encoder);
            graphics.queue.submit([encoder.finish()]);
        })
    }
}

impl GraphicsDevice {
    /// Returns the time between two timestamps.
    pub(crate) fn elapsed(&self, timestamps: &[u8]) -> Duration {
        let mut ticks = [0; 2];
        for (tick, bytes) in ticks.iter_mut().zip(timestamps.chunks_exact(TIMESTAMP_BYTES)) {
            *tick = bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        }
        let nanoseconds = ticks[1].saturating_sub(ticks[0]) as f64 * f64::from(self.queue.get_timestamp_period());
        Duration::from_secs_f64(nanoseconds * 1e-9)
    }
}
