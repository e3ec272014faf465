//! What a training loop shows while it runs.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// A progress bar for one epoch, on standard error; silent where that is no terminal.
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
pub struct Progress {
    bar: ProgressBar,
    start: Instant,
}

impl Progress {
    /// A bar of `steps` steps, with a name before it.
    pub fn new(name: impl Into<String>, steps: usize) -> Progress {
        let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {msg}");
        let style = style.expect("a constant template").progress_chars("=> ");
        let bar = ProgressBar::new(steps as u64).with_style(style).with_prefix(name.into());
        Progress { bar, start: Instant::now() }
    }

    /// One step further, with a message behind the bar.
    pub fn advance(&self, message: impl std::fmt::Display) {
        // The text is made only where somebody sees it.
        if !self.bar.is_hidden() {
            self.bar.set_message(message.to_string());
        }
        self.bar.inc(1);
    }

    /// Takes the bar away; says how long it was there.
    pub fn finish(self) -> Duration {
        self.bar.finish_and_clear();
        self.start.elapsed()
    }
}
