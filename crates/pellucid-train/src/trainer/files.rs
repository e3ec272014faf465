//! The files of a run: the state after the last epoch, and the weights of the best epoch.

use pellucid_tensor::{Error, Result};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// The file name of the state of the run.
const LAST: &str = "last.safetensors";

/// The file name of the weights of the best epoch.
const BEST: &str = "best.safetensors";

/// The name of the file that a run locks while it uses its directory.
const LOCK: &str = "run.lock";

/// The files from which a run reads its state, and to which it writes its state.
#[derive(Default)]
pub(super) struct RunFiles {
    pub(super) folder: Option<PathBuf>,
    /// The number of steps between two saves within an epoch.
    pub(super) every: Option<usize>,
    /// The file or directory from which the next run resumes, and whether it must exist.
    pub(super) resume: Option<(PathBuf, bool)>,
    /// Whether this trainer has written files.
    pub(super) has_written: bool,
}

/// The lock of a run directory. It is released when it is dropped or the process ends.
///
/// The file is never removed: a process that has already opened the removed file would lock it, while another process
/// creates and locks a new file.
pub(super) struct DirectoryLock {
    file: File,
}

/// Unlocks explicitly: a child process that another thread has just started may hold a copy of the open file, which
/// would keep the lock.
impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Closing the file unlocks it as well.
        let _ = self.file.unlock();
    }
}

impl DirectoryLock {
    /// Locks a directory. Success implies that the directory is writable.
    fn acquire(directory: &Path) -> Result<DirectoryLock> {
        let path = directory.join(LOCK);
        let file = File::create(&path).map_err(|error| Error::unwritable_file("fit", &path, &error))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let reason = "another run uses this directory; wait for its end, or choose another directory";
                Err(Error::file("fit", directory, reason))
            }
            // Some file systems do not support locks. The directory is then used without a lock.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(DirectoryLock { file }),
        }
    }
}

impl RunFiles {
    /// Creates the directory of the files, and locks it for this run.
    pub(super) fn open_directory(&self) -> Result<Option<DirectoryLock>> {
        let Some(directory) = &self.folder else { return Ok(None) };
        if directory.exists() && !directory.is_dir() {
            return Err(Error::file("fit", directory, "the path is a file; checkpoints() requires a directory"));
        }
        fs::create_dir_all(directory).map_err(|error| Error::unwritable_file("fit", directory, &error))?;
        DirectoryLock::acquire(directory).map(Some)
    }

    /// Returns the directory if it contains the state of a run that this run does not continue.
    pub(super) fn replaced_directory(&self) -> Option<&Path> {
        let last = self.last()?;
        (!self.has_written && self.resume.is_none() && last.exists()).then_some(self.folder.as_deref()?)
    }

    /// Returns the file from which the run resumes. It remains set until it is loaded.
    pub(super) fn resumed_file(&self) -> Option<PathBuf> {
        let (path, must_exist) = self.resume.as_ref()?;
        let file = if path.is_dir() { path.join(LAST) } else { path.clone() };
        (*must_exist || file.exists()).then_some(file)
    }

    /// Returns an error that names `op` if the state to resume from is not loaded yet.
    pub(super) fn check_loaded(&self, op: &'static str) -> Result<()> {
        let Some(path) = self.resumed_file() else { return Ok(()) };
        let reason = format!(
            "the state of {} is loaded by fit(), which was not called; call fit() first, or load the weights with \
             io::load()",
            path.display()
        );
        Err(Error::invalid(op, reason))
    }

    /// Copies the weights of the best epoch from the directory of the resumed `file`, if this run writes to a different
    /// directory that does not contain such weights.
    pub(super) fn copy_best(&self, file: &Path) -> Result<()> {
        let (Some(own), from) = (self.best(), file.with_file_name(BEST)) else { return Ok(()) };
        if own.exists() || !from.exists() {
            return Ok(());
        }
        fs::copy(&from, &own).map(drop).map_err(|error| Error::unwritable_file("fit", &own, &error))
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
