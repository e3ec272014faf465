//! Terminal output of a run: lines and a progress bar on standard error.

use super::scores::Scores;
use super::train_metrics::TrainMetrics;

/// Reports a run: a progress bar if standard error is a terminal, and a line for each epoch.
pub(super) struct RunReport {
    is_quiet: bool,
    #[cfg(feature = "progress")]
    bar: Option<crate::Progress>,
}

impl RunReport {
    pub(super) fn new(is_quiet: bool) -> RunReport {
        RunReport {
            is_quiet,
            #[cfg(feature = "progress")]
            bar: None,
        }
    }

    /// Prints a line, unless the run is quiet.
    pub(super) fn line(&self, text: std::fmt::Arguments<'_>) {
        if self.is_quiet {
            return;
        }
        #[cfg(feature = "progress")]
        if let Some(bar) = &self.bar {
            return bar.line(text);
        }
        eprintln!("{text}");
    }

    /// Begins an epoch of which `done` steps are already complete. `steps` is `None` if the number is unknown.
    pub(super) fn begin_epoch(&mut self, epoch: usize, steps: Option<usize>, done: usize) {
        #[cfg(feature = "progress")]
        if !self.is_quiet {
            self.bar = Some(crate::Progress::with_length(format!("epoch {epoch}"), steps).at(done));
        }
        let _ = (epoch, steps, done);
    }

    /// Shows a step with the running values of the training metrics.
    pub(super) fn step(&self, scalars: &[(&'static str, f64)], metrics: &TrainMetrics<'_>) {
        #[cfg(feature = "progress")]
        if let Some(bar) = &self.bar {
            // If the values of the step were not read, the earlier values remain.
            if scalars.is_empty() {
                return bar.advance_silently();
            }
            bar.advance(StepMessage { scalars, metrics });
        }
        let _ = (scalars, metrics);
    }

    /// Removes the bar of the epoch.
    pub(super) fn end_steps(&mut self) {
        #[cfg(feature = "progress")]
        if let Some(bar) = self.bar.take() {
            bar.finish();
        }
    }

    /// Prints the values of an epoch.
    pub(super) fn end_epoch(&self, epoch: usize, epochs: Option<usize>, scores: &Scores) {
        match epochs {
            Some(epochs) => self.line(format_args!("epoch {epoch}/{epochs}: {scores}")),
            None => self.line(format_args!("epoch {epoch}: {scores}")),
        }
    }
}

/// The message of a progress bar, which computes the metrics when it is formatted.
#[cfg(feature = "progress")]
struct StepMessage<'a, 'f> {
    scalars: &'a [(&'static str, f64)],
    metrics: &'a TrainMetrics<'f>,
}

#[cfg(feature = "progress")]
impl std::fmt::Display for StepMessage<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", super::scores::ShortList(self.scalars))?;
        // An error of a metric is omitted here; it is reported at the end of the epoch.
        match self.metrics.scores() {
            Ok(scores) if scores.iter().next().is_some() => write!(f, ", {scores}"),
            _ => Ok(()),
        }
    }
}
