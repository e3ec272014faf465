//! The threads of a block. A thread runs on a fiber until it ends or waits. A fiber whose thread has ended runs the
//! next one, so that a kernel without barriers is a loop on one fiber.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::module_info::ModuleInfo;
use crate::reports::FaultKind;
use crate::traps::{Fiber, Pause, prepare_thread, with_trap_handler};
use crate::warps::{WarpCall, warp_operation_name, warp_result};

/// Bytes of the stack of a fiber. Pages that are not touched take no memory.
const STACK_BYTES: usize = 256 << 10;

/// Fibers that no thread uses.
#[derive(Default)]
pub(crate) struct FiberPool {
    idle: Vec<Fiber>,
}

/// What a thread does.
#[derive(Clone, Copy, Debug)]
enum ThreadStatus {
    Unstarted,
    AtBarrier { line: u32, kind: u32, predicate: bool },
    InWarp(WarpCall),
    Ready,
    Done,
}

/// A fault and its description.
pub(crate) type ThreadFault = (FaultKind, String);

/// One block while it runs. Callbacks of the kernel and the loop over threads share it, on one thread of the host.
pub(crate) struct BlockRun {
    call: unsafe extern "C" fn(*mut *mut c_void),
    arguments: *mut *mut c_void,
    info: *const ModuleInfo,
    dimensions: [u32; 3],
    is_descending: bool,
    status: Vec<Cell<ThreadStatus>>,
    results: Vec<Cell<u64>>,
    yielders: Vec<Cell<*const Yielder<(), Pause>>>,
    fibers: RefCell<Vec<Option<Fiber>>>,
    current: Cell<usize>,
    started: Cell<usize>,
    fault: RefCell<Option<ThreadFault>>,
}

/// The block that runs now.
static ACTIVE: AtomicPtr<BlockRun> = AtomicPtr::new(std::ptr::null_mut());

fn active_run() -> &'static BlockRun {
    let run = ACTIVE.load(Ordering::Relaxed);
    assert!(!run.is_null(), "device functions are called by kernels only");
    // SAFETY: `run_block` stores a reference that outlives the fibers that it resumes, and callbacks run on those
    // fibers only. The block is shared by reference, and its fields are cells.
    unsafe { &*run }
}

fn new_fiber() -> Fiber {
    let stack = DefaultStack::new(STACK_BYTES).expect("the system has memory for the stack of a fiber");
    Coroutine::with_stack(stack, |yielder, ()| {
        loop {
            while let Some(thread) = active_run().start_next(yielder) {
                let run = active_run();
                run.enter(thread);
                // SAFETY: the function is the entry of a kernel that `TEST_ENTRY` defines, and the arguments are as
                // many and as long as its parameters (`KernelLaunch::argument_pointers`).
                unsafe { (run.call)(run.arguments) };
                let run = active_run();
                run.status[run.current.get()].set(ThreadStatus::Done);
            }
            yielder.suspend(Pause::Idle);
        }
    })
}

impl BlockRun {
    /// Creates a block of a kernel, none of whose threads has started.
    ///
    /// # Safety
    /// *Arguments:* `arguments` has a pointer to a value of each parameter of the kernel. *Module:* `info` is the
    /// information of the kernel's module, which stays loaded while the block runs.
    pub(crate) unsafe fn new(
        call: unsafe extern "C" fn(*mut *mut c_void),
        arguments: *mut *mut c_void,
        info: *const ModuleInfo,
        dimensions: [u32; 3],
        is_descending: bool,
    ) -> Self {
        let count = dimensions.iter().product::<u32>() as usize;
        Self {
            call,
            arguments,
            info,
            dimensions,
            is_descending,
            status: vec![Cell::new(ThreadStatus::Unstarted); count],
            results: vec![Cell::new(0); count],
            yielders: vec![Cell::new(std::ptr::null()); count],
            fibers: RefCell::new((0..count).map(|_| None).collect()),
            current: Cell::new(0),
            started: Cell::new(0),
            fault: RefCell::new(None),
        }
    }

    /// Prepares the next block of the same launch.
    pub(crate) fn reset(&self) {
        self.status.iter().for_each(|status| status.set(ThreadStatus::Unstarted));
        self.started.set(0);
    }

    fn thread_at(&self, position: usize) -> usize {
        if self.is_descending { self.status.len() - 1 - position } else { position }
    }

    /// Returns the next thread that has not started, which runs on the fiber of `yielder`.
    fn start_next(&self, yielder: &Yielder<(), Pause>) -> Option<usize> {
        let position = self.started.get();
        if position == self.status.len() {
            return None;
        }
        self.started.set(position + 1);
        let thread = self.thread_at(position);
        self.yielders[thread].set(yielder);
        Some(thread)
    }

    /// Makes a thread the current one.
    fn enter(&self, thread: usize) {
        self.current.set(thread);
        let index = thread as u32;
        let [width, height, _] = self.dimensions;
        let position = [index % width, index / width % height, index / (width * height)];
        // SAFETY: the clause *Module* of `new`: the pointer is to the module's `threadIdx`.
        unsafe { (*self.info).thread.write(position) };
    }

    /// Suspends the current thread, and returns its result when it is resumed.
    fn wait(&self, status: ThreadStatus) -> u64 {
        let thread = self.current.get();
        self.status[thread].set(status);
        // SAFETY: `start_next` stored the yielder of the fiber that runs the current thread; it is on that fiber's
        // stack, where this call runs too.
        unsafe { (*self.yielders[thread].get()).suspend(Pause::Waiting) };
        self.results[thread].get()
    }

    fn has_fault(&self) -> bool {
        self.fault.borrow().is_some()
    }

    /// Resumes a fiber, and stores it for its thread if that waits.
    fn resume(&self, pool: &mut FiberPool, mut fiber: Fiber) {
        match with_trap_handler(&mut fiber, |fiber| fiber.resume(())) {
            CoroutineResult::Yield(Pause::Idle) => pool.idle.push(fiber),
            CoroutineResult::Yield(Pause::Waiting) => {
                self.fibers.borrow_mut()[self.current.get()] = Some(fiber);
            }
            CoroutineResult::Return(crash) => {
                let text = format!("{} in thread {}", crash.describe(), self.current.get());
                *self.fault.borrow_mut() = Some((crash.kind(), text));
            }
        }
    }

    /// Runs all threads to their ends.
    fn run_threads(&self, pool: &mut FiberPool) -> Result<(), ThreadFault> {
        let take_fault = || self.fault.borrow_mut().take().map_or(Ok(()), Err);
        while self.started.get() < self.status.len() {
            let fiber = pool.idle.pop().unwrap_or_else(new_fiber);
            self.resume(pool, fiber);
            take_fault()?;
        }
        while !self.status.iter().all(|status| matches!(status.get(), ThreadStatus::Done)) {
            self.release()?;
            for position in 0..self.status.len() {
                let thread = self.thread_at(position);
                if matches!(self.status[thread].get(), ThreadStatus::Ready) {
                    let fiber = self.fibers.borrow_mut()[thread].take();
                    self.enter(thread);
                    self.resume(pool, fiber.expect("a thread that waits has a fiber"));
                    take_fault()?;
                }
            }
        }
        Ok(())
    }

    /// Runs the block. After a fault, the fibers of its threads are dropped without unwinding.
    ///
    /// # Errors
    /// The first fault.
    pub(crate) fn run_block(&self, pool: &mut FiberPool) -> Result<(), ThreadFault> {
        ACTIVE.store(std::ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
        prepare_thread();
        let result = self.run_threads(pool);
        ACTIVE.store(std::ptr::null_mut(), Ordering::Relaxed);
        if result.is_err() {
            for mut fiber in self.fibers.borrow_mut().iter_mut().filter_map(Option::take) {
                // SAFETY: the stack has the frames of `new_fiber`, of a callback and of a kernel in C++
                // without destructors: none owns anything that must be dropped.
                unsafe { fiber.force_reset() };
            }
        }
        result
    }

    /// Makes threads ready whose barrier or warp operation is complete.
    fn release(&self) -> Result<(), ThreadFault> {
        let mut is_progress = self.release_barrier()?;
        for first in (0..self.status.len()).step_by(32) {
            is_progress |= self.release_warp(first)?;
        }
        if is_progress { Ok(()) } else { Err(self.deadlock()) }
    }

    fn release_barrier(&self) -> Result<bool, ThreadFault> {
        let mut arrived = Vec::new();
        let mut done = 0;
        for status in &self.status {
            match status.get() {
                ThreadStatus::AtBarrier { line, kind, predicate } => arrived.push((line, kind, predicate)),
                ThreadStatus::Done => done += 1,
                _ => return Ok(false),
            }
        }
        let Some(&(line, kind, _)) = arrived.first() else {
            return Ok(false);
        };
        if done > 0 {
            let text = format!(
                "the barrier in line {line} is reached by {} of {} threads; the others have exited",
                arrived.len(),
                self.status.len()
            );
            return Err((FaultKind::Barrier, text));
        }
        if let Some((other, ..)) = arrived.iter().find(|(other, ..)| *other != line) {
            let text = format!("threads of one block wait at the barriers in lines {line} and {other}");
            return Err((FaultKind::Barrier, text));
        }
        let count = arrived.iter().filter(|(.., predicate)| *predicate).count();
        let result = match kind {
            1 => count as u64,
            2 => u64::from(count == arrived.len()),
            3 => u64::from(count > 0),
            _ => 0,
        };
        for (status, own) in self.status.iter().zip(&self.results) {
            status.set(ThreadStatus::Ready);
            own.set(result);
        }
        Ok(true)
    }

    /// Completes the operations of the warp whose first thread is `first`.
    fn release_warp(&self, first: usize) -> Result<bool, ThreadFault> {
        let end = (first + 32).min(self.status.len());
        let mut is_progress = false;
        for thread in first..end {
            let ThreadStatus::InWarp(call) = self.status[thread].get() else {
                continue;
            };
            let mut calls = [None; 32];
            let mut is_complete = true;
            for lane in 0..end - first {
                if call.mask >> lane & 1 == 0 {
                    continue;
                }
                match self.status[first + lane].get() {
                    ThreadStatus::InWarp(other) if other.kind == call.kind && other.mask == call.mask => {
                        calls[lane] = Some(other);
                    }
                    // Lanes that have exited take no part.
                    ThreadStatus::Done => {}
                    _ => is_complete = false,
                }
            }
            let name = warp_operation_name(call.kind);
            if calls[thread - first].is_none() {
                let text = format!("lane {} of {name} is not in its mask {:#x}", thread - first, call.mask);
                return Err((FaultKind::WarpMask, text));
            }
            if !is_complete {
                continue;
            }
            for lane in (0..32).filter(|&lane| calls[lane].is_some()) {
                let result = warp_result(&calls, lane as u32).map_err(|source| {
                    let text = format!("lane {lane} of {name} reads lane {source}, which takes no part");
                    (FaultKind::WarpMask, text)
                })?;
                self.results[first + lane].set(result);
                self.status[first + lane].set(ThreadStatus::Ready);
            }
            is_progress = true;
        }
        Ok(is_progress)
    }

    /// Describes threads that wait for each other.
    fn deadlock(&self) -> ThreadFault {
        let mut barriers = 0;
        let mut first_call = None;
        for (thread, status) in self.status.iter().enumerate() {
            match status.get() {
                ThreadStatus::AtBarrier { .. } => barriers += 1,
                ThreadStatus::InWarp(call) => first_call = first_call.or(Some((thread, call))),
                _ => {}
            }
        }
        match first_call {
            Some((thread, call)) => {
                let text = format!(
                    "thread {thread} waits in {} with the mask {:#x}, which not all of its lanes reach; \
                     {barriers} threads wait at a barrier",
                    warp_operation_name(call.kind),
                    call.mask
                );
                (FaultKind::WarpMask, text)
            }
            None => (FaultKind::Barrier, format!("only {barriers} threads reach a barrier")),
        }
    }
}

/// Implements `__syncthreads` and its forms with a predicate.
pub(crate) extern "C" fn wait_at_barrier(line: u32, kind: u32, predicate: i32) -> u64 {
    active_run().wait(ThreadStatus::AtBarrier { line, kind, predicate: predicate != 0 })
}

/// Operations of a warp.
pub(crate) extern "C" fn wait_in_warp(_line: u32, kind: u32, mask: u32, value: u64, lane: u32, width: u32) -> u64 {
    active_run().wait(ThreadStatus::InWarp(WarpCall { kind, mask, value, lane, width }))
}

/// Implements `__trap`: the thread fails and is not resumed.
pub(crate) extern "C" fn trap_thread(line: u32) {
    let run = active_run();
    if !run.has_fault() {
        let text = format!("thread {} trapped in line {line}", run.current.get());
        *run.fault.borrow_mut() = Some((FaultKind::Trap, text));
    }
    run.wait(ThreadStatus::Ready);
}
