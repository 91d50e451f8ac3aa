//! What lies in the folder, against what is expected of each file.

use std::collections::BTreeMap;

use super::listing::{Expected, Listing};
use crate::codes::Code;
use crate::digest::{Sha256Digest, tree_root};
use crate::finding::Finding;
use crate::relpath::RelPath;
use crate::weights::{FileReport, Followed, Kind, PieceFile, ProblemKind, follow};

const OUTSIDE: &str = "a symbolic link out of the folder, or in a circle; it was not followed";

/// What is wrong with a link of a snapshot that leads to no plain file among the
/// blobs of its cache. Those that do were replaced by the file when they were listed.
fn broken_link_of_a_cache(file: &PieceFile) -> Option<(Code, String)> {
    let entry = &file.entry;
    entry.blob.as_ref()?;
    match (&entry.problem, entry.kind) {
        (Some(problem), _) if problem.kind == ProblemKind::Dangling => {
            Some((Code::LinkDangling, problem.detail.clone()))
        }
        (Some(problem), Kind::Symlink) => Some((Code::CouldNotRead, problem.detail.clone())),
        (None, Kind::Symlink) => Some((
            Code::SymlinkEscapes,
            "the blob it leads to is itself a symbolic link; it was not followed".to_owned(),
        )),
        _ => None,
    }
}

/// What was found in the folder, by name.
pub(super) struct FolderView<'a> {
    entries: BTreeMap<String, &'a PieceFile>,
    follow: bool,
    shards: bool,
}

pub(super) enum Link<'a> {
    To(&'a PieceFile),
    Nowhere,
    Outside,
}

impl<'a> FolderView<'a> {
    pub(super) fn new(found: &'a [PieceFile], follow: bool, shards: bool) -> Self {
        Self {
            entries: found
                .iter()
                .map(|f| (f.entry.path.to_string(), f))
                .collect(),
            follow,
            shards,
        }
    }

    /// The size of a file that is as listed.
    pub(super) fn compare(&self, path: &RelPath, expected: &Expected) -> Result<u64, Finding> {
        let finding = |code, why: &str| Finding::new(code, path.to_string(), why);
        let Some(mut file) = self.entries.get(&path.to_string()).copied() else {
            return Err(self.missing(path));
        };
        if let Some((code, why)) = broken_link_of_a_cache(file) {
            return Err(finding(code, &why));
        }
        if file.entry.kind == Kind::Symlink {
            file = match self.destination(&path.to_string()) {
                Link::Outside => return Err(finding(Code::SymlinkEscapes, OUTSIDE)),
                _ if !self.follow => {
                    let why = "a symbolic link stands where a file was signed";
                    return Err(finding(Code::SymlinkInFlatFolder, why));
                }
                Link::Nowhere => {
                    return Err(finding(Code::FileMissing, "a symbolic link to nothing"));
                }
                Link::To(file) => file,
            };
        }
        if file.entry.kind != Kind::File {
            let why = format!("a {} stands where a file was signed", file.entry.kind);
            return Err(finding(Code::FileType, &why));
        }
        if let Some(problem) = &file.entry.problem {
            let code = match problem.kind {
                ProblemKind::ChangedDuringRead => Code::ChangedDuringRead,
                _ => Code::CouldNotRead,
            };
            return Err(finding(code, &problem.detail));
        }
        let (Some(stat), Some(digests)) = (file.entry.stat, &file.digests) else {
            return Err(finding(Code::CouldNotRead, "it was not read"));
        };
        if let Some(size) = expected.size.filter(|s| *s != stat.size) {
            return Err(
                finding(Code::SizeMismatch, "it is not as long as its shards")
                    .values(size, stat.size),
            );
        }
        if *digests == expected.digests {
            return Ok(stat.size);
        }
        let pairs = expected.digests.iter().zip(digests).enumerate();
        let differs = pairs.into_iter().find(|(_, (a, b))| a != b);
        Err(match differs {
            Some((i, (want, have))) => {
                let why = match self.shards {
                    true => format!("shard {} of {} differs", i + 1, expected.digests.len()),
                    false => "its bytes are not those that were signed".to_owned(),
                };
                finding(Code::DigestMismatch, &why).values(hex::encode(want), hex::encode(have))
            }
            None => finding(Code::DigestMismatch, "it has another number of shards"),
        })
    }

    fn missing(&self, path: &RelPath) -> Finding {
        let text = path.to_string();
        let closed = text.match_indices('/').find_map(|(end, _)| {
            let folder = self.entries.get(&text[..end])?;
            folder.entry.problem.as_ref()
        });
        match closed {
            Some(problem) => {
                let why = format!("its folder could not be read: {}", problem.detail);
                Finding::new(Code::CouldNotRead, text, why)
            }
            None => Finding::new(Code::FileMissing, text, "it is not there"),
        }
    }

    pub(super) fn unlisted(&self, file: &PieceFile) -> Finding {
        let entry = &file.entry;
        let (code, why) = match entry.kind {
            _ if broken_link_of_a_cache(file).is_some() => (
                Code::FileExtra,
                "a link in the cache that the bundle does not list".to_owned(),
            ),
            Kind::File if self.shards && entry.stat.is_some_and(|s| s.size == 0) => (
                Code::OmsEmptyFile,
                "it is empty, and a signature by shards cannot list it".to_owned(),
            ),
            Kind::File => (Code::FileExtra, "the bundle does not list it".to_owned()),
            Kind::Symlink => match self.destination(&entry.path.to_string()) {
                Link::Outside => (Code::SymlinkEscapes, OUTSIDE.to_owned()),
                _ => (
                    Code::FileExtra,
                    "a symbolic link that the bundle does not list".to_owned(),
                ),
            },
            Kind::Folder | Kind::Unknown => {
                let problem = entry.problem.as_ref().map(|p| p.detail.clone());
                (
                    Code::CouldNotRead,
                    problem.unwrap_or_else(|| "it could not be looked at".to_owned()),
                )
            }
            other => (
                Code::FileType,
                format!("a {other} that the bundle does not list"),
            ),
        };
        Finding::new(code, entry.path.to_string(), why)
    }

    /// Where a link leads: nothing is opened.
    pub(super) fn destination(&self, link: &str) -> Link<'a> {
        let target_of = |path: &str| self.entries.get(path)?.entry.target.as_deref();
        match follow(link, target_of) {
            Some(Followed::To(path)) => match self.entries.get(&path) {
                Some(file) => Link::To(file),
                None => Link::Nowhere,
            },
            // A circle leads nowhere inside.
            Some(Followed::Circle) | None => Link::Outside,
        }
    }

    /// The entries as a reader finds them who follows the links that may be followed,
    /// and where such links lead.
    pub(super) fn followed<'f>(
        &self,
        files: impl Iterator<Item = &'f PieceFile>,
    ) -> (Vec<FileReport>, BTreeMap<RelPath, RelPath>) {
        let mut out = Vec::new();
        let mut links = BTreeMap::new();
        for file in files {
            let entry = &file.entry;
            let link = self.follow && entry.kind == Kind::Symlink && entry.blob.is_none();
            match link.then(|| self.destination(&entry.path.to_string())) {
                Some(Link::To(target)) => {
                    let (path, there) = (entry.path.clone(), target.entry.path.clone());
                    links.insert(path.clone(), there);
                    out.push(FileReport {
                        path,
                        ..target.entry.clone()
                    });
                }
                _ => out.push(entry.clone()),
            }
        }
        (out, links)
    }

    /// The identity of the listed files, all of which match.
    pub(super) fn tree_root(&self, listing: &Listing) -> Option<Sha256Digest> {
        let entries: Option<Vec<_>> = listing
            .files
            .iter()
            .map(|(path, expected)| {
                let mut file = *self.entries.get(&path.to_string())?;
                if file.entry.kind == Kind::Symlink {
                    file = match self.destination(&path.to_string()) {
                        Link::To(file) => file,
                        _ => return None,
                    };
                }
                let digest = Sha256Digest(*expected.digests.first()?);
                Some((path, file.entry.stat?.size, digest))
            })
            .collect();
        entries.map(tree_root)
    }
}
