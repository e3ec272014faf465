//! Append-only files of records.

use pellucid_io::replace_file;
use pellucid_tensor::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A file to which records are appended. Each record is written immediately, so a killed process loses no appended
/// record.
#[derive(Debug)]
pub(super) struct AppendFile {
    op: &'static str,
    path: PathBuf,
    file: File,
    /// The length of a regular file; `None` for a pipe or a device.
    len: Option<u64>,
}

impl AppendFile {
    /// Creates an empty file, or truncates an existing one.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub(super) fn create(op: &'static str, path: &Path) -> Result<AppendFile> {
        let file = AppendFile::open(op, path)?;
        if file.len.is_some_and(|len| len > 0) {
            file.file.set_len(0).map_err(|error| Error::unwritable_file(op, path, &error))?;
        }
        Ok(AppendFile { len: file.len.map(|_| 0), ..file })
    }

    /// Opens a file for appending. A missing file is created.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub(super) fn open(op: &'static str, path: &Path) -> Result<AppendFile> {
        let opened = OpenOptions::new().append(true).create(true).open(path);
        let opened = opened.and_then(|file| file.metadata().map(|kind| (file, kind)));
        let (file, kind) = opened.map_err(|error| Error::unwritable_file(op, path, &error))?;
        Ok(AppendFile { op, path: path.to_path_buf(), file, len: kind.is_file().then_some(kind.len()) })
    }

    /// Creates a new file. Returns `None` if the file exists.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    #[cfg(feature = "tensorboard")]
    pub(super) fn create_new(op: &'static str, path: &Path) -> Result<Option<AppendFile>> {
        match OpenOptions::new().append(true).create_new(true).open(path) {
            Ok(file) => Ok(Some(AppendFile { op, path: path.to_path_buf(), file, len: Some(0) })),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(Error::unwritable_file(op, path, &error)),
        }
    }

    /// Appends one record. On error, the file is truncated to its earlier length, so that it contains no partial
    /// record.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written, for example because the disk is full.
    pub(super) fn append(&mut self, record: &[u8]) -> Result<()> {
        if let Err(error) = self.file.write_all(record) {
            if let Some(len) = self.len {
                // The write has already failed. If truncation fails too, the file keeps a partial record.
                let _ = self.file.set_len(len);
            }
            return Err(Error::unwritable_file(self.op, &self.path, &error));
        }
        self.len = self.len.map(|len| len + record.len() as u64);
        Ok(())
    }

    /// Atomically replaces the contents with `change(contents)`.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read or written, or is not a regular file.
    pub(super) fn rewrite(&mut self, change: impl FnOnce(&str) -> String) -> Result<()> {
        if self.len.is_none() {
            let reason = "a pipe or a device cannot be rewritten for a new column: log all columns in the first row";
            return Err(Error::file(self.op, &self.path, reason));
        }
        let text = change(&read_text(self.op, &self.path)?.unwrap_or_default());
        replace(self.op, &self.path, &text)?;
        *self = AppendFile::open(self.op, &self.path)?;
        Ok(())
    }
}

/// The records that a resumed log already contains for the step it continues from. If a run is killed after it logs the
/// end of an epoch and before it saves its state, the resumed run logs the epoch again. The repeated records are
/// dropped.
#[derive(Debug, Default)]
pub(super) struct ResumedRecords {
    step: usize,
    /// The sorted value names of each record.
    names: Vec<Vec<String>>,
}

impl ResumedRecords {
    pub(super) fn new(step: usize) -> ResumedRecords {
        ResumedRecords { step, names: Vec::new() }
    }

    /// Adds a record read from the existing log; records of other steps are ignored.
    pub(super) fn note(&mut self, step: usize, names: impl Iterator<Item = String>) {
        if step == self.step {
            self.names.push(sorted(names));
        }
    }

    /// Returns true if the log already contains a record of this step with these names.
    pub(super) fn contains(&self, step: usize, names: impl Iterator<Item = String>) -> bool {
        step == self.step && !self.names.is_empty() && self.names.contains(&sorted(names))
    }
}

fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

/// Reads a text file. Returns `None` if it does not exist.
///
/// # Errors
/// [`Error::File`] if the file cannot be read or is not UTF-8.
pub(super) fn read_text(op: &'static str, path: &Path) -> Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => {
            String::from_utf8(bytes).map(Some).map_err(|_| Error::file(op, path, "the file is not UTF-8 text"))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::unreadable_file(op, path, &error)),
    }
}

/// Replaces a file atomically.
///
/// # Errors
/// [`Error::File`] if the file cannot be written.
pub(super) fn replace(op: &'static str, path: &Path, text: &str) -> Result<()> {
    replace_file(path, text.as_bytes()).map_err(|error| Error::unwritable_file(op, path, &error))
}

/// Opens a log that consists of lines, in order to continue it. `retain` returns the part of the contents to keep. An
/// incomplete last line, left by a killed process, is removed first. A missing file is created.
///
/// # Errors
/// [`Error::File`] if the file cannot be read or written; the errors of `retain`.
pub(super) fn resume(op: &'static str, path: &Path, retain: impl FnOnce(&str) -> Result<String>) -> Result<AppendFile> {
    let text = read_text(op, path)?.unwrap_or_default();
    let complete = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let retain = retain(complete)?;
    if retain != text {
        replace(op, path, &retain)?;
    }
    AppendFile::open(op, path)
}
