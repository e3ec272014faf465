//! Interrupts and termination signals, which end a run after the current step.

use pellucid_tensor::Result;

#[cfg(feature = "signals")]
mod watched {
    use pellucid_tensor::{Error, Result};
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, LazyLock, Mutex, PoisonError};

    /// The process-wide signal handlers.
    struct Handlers {
        /// Whether a signal has arrived since the oldest active run began.
        arrived: Arc<AtomicBool>,
        /// Whether the next signal ends the process immediately.
        exits: Arc<AtomicBool>,
        /// The number of active runs.
        runs: Mutex<usize>,
    }

    static HANDLERS: LazyLock<std::result::Result<Handlers, String>> = LazyLock::new(|| {
        let handlers =
            Handlers { arrived: Arc::default(), exits: Arc::new(AtomicBool::new(true)), runs: Mutex::new(0) };
        for signal in [SIGINT, SIGTERM] {
            // Handlers run in the order of registration: the first signal sets the condition that the second signal
            // reads.
            flag::register_conditional_shutdown(signal, 128 + signal, handlers.exits.clone())
                .and_then(|_| flag::register(signal, handlers.exits.clone()))
                .and_then(|_| flag::register(signal, handlers.arrived.clone()))
                .map_err(|error| error.to_string())?;
        }
        Ok(handlers)
    });

    /// While this guard is alive, the first signal sets a flag and the second one exits the process.
    pub(super) struct ActiveRun(&'static Handlers);

    impl ActiveRun {
        pub(super) fn begin() -> Result<ActiveRun> {
            let failed = |reason: &String| Error::invalid("fit", format!("signals cannot be watched: {reason}"));
            let handlers = HANDLERS.as_ref().map_err(failed)?;
            let mut runs = handlers.runs.lock().unwrap_or_else(PoisonError::into_inner);
            if *runs == 0 {
                handlers.arrived.store(false, Ordering::SeqCst);
                handlers.exits.store(false, Ordering::SeqCst);
            }
            *runs += 1;
            Ok(ActiveRun(handlers))
        }

        pub(super) fn arrived(&self) -> bool {
            self.0.arrived.load(Ordering::Relaxed)
        }
    }

    impl Drop for ActiveRun {
        fn drop(&mut self) {
            let mut runs = self.0.runs.lock().unwrap_or_else(PoisonError::into_inner);
            *runs -= 1;
            if *runs == 0 {
                self.0.exits.store(true, Ordering::SeqCst);
            }
        }
    }
}

/// Watches for signals during a run. Without the feature `signals`, a signal ends the process immediately.
pub(super) struct TerminationSignals(#[cfg(feature = "signals")] watched::ActiveRun);

impl TerminationSignals {
    /// Begins to watch for signals.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if the system rejects handlers.
    pub(super) fn watch() -> Result<TerminationSignals> {
        Ok(TerminationSignals(
            #[cfg(feature = "signals")]
            watched::ActiveRun::begin()?,
        ))
    }

    /// Returns true after a signal.
    pub(super) fn arrived(&self) -> bool {
        #[cfg(feature = "signals")]
        return self.0.arrived();
        #[cfg(not(feature = "signals"))]
        false
    }
}
