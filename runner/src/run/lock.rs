//! One run at a time per working folder: an advisory lock that the system lets
//! go when the process ends, however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::facts;

/// The lock's file. It stays: removing it would let two runs lock two files of
/// one name.
pub const FILE: &str = ".attest.lock";

/// The folder cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another run works in it.
    #[error(
        "another run works in {folder}: {owner} (hint: wait for its end, or start this one in another folder)"
    )]
    Held {
        /// The folder.
        folder: PathBuf,
        /// Which process, since when.
        owner: String,
    },
    /// The system refused.
    #[error(
        "could not lock the working folder with {path}: {source} (hint: is the folder there, and on a file system with locks?)"
    )]
    Io {
        /// The lock's file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Held while it lives.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

#[derive(Serialize, Deserialize)]
struct Owner {
    pid: u32,
    started: String,
}

impl FolderLock {
    /// Takes the lock of `folder`, or says who has it.
    pub fn take(folder: &Path) -> Result<Self, LockError> {
        let path = folder.join(FILE);
        let io = |source| LockError::Io {
            path: path.clone(),
            source,
        };
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let mut file = match opened {
            Ok(file) => file,
            // In a folder that cannot be written the folder itself is locked.
            Err(e) if cannot_write(&e) => File::open(folder).map_err(io)?,
            Err(e) => return Err(io(e)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::Held {
                    folder: shown(folder),
                    owner: owner(&path),
                });
            }
            Err(TryLockError::Error(e)) => return Err(io(e)),
        }
        let me = Owner {
            pid: std::process::id(),
            started: facts::now_text(),
        };
        // For people only; the lock holds without it.
        let _ = file.set_len(0).and_then(|()| {
            let text = serde_json::to_string(&me).unwrap_or_default();
            writeln!(file, "{text}")
        });
        Ok(Self { _file: file })
    }
}

fn cannot_write(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

fn shown(folder: &Path) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned())
}

fn owner(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|f| f.take(4096).read_to_string(&mut text));
    let known = read
        .ok()
        .and_then(|_| serde_json::from_str::<Owner>(&text).ok());
    match known {
        None => "its process is not known".into(),
        Some(o) => match o.started.parse::<jiff::Timestamp>() {
            Ok(t) => {
                let age = jiff::Timestamp::now().duration_since(t).as_secs().max(0);
                format!("process {}, started {} ({age} s ago)", o.pid, o.started)
            }
            Err(_) => format!("process {}", o.pid),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_has_it_and_the_third_gets_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = FolderLock::take(dir.path()).unwrap();
        let text = FolderLock::take(dir.path()).unwrap_err().to_string();
        let mine = format!("process {}, started 20", std::process::id());
        assert!(text.contains(&mine) && text.contains("s ago"), "{text}");
        drop(first);
        FolderLock::take(dir.path()).unwrap();
    }
}
