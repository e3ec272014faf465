//! [`RecordedDispatches`]: dispatches that are submitted together, in the order of the calls, and the evaluation of the
//! status by the host.

use crate::api::{ComputeApi, DispatchBatch, MemoryMark, PARAMETER_BYTES, RecordedDispatch, SubmissionFailure};
use crate::description::{KernelDescription, kernel_scalar};
use crate::shader::BufferRef;
use crate::status::{CheckedOperations, PASSED};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result};

/// The maximum number of recorded dispatches. If it is reached, they are submitted before the next one is recorded.
const MAX_RECORDED: usize = 64;

/// The dispatches that have not been submitted yet.
pub(crate) struct RecordedDispatches<A: ComputeApi> {
    /// The parameters of all dispatches.
    parameters: Vec<u8>,
    /// The buffers of all dispatches.
    memory: Vec<A::Memory>,
    dispatches: Vec<RecordedDispatch<A::Kernel>>,
    /// The changes of the bytes in use, for a device that checks them.
    marks: Vec<MemoryMark<A::Memory>>,
    /// The number of checks that have passed since the last reset of the status, modulo 2³².
    passed: u32,
}

/// The failure of a submission with checks.
pub(crate) struct CheckFailure {
    /// The number of checks of the submission that passed before the one that failed, or `None` if the status could not
    /// be read.
    pub(crate) passed: Option<u32>,
    pub(crate) error: Error,
}

impl<A: ComputeApi> RecordedDispatches<A> {
    /// Creates an empty list.
    pub(crate) fn new() -> RecordedDispatches<A> {
        let (parameters, memory, dispatches, marks) = Default::default();
        RecordedDispatches { parameters, memory, dispatches, marks, passed: 0 }
    }

    /// Records that later dispatches may use the first `bytes` bytes of a buffer.
    pub(crate) fn mark_memory(&mut self, api: &A, memory: &A::Memory, bytes: usize) {
        let mark = MemoryMark { before: self.dispatches.len(), memory: memory.clone(), bytes };
        if self.dispatches.is_empty() {
            // The error of a failed device is the error of its next use.
            let _ = api.mark_memory(&mark);
        } else {
            self.marks.push(mark);
        }
    }

    /// Records the dispatches of a kernel. `memory` is the memory of the operands, then the scratch memory.
    ///
    /// # Errors
    /// Returns an error if the device has failed, or if earlier dispatches cannot be submitted. None of the dispatches
    /// of the kernel is then recorded.
    pub(crate) fn record(
        &mut self,
        api: &A,
        kernel: &Kernel,
        description: &KernelDescription<A>,
        memory: &[A::Memory],
    ) -> Result<()> {
        api.failure().check()?;
        let alignment = api.limits().parameter_alignment;
        let operands = memory.len() - description.scratch.len();
        for (own, dispatch) in description.dispatches.iter().enumerate() {
            let size = dispatch.parameters.bytes();
            let mut offset = self.parameters.len().next_multiple_of(alignment);
            if self.dispatches.len() >= MAX_RECORDED || offset + size > PARAMETER_BYTES {
                self.submit(api).inspect_err(|_| self.discard_last(own))?;
                offset = 0;
            }
            self.parameters.resize(offset, 0);
            dispatch.parameters.append_bytes(&mut self.parameters, |index| kernel_scalar(kernel, index));
            let first = self.memory.len();
            self.memory.extend(dispatch.buffers.iter().map(|buffer| match *buffer {
                BufferRef::Operand(k) => memory[k].clone(),
                BufferRef::Scratch(k) => memory[operands + k].clone(),
            }));
            let (kernel, memory, offset) = (dispatch.kernel.clone(), first..self.memory.len(), offset as u32);
            self.dispatches.push(RecordedDispatch { kernel, offset, memory, groups: dispatch.groups });
        }
        api.counters().bytes.add(description.bytes);
        Ok(())
    }

    /// Submits the recorded dispatches, without waiting for them.
    ///
    /// # Errors
    /// See [`submit_with_status`](RecordedDispatches::submit_with_status).
    pub(crate) fn submit(&mut self, api: &A) -> Result<()> {
        match self.dispatches.is_empty() {
            true => api.failure().check(),
            false => self.submit_with_status(api, false).map(drop),
        }
    }

    /// Submits the recorded dispatches, and with `copies_status` a copy of the status for
    /// [`confirm`](RecordedDispatches::confirm). Until that call, no other call may submit work.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device has no memory to run the dispatches. They stay recorded.
    ///
    /// [`Error::DeviceUnavailable`] if the API rejects the submission. The device then counts as failed: the calls that
    /// recorded the dispatches have already returned without an error, and their outputs were not written.
    pub(crate) fn submit_with_status(&mut self, api: &A, copies_status: bool) -> Result<A::Submission> {
        let RecordedDispatches { parameters, memory, dispatches, marks, .. } = self;
        let submitted = api.submit(DispatchBatch { parameters, memory, dispatches, marks }, copies_status);
        if let Err(SubmissionFailure { submitted: Some(count), error: exhausted @ Error::OutOfMemory { .. } }) =
            submitted
        {
            self.remove_first(count as usize);
            return Err(exhausted);
        }
        self.parameters.clear();
        self.memory.clear();
        self.dispatches.clear();
        self.marks.clear();
        submitted.map_err(|failure| match failure.error {
            failed @ Error::DeviceUnavailable { .. } => failed,
            rejected => api.failure().fail(format!("recorded kernels could not be submitted: {rejected}")),
        })
    }

    /// Removes the first `count` dispatches, which were submitted.
    fn remove_first(&mut self, count: usize) {
        self.dispatches.drain(..count);
        let removed = self.dispatches.first().map_or(self.memory.len(), |dispatch| dispatch.memory.start);
        self.memory.drain(..removed);
        for dispatch in &mut self.dispatches {
            dispatch.memory = dispatch.memory.start - removed..dispatch.memory.end - removed;
        }
        self.marks.retain(|mark| mark.before > count);
        self.marks.iter_mut().for_each(|mark| mark.before -= count);
    }

    /// Removes those of the last `count` recorded dispatches that have not been submitted: the call that recorded them
    /// returns an error.
    pub(crate) fn discard_last(&mut self, count: usize) {
        self.dispatches.truncate(self.dispatches.len().saturating_sub(count));
        self.memory.truncate(self.dispatches.last().map_or(0, |dispatch| dispatch.memory.end));
        let last = self.dispatches.len();
        self.marks.iter_mut().for_each(|mark| mark.before = mark.before.min(last));
    }

    /// Waits for the submission that copies the status, and evaluates it. `copied` is the result of the submission, and
    /// `checks` the number of checks since the last call.
    ///
    /// # Errors
    /// Returns the error of the submission, or of the first check that failed. The status is then reset: kernels after
    /// the failed check that were submitted before this call are skipped, and later ones run.
    pub(crate) fn confirm(
        &mut self,
        api: &A,
        operations: &CheckedOperations,
        checks: usize,
        copied: Result<A::Submission>,
    ) -> Result<(), CheckFailure> {
        let words = copied.and_then(|copied| api.read_status(copied));
        let failure = match words.map(|words| (words[PASSED], operations.error(&words))) {
            Ok((_, None)) => {
                self.passed = self.passed.wrapping_add(checks as u32);
                return Ok(());
            }
            Ok((passed, Some(error))) => CheckFailure { passed: Some(passed.wrapping_sub(self.passed)), error },
            Err(error) => CheckFailure { passed: None, error },
        };
        self.passed = 0;
        Err(api.reset_status().map_or_else(|error| CheckFailure { passed: None, error }, |()| failure))
    }
}
