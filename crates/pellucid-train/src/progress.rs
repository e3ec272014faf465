//! Progress bars of training loops.

use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The shortest time between two messages of a bar, in milliseconds.
const MESSAGE_INTERVAL: u64 = 100;

/// A progress bar for one epoch on standard error. It is silent if standard error is not a terminal.
///
/// ```
/// use pellucid::train::Progress;
/// let progress = Progress::new("epoch 1", 100);
/// for step in 0..100 {
///     progress.advance(format_args!("loss {:.4}", 1.0 / (step + 1) as f64));
/// }
/// let took = progress.finish();
/// # let _ = took;
/// ```
#[doc(alias = "tqdm")]
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    start: Instant,
    /// The earliest time of the next message, in milliseconds after `start`.
    next_message: AtomicU64,
}

impl Progress {
    /// Creates a bar of `steps` steps, labelled `name`. It shows the remaining time.
    pub fn new(name: impl Into<String>, steps: usize) -> Progress {
        Progress::with_length(name, Some(steps))
    }

    /// Creates a bar for an unknown number of steps. It shows the rate.
    pub fn endless(name: impl Into<String>) -> Progress {
        Progress::with_length(name, None)
    }

    /// Creates a bar with a known or unknown number of steps.
    pub(crate) fn with_length(name: impl Into<String>, steps: Option<usize>) -> Progress {
        let template = match steps {
            Some(_) => "{prefix} [{bar:30}] {pos}/{len} {msg} ({per_sec}, {eta} left)",
            None => "{prefix} {pos} {msg} ({per_sec})",
        };
        let style = ProgressStyle::with_template(template);
        let style = style.expect("the template of the progress bar must be valid").progress_chars("=> ");
        let bar = match steps {
            Some(steps) => ProgressBar::new(steps as u64),
            None => ProgressBar::no_length(),
        };
        let bar = bar.with_style(style).with_prefix(name.into());
        Progress { bar, start: Instant::now(), next_message: AtomicU64::new(0) }
    }

    /// Returns this bar, advanced by `steps` steps, for a resumed epoch.
    pub fn at(self, steps: usize) -> Progress {
        self.bar.set_position(steps as u64);
        self.bar.reset_eta();
        self
    }

    /// Advances the bar by one step and sets its message. The message is formatted only if the bar is visible, and at
    /// most ten times a second, so its `Display` implementation may be expensive.
    pub fn advance(&self, message: impl std::fmt::Display) {
        let now = || self.start.elapsed().as_millis() as u64;
        if !self.bar.is_hidden() && now() >= self.next_message.load(Ordering::Relaxed) {
            self.bar.set_message(message.to_string());
            self.next_message.store(now() + MESSAGE_INTERVAL, Ordering::Relaxed);
        }
        self.bar.inc(1);
    }

    /// Advances the bar by one step without changing the message.
    pub fn advance_silently(&self) {
        self.bar.inc(1);
    }

    /// Prints a line above the bar.
    pub fn line(&self, text: impl std::fmt::Display) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    /// Removes the bar and returns the time since its creation.
    pub fn finish(self) -> Duration {
        self.bar.finish_and_clear();
        self.start.elapsed()
    }
}
