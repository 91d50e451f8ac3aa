//! A folder with git objects: loose ones as git keeps them, or the raw bytes that
//! `git cat-file commit|tree ID` prints, in files named by the id.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::object::object_id;
use crate::weights::values::GitId;

/// Largest object read. Trees of model repositories have a few kilobytes.
const MAX: u64 = 1 << 26;

/// Why a revision could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GitError {
    /// An object is not there.
    #[error(
        "the {kind} {id} is not in {dir} (hint: write it there with `git cat-file {kind} {id} > {id}`; packed objects are not read)"
    )]
    Missing {
        /// What it should be.
        kind: &'static str,
        /// Its id.
        id: GitId,
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// A file has another object's name.
    #[error("{path} is not the {kind} {id}: its bytes have another id (hint: get it again)")]
    OtherId {
        /// The file.
        path: PathBuf,
        /// What it should be.
        kind: &'static str,
        /// The id it should have.
        id: GitId,
    },
    /// An object has the right id but cannot be understood.
    #[error("the git object {id} cannot be read: {why}")]
    Malformed {
        /// Its id.
        id: GitId,
        /// What is wrong.
        why: String,
    },
    /// The system refused.
    #[error("could not read {path}: {source} (hint: check the path and that you may read it)")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// A folder with git objects.
#[derive(Debug, Clone)]
pub struct ObjectDir(PathBuf);

impl ObjectDir {
    /// Takes a folder of raw objects, an `objects` folder, a `.git` folder or a
    /// checkout.
    pub fn new(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    /// The body of an object, whose id was worked out from its bytes.
    pub(super) fn get(&self, id: GitId, kind: &'static str) -> Result<Vec<u8>, GitError> {
        let name = id.to_string();
        let (two, rest) = name.split_at(2);
        let loose = PathBuf::from(two).join(rest);
        let places = [
            PathBuf::from(&name),
            loose.clone(),
            Path::new("objects").join(&loose),
            Path::new(".git/objects").join(&loose),
        ];
        for place in places {
            let path = self.0.join(place);
            let stored = match read_bounded(&path) {
                Ok(stored) => stored,
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) =>
                {
                    continue;
                }
                Err(source) => return Err(GitError::Io { path, source }),
            };
            return body(stored, id, kind).ok_or(GitError::OtherId { path, kind, id });
        }
        let dir = self.0.clone();
        Err(GitError::Missing { kind, id, dir })
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() || meta.len() > MAX {
        return Err(io::Error::other("it is no file of a plausible size"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The object's body, if the stored bytes are it in any of the three forms:
/// body alone, with header, or compressed with header.
fn body(stored: Vec<u8>, id: GitId, kind: &str) -> Option<Vec<u8>> {
    if object_id(kind, &stored) == id {
        return Some(stored);
    }
    let inflated = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(&stored, MAX as usize);
    let with_header = inflated.unwrap_or(stored);
    let nul = with_header.iter().position(|b| *b == 0)?;
    let body = with_header[nul + 1..].to_vec();
    // The header is part of what the id commits to.
    let header = format!("{kind} {}", body.len());
    (with_header[..nul] == *header.as_bytes() && object_id(kind, &body) == id).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_stored_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(body(bytes, GitId([3; 20]), "tree"), None);
        }
    }
}
