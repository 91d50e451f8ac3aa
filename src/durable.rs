//! Durable writes: a reader sees the old file, or the whole new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::leftovers;

/// A write that did not happen. The destination is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The destination exists and overwriting was not asked for.
    #[error("{0} already exists and was left alone (hint: choose another path, or move it away)")]
    Exists(PathBuf),
    /// The destination is a device, a pipe, a link or a folder.
    #[error("{0} is no regular file and was left alone (hint: choose another path)")]
    NotAFile(PathBuf),
    /// The system refused.
    #[error("could not write {path}: {source} (hint: is there space, and is the folder writable?)")]
    Io {
        /// The destination.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Who may read the new file, and whether an old one may be replaced.
#[derive(Clone, Copy, Default)]
pub struct WriteOptions {
    /// Replace an existing file.
    pub replace: bool,
    /// Mode 0600 instead of 0644 (before umask).
    pub private: bool,
}

/// Writes `bytes` to `path`: temporary file in the same folder, fsync, rename
/// (or link, when nothing may be replaced), fsync of the folder.
pub fn write(path: &Path, bytes: &[u8], options: WriteOptions) -> Result<(), WriteError> {
    let io = |source| WriteError::Io {
        path: path.to_owned(),
        source,
    };
    let dir = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    match path.symlink_metadata() {
        Ok(_) if !options.replace => return Err(WriteError::Exists(path.to_owned())),
        // A rename would put a file in the place of what only looks like one.
        Ok(there) if !there.is_file() => return Err(WriteError::NotAFile(path.to_owned())),
        _ => {}
    }
    let mode = if options.private { 0o600 } else { 0o644 };
    let make = || {
        tempfile::Builder::new()
            .prefix(".tmp-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))
            .tempfile_in(dir)
    };
    let (mut temp, _entry) = leftovers::made(make, |t| t.path()).map_err(io)?;
    temp.write_all(bytes).map_err(io)?;
    temp.as_file().sync_all().map_err(io)?;
    if options.replace {
        temp.persist(path).map_err(|e| io(e.error))?;
    } else {
        temp.persist_noclobber(path).map_err(|e| {
            if e.error.kind() == io::ErrorKind::AlreadyExists {
                WriteError::Exists(path.to_owned())
            } else {
                io(e.error)
            }
        })?;
    }
    sync_dir(dir).map_err(io)
}

/// Flushes a folder's entries to disk, so that a rename in it survives a crash.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Creates a folder and its parents.
pub fn create_dir_all(dir: &Path) -> Result<(), WriteError> {
    fs::create_dir_all(dir).map_err(|source| WriteError::Io {
        path: dir.to_owned(),
        source,
    })
}

/// Opens a file that must not exist yet, for appending.
pub fn create_new(path: &Path) -> Result<File, WriteError> {
    OpenOptions::new()
        .append(true)
        .create_new(true)
        .open(path)
        .map_err(|source| {
            if source.kind() == io::ErrorKind::AlreadyExists {
                WriteError::Exists(path.to_owned())
            } else {
                WriteError::Io {
                    path: path.to_owned(),
                    source,
                }
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn nothing_is_replaced_unasked_and_secrets_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let private = WriteOptions {
            private: true,
            ..Default::default()
        };
        write(&path, b"one", private).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(matches!(
            write(&path, b"two", private),
            Err(WriteError::Exists(_))
        ));
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let replace = WriteOptions {
            replace: true,
            ..Default::default()
        };
        write(&path, b"two", replace).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(
            write(&link, b"three", replace),
            Err(WriteError::NotAFile(_))
        ));
        assert_eq!(fs::read(&path).unwrap(), b"two");
    }
}
