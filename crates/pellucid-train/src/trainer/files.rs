//! The files of a run: the state after the last epoch, and the weights of the best one.

use super::bound::RunParts;
use super::event::TrainingEvent;
use super::run::RunCore;
use pellucid_nn::Checkpoint;
use pellucid_tensor::{Error, Result};
use std::fs;
use std::path::PathBuf;

const LAST: &str = "last.safetensors";
const BEST: &str = "best.safetensors";

/// Where a run reads and writes its state.
#[derive(Default)]
pub(super) struct RunFiles {
    pub(super) folder: Option<PathBuf>,
    /// The number of steps between two files within an epoch.
    pub(super) every: Option<u64>,
    /// The file or folder that the next run continues from, and whether it must exist.
    pub(super) resume: Option<(PathBuf, bool)>,
}

impl RunFiles {
    /// Creates the folder of the files.
    pub(super) fn create_folder(&self) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        fs::create_dir_all(folder).map_err(|error| Error::unwritable_file("fit", folder, &error))
    }

    /// Returns the file from which the run continues, once.
    pub(super) fn take_resumed(&mut self) -> Option<PathBuf> {
        let (path, must_exist) = self.resume.take()?;
        let file = if path.is_dir() { path.join(LAST) } else { path };
        (must_exist || file.exists()).then_some(file)
    }
}

impl RunCore<'_> {
    /// Adds the parts of the run to those of its task and its loaders.
    pub(super) fn whole_checkpoint<'a>(
        &'a self,
        parts: Checkpoint<'a>,
        schedule_names: &'a [String],
    ) -> Checkpoint<'a> {
        let mut checkpoint = parts.part("run", &self.state).part("history", &self.history);
        for (name, schedule) in schedule_names.iter().zip(&self.schedules) {
            if let Some(scheduler) = &schedule.scheduler {
                checkpoint = checkpoint.part(name, scheduler);
            }
        }
        checkpoint.step(self.step())
    }

    pub(super) fn schedule_names(&self) -> Vec<String> {
        (0..self.schedules.len()).map(|index| format!("schedule_{index}")).collect()
    }

    /// Writes the state of the run.
    pub(super) fn save_last(&mut self, parts: &dyn RunParts) -> Result<()> {
        let Some(folder) = &self.files.folder else { return Ok(()) };
        let path = folder.join(LAST);
        let names = self.schedule_names();
        pellucid_io::save_checkpoint(&path, self.whole_checkpoint(parts.checkpoint(), &names))?;
        self.emit(TrainingEvent::Saved { path: &path }).map(drop)
    }

    /// Writes the weights of the best epoch.
    pub(super) fn save_best(&mut self, parts: &mut dyn RunParts) -> Result<()> {
        let Some(folder) = &self.files.folder else { return Ok(()) };
        let path = folder.join(BEST);
        parts.apply_averages()?;
        let saved = parts.weights().and_then(|weights| pellucid_io::save(&path, &weights));
        parts.restore_weights()?;
        saved?;
        self.emit(TrainingEvent::Saved { path: &path }).map(drop)
    }
}
