//! Constructors of file errors that suggest a correction.

use super::Error;
use std::io::{self, ErrorKind};
use std::path::Path;

impl Error {
    /// Creates an [`Error::File`] for a file with invalid contents.
    #[cold]
    pub fn file(op: &'static str, path: &Path, reason: impl Into<String>) -> Error {
        Error::File { op, path: path.display().to_string(), reason: reason.into() }
    }

    /// Creates an [`Error::File`] for a file that cannot be read.
    #[cold]
    pub fn unreadable_file(op: &'static str, path: &Path, error: &io::Error) -> Error {
        Error::file(op, path, reason_of(path, error, "the file does not exist: check the path"))
    }

    /// Creates an [`Error::File`] for a file that cannot be written. The error "not found" then refers to the directory
    /// of the file.
    #[cold]
    pub fn unwritable_file(op: &'static str, path: &Path, error: &io::Error) -> Error {
        Error::file(op, path, reason_of(path, error, "the directory does not exist: create it"))
    }
}

/// Describes an error of the file system, with a correction. `not_found` is the description of a path that does not
/// exist.
fn reason_of(path: &Path, error: &io::Error, not_found: &str) -> String {
    match error.kind() {
        _ if path.file_name().is_none() => "the path has no file name: add one".to_string(),
        // A relative path usually fails because the program runs in a different directory than expected.
        ErrorKind::NotFound => match std::env::current_dir() {
            Ok(current) if path.is_relative() => format!("{not_found}; the current directory is {}", current.display()),
            _ => not_found.to_string(),
        },
        ErrorKind::IsADirectory => "the path is a directory: add a file name".to_string(),
        ErrorKind::PermissionDenied => format!("{error}: change the permissions, or use another path"),
        ErrorKind::StorageFull => format!("{error}: delete files, or use another disk"),
        _ => error.to_string(),
    }
}
