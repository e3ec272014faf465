//! The files of a run: the state after the last epoch, and the weights of the best one.

use pellucid_tensor::{Error, Result};
use std::fs;
use std::path::PathBuf;

/// The file of the state of the run.
const LAST: &str = "last.safetensors";

/// The file of the weights of the best epoch.
const BEST: &str = "best.safetensors";

/// Where a run reads and writes its state.
#[derive(Default)]
pub(super) struct RunFiles {
    pub(super) folder: Option<PathBuf>,
    /// The number of steps between two files within an epoch.
    pub(super) every: Option<u64>,
    /// The file or directory that the next run continues from, and whether it must exist.
    pub(super) resume: Option<(PathBuf, bool)>,
}

impl RunFiles {
    /// Creates the directory of the files.
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

    /// Returns the path of the state of the run.
    pub(super) fn last(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(LAST))
    }

    /// Returns the path of the weights of the best epoch.
    pub(super) fn best(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(BEST))
    }
}
