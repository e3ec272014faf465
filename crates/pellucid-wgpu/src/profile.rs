//! The time that a device spends on work, by timestamps of the device.

use crate::device::TIMESTAMPS;
use crate::gpu::Gpu;
use pellucid_ir::Result;
use std::time::Duration;

/// The size of a timestamp in bytes.
const TIMESTAMP_BYTES: usize = wgpu::QUERY_SIZE as usize;

impl Gpu {
    /// Runs `work` and returns the time between two timestamps of the device: after all earlier work, and after `work`.
    /// Returns `None` if the adapter has no timestamps.
    ///
    /// # Errors
    /// The error of `work`, or of the device.
    pub(crate) fn device_time(&self, work: impl FnOnce() -> Result<()>) -> Result<Option<Duration>> {
        if !self.graphics.device.features().contains(TIMESTAMPS) {
            return work().map(|()| None);
        }
        let (queries, values) = self.graphics.scoped("device_time", || {
            let queries = self.graphics.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            });
            let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
            (queries, self.graphics.create_buffer("timestamps", 2 * TIMESTAMP_BYTES, usage))
        })?;
        self.write_timestamp(&queries, 0, None)?;
        work()?;
        self.write_timestamp(&queries, 1, Some(&values))?;
        let mut ticks = [0; 2];
        self.read(&values, 0..2 * TIMESTAMP_BYTES, |bytes| {
            for (tick, bytes) in ticks.iter_mut().zip(bytes.chunks_exact(TIMESTAMP_BYTES)) {
                *tick = bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            }
        })?;
        let nanoseconds =
            ticks[1].saturating_sub(ticks[0]) as f64 * f64::from(self.graphics.queue.get_timestamp_period());
        Ok(Some(Duration::from_secs_f64(nanoseconds * 1e-9)))
    }

    /// Submits the recorded dispatches and then a timestamp. Copies all timestamps to `values`, if it is given.
    fn write_timestamp(&self, queries: &wgpu::QuerySet, index: u32, values: Option<&wgpu::Buffer>) -> Result<()> {
        self.flush()?;
        self.graphics.scoped("device_time", || {
            let mut encoder = self.graphics.device.create_command_encoder(&Default::default());
            let writes = wgpu::ComputePassTimestampWrites {
                query_set: queries,
                beginning_of_pass_write_index: Some(index),
                end_of_pass_write_index: None,
            };
            let pass = wgpu::ComputePassDescriptor { label: Some("timestamp"), timestamp_writes: Some(writes) };
            drop(encoder.begin_compute_pass(&pass));
            if let Some(values) = values {
                encoder.resolve_query_set(queries, 0..2, values, 0);
            }
            self.graphics.queue.submit([encoder.finish()]);
        })
    }
}
