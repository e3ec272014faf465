//! Signals of the processor in kernels become faults: the fiber of the thread ends with a value.

use std::cell::Cell;
use std::sync::Once;

use corosensei::trap::CoroutineTrapHandler;
use corosensei::{Coroutine, CoroutineResult};

use crate::reports::FaultKind;

/// Why a fiber is suspended.
pub(crate) enum Pause {
    /// All threads have started.
    Idle,
    /// The thread waits for others, or has failed.
    Waiting,
}

/// A fiber that runs threads. It returns only after a signal.
pub(crate) type Fiber = Coroutine<(), Pause, Crash>;

/// A signal in a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crash {
    signal: i32,
    address: usize,
}

impl Crash {
    /// Returns the fault of the signal.
    pub(crate) fn kind(self) -> FaultKind {
        match self.signal {
            // The C++ compiler checks alignment and the bounds of arrays with an illegal instruction.
            libc::SIGILL => FaultKind::Misaligned,
            libc::SIGFPE => FaultKind::Trap,
            _ => FaultKind::IllegalAddress,
        }
    }

    /// Describes the signal in a report.
    pub(crate) fn describe(self) -> String {
        match self.signal {
            libc::SIGILL => "a misaligned address or an index outside an array".to_string(),
            libc::SIGFPE => "an integer division by zero".to_string(),
            _ => format!("an access to address {:#x}", self.address),
        }
    }
}

thread_local! {
    /// The handler of the fiber that this thread runs.
    static HANDLER: Cell<Option<CoroutineTrapHandler<Crash>>> = const { Cell::new(None) };
    /// Whether this thread has a stack for signal handlers.
    static HAS_STACK: Cell<bool> = const { Cell::new(false) };
}

static PREVIOUS: std::sync::Mutex<[Option<libc::sigaction>; 32]> = std::sync::Mutex::new([None; 32]);

/// Resumes a fiber with the trap handler installed. `prepare_thread` was called before.
pub(crate) fn with_trap_handler(
    fiber: &mut Fiber,
    resume: impl FnOnce(&mut Fiber) -> CoroutineResult<Pause, Crash>,
) -> CoroutineResult<Pause, Crash> {
    HANDLER.set(Some(fiber.trap_handler()));
    let result = resume(fiber);
    HANDLER.set(None);
    result
}

/// Installs the handlers of the process and the signal stack of this thread, once each.
pub(crate) fn prepare_thread() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install_handlers);
    if HAS_STACK.replace(true) {
        return;
    }
    // SAFETY: both structures are plain data that the calls read or write. The new stack is leaked, so it outlives the
    // thread. A handler must not run on the stack of the fiber, which `setup_trap_handler` overwrites.
    unsafe {
        let mut current: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &mut current);
        if current.ss_flags & libc::SS_DISABLE != 0 {
            let memory = Vec::leak(vec![0_u8; 64 << 10]);
            let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
            libc::sigaltstack(&stack, std::ptr::null_mut());
        }
    }
}

fn install_handlers() {
    let mut previous = PREVIOUS.lock().expect("no handler panics");
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
        // SAFETY: the structures are plain data; the handler has the signature that `SA_SIGINFO` requires.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigemptyset(&mut action.sa_mask);
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &action, &mut old);
            previous[signal as usize] = Some(old);
        }
    }
}

/// Ends the fiber if the signal is from a kernel. Other signals have their previous handlers.
unsafe extern "C" fn handle_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes a valid structure to handlers with `SA_SIGINFO`.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some(handler) = HANDLER.get()
        // SAFETY: the system passes a valid context too.
        && unsafe { redirect(context.cast(), handler, Crash { signal, address }) }
    {
        return;
    }
    let previous = PREVIOUS.try_lock().ok().and_then(|previous| previous[signal as usize]);
    // SAFETY: the default action or a handler that was installed before. The signal is raised again when this handler
    // returns, since the instruction runs again.
    unsafe {
        match previous {
            Some(previous) => libc::sigaction(signal, &previous, std::ptr::null_mut()),
            None => libc::signal(signal, libc::SIG_DFL) as i32,
        }
    };
}

/// Changes the interrupted registers so that the fiber returns `crash`. Returns false if another stack is interrupted.
///
/// # Safety
/// *Context:* `context` is the one of a signal handler that runs on another stack.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
unsafe fn redirect(context: *mut libc::ucontext_t, handler: CoroutineTrapHandler<Crash>, crash: Crash) -> bool {
    // SAFETY: the clause *Context*: the structure has the registers of the interrupted thread.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    if !handler.stack_ptr_in_bounds(registers[libc::REG_RSP as usize] as usize) {
        return false;
    }
    // SAFETY: the stack pointer is in the fiber's stack, and the registers are updated as the result says. Frames on
    // the stack belong to a kernel and own nothing.
    let new = unsafe { handler.setup_trap_handler(move || crash) };
    registers[libc::REG_RIP as usize] = new.rip as i64;
    registers[libc::REG_RSP as usize] = new.rsp as i64;
    registers[libc::REG_RBP as usize] = new.rbp as i64;
    registers[libc::REG_RDI as usize] = new.rdi as i64;
    registers[libc::REG_RSI as usize] = new.rsi as i64;
    true
}

/// Returns false: on other processors the signal ends the process.
///
/// # Safety
/// None.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
unsafe fn redirect(_: *mut libc::ucontext_t, _: CoroutineTrapHandler<Crash>, _: Crash) -> bool {
    false
}
