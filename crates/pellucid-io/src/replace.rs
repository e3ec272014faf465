//! Atomic replacement of files.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a file atomically: the bytes are written to a temporary file in the same directory, which is then renamed. A
/// symbolic link is followed, and an existing file keeps its permissions. Temporary files of killed writers of the same
/// file are removed. If the path names something other than a regular file, such as a pipe, it is written directly.
///
/// # Errors
/// The errors of the file system. The path then names the old file, unless it was written directly.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let target = resolve_links(path)?;
    let old = match fs::symlink_metadata(&target) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(old) = &old
        && !old.is_file()
    {
        if old.is_dir() {
            return Err(ErrorKind::IsADirectory.into());
        }
        return OpenOptions::new().write(true).open(&target)?.write_all(bytes);
    }
    let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
    remove_stale(&target, name);
    let temporary = TemporaryFile::new(&target, name, old.as_ref())?;
    (&temporary.file).write_all(bytes)?;
    if let Some(old) = &old {
        keep_owner(&temporary, old);
        temporary.file.set_permissions(old.permissions())?;
    }
    // The bytes must be on the disk before the name refers to them.
    temporary.file.sync_all()?;
    temporary.rename(&target)?;
    sync_directory(&target);
    Ok(())
}

/// Returns the directory that contains a file.
fn parent_directory(target: &Path) -> &Path {
    target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes the new name of a file to the disk. Errors are ignored, because the file is already replaced and some file
/// systems do not support this call.
#[cfg(unix)]
fn sync_directory(target: &Path) {
    let _ = File::open(parent_directory(target)).and_then(|directory| directory.sync_all());
}

#[cfg(not(unix))]
fn sync_directory(_: &Path) {}

/// Resolves all symbolic links at the end of a path. The target need not exist.
fn resolve_links(path: &Path) -> Result<PathBuf> {
    let mut target = path.to_path_buf();
    // Linux follows at most this many links.
    for _ in 0..40 {
        match fs::read_link(&target) {
            // A relative link is relative to the directory of the link.
            Ok(next) => target = target.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Ok(target),
        }
    }
    Err(Error::other("too many levels of symbolic links"))
}

/// A new file whose name starts with a dot. Its writer locks it, so that other processes can detect whether the writer
/// is alive. It is removed unless it is renamed.
struct TemporaryFile {
    file: File,
    path: PathBuf,
    is_renamed: bool,
}

const SUFFIX: &str = ".tmp";

impl TemporaryFile {
    fn new(target: &Path, name: &OsStr, old: Option<&Metadata>) -> Result<TemporaryFile> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let mut temporary_name = prefix(name);
            temporary_name.push(format!("{}-{}{SUFFIX}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
            let path = target.with_file_name(temporary_name);
            let file = match create_private(&path, old) {
                // A process with the same id left a file with this name. In containers, process ids often repeat.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                other => other?,
            };
            let temporary = TemporaryFile { file, path, is_renamed: false };
            // A file system without locks returns an error here: then no temporary file is considered stale.
            let _ = temporary.file.lock();
            // Another writer may have removed the new file as stale before the file was locked.
            if temporary.path.exists() {
                return Ok(temporary);
            }
        }
    }

    /// Renames the file to `target`, with the lock held.
    fn rename(mut self, target: &Path) -> Result<()> {
        fs::rename(&self.path, target)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.is_renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn prefix(name: &OsStr) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    prefix
}

/// Removes temporary files of this target whose writers have ended. The removal is optional, so errors are ignored.
fn remove_stale(target: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(parent_directory(target)) else { return };
    let prefix = prefix(name);
    for entry in entries.flatten() {
        if !is_temporary(&entry.file_name(), &prefix) || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(file) = OpenOptions::new().read(true).write(true).open(entry.path()) else { continue };
        match file.try_lock() {
            Ok(()) => _ = fs::remove_file(entry.path()),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
}

/// Returns true if a name consists of the prefix, two numbers and the suffix.
fn is_temporary(name: &OsStr, prefix: &OsStr) -> bool {
    let middle = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
    let Some(middle) = middle.and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes())) else { return false };
    let mut numbers = middle.split(|&byte| byte == b'-');
    let is_number = |part: Option<&[u8]>| part.is_some_and(|p| !p.is_empty() && p.iter().all(u8::is_ascii_digit));
    is_number(numbers.next()) && is_number(numbers.next()) && numbers.next().is_none()
}

/// Creates a file. If it replaces an old file, only the owner can access it until it gets the permissions of the old
/// file.
#[cfg(unix)]
fn create_private(path: &Path, old: Option<&Metadata>) -> Result<File> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let mode = old.map_or(0o666, |old| old.permissions().mode() & 0o600 | 0o200);
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

/// Creates a file with the default permissions.
#[cfg(not(unix))]
fn create_private(path: &Path, _: Option<&Metadata>) -> Result<File> {
    File::create_new(path)
}

/// Sets the owner of the file to the owner of the old file, if permitted.
#[cfg(unix)]
fn keep_owner(temporary: &TemporaryFile, old: &Metadata) {
    use std::os::unix::fs::{MetadataExt, fchown};
    let is_other = |metadata: Metadata| (metadata.uid(), metadata.gid()) != (old.uid(), old.gid());
    if temporary.file.metadata().is_ok_and(is_other) {
        let _ = fchown(&temporary.file, Some(old.uid()), Some(old.gid()));
    }
}

#[cfg(not(unix))]
fn keep_owner(_: &TemporaryFile, _: &Metadata) {}
