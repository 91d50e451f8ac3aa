//! The bundle's folder while it is being written.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use runseal::bundle::evidence::json_bytes;
use runseal::bundle::index::{RECORD_FILE, SALTS_FILE};
use runseal::digest::Sha256Digest;
use runseal::durable::{self, WriteError, WriteOptions};
use runseal::response::RunHeader;
use serde::Serialize;

/// A bundle in the making. Without `record.intoto.jsonl`, which is written last
/// and whole, it does not read as a record.
#[derive(Debug, Clone)]
pub struct BundleDir {
    /// The folder.
    pub path: PathBuf,
    /// The run.
    pub run_id: String,
    /// Hash of its nonce.
    pub nonce_hash: Sha256Digest,
}

impl BundleDir {
    /// Makes the folder, which must not exist.
    pub fn create(
        parent: &Path,
        run_id: &str,
        nonce_hash: Sha256Digest,
    ) -> Result<Self, WriteError> {
        durable::create_dir_all(parent)?;
        let path = parent.join(run_id);
        std::fs::create_dir(&path).map_err(|source| {
            if source.kind() == std::io::ErrorKind::AlreadyExists {
                WriteError::Exists(path.clone())
            } else {
                WriteError::Io {
                    path: path.clone(),
                    source,
                }
            }
        })?;
        durable::sync_dir(parent).map_err(|source| WriteError::Io {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            path,
            run_id: run_id.to_owned(),
            nonce_hash,
        })
    }

    /// Takes the lock that says "the run goes on", on the event log. The system
    /// lets it go when the returned file is dropped or the process ends.
    pub fn hold(&self) -> Result<File, WriteError> {
        let path = self.path.join("events.jsonl");
        let take = || -> std::io::Result<File> {
            let file = File::options().append(true).open(&path)?;
            match file.try_lock() {
                Ok(()) => Ok(file),
                Err(TryLockError::WouldBlock) => Err(std::io::Error::other(
                    "a process is writing it: the run still goes on",
                )),
                Err(TryLockError::Error(e)) => Err(e),
            }
        };
        take().map_err(|source| WriteError::Io {
            path: path.clone(),
            source,
        })
    }

    /// Writes a file of the bundle, replacing an earlier state of it.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), WriteError> {
        self.put(name, bytes, false)
    }

    /// Writes a JSON document in its one byte form.
    pub fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), WriteError> {
        self.write(name, &json_bytes(value))
    }

    /// Writes the salts of the commitments, for nobody but the operator.
    pub fn write_salts(&self, salts: &BTreeMap<String, [u8; 32]>) -> Result<(), WriteError> {
        let text: BTreeMap<&String, String> =
            salts.iter().map(|(k, v)| (k, hex::encode(v))).collect();
        self.put(SALTS_FILE, &json_bytes(&text), true)
    }

    fn put(&self, name: &str, bytes: &[u8], private: bool) -> Result<(), WriteError> {
        let path = self.path.join(name);
        if let Some(parent) = path.parent() {
            durable::create_dir_all(parent)?;
        }
        let options = WriteOptions {
            replace: true,
            private,
        };
        durable::write(&path, bytes, options)
    }

    /// First line of a JSON Lines file of this run.
    pub fn header(&self, format: &str) -> RunHeader {
        RunHeader {
            format: format.to_owned(),
            run_id: self.run_id.clone(),
            nonce_hash: self.nonce_hash,
        }
    }

    /// True once the record is there: nothing may be changed any more.
    pub fn sealed(&self) -> bool {
        self.path.join(RECORD_FILE).exists()
    }
}
