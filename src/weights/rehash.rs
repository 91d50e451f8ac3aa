//! Rehashing replicas.
//!
//! All folders are listed first, then the regular files of all of them are hashed
//! together ([`super::hashing`]), and then each folder's structure is looked at.
//!
//! Files that cannot match anyway (unlisted, or of another size) are hashed too,
//! because it matters which replicas share them, but only within a budget: a sparse
//! file can claim to be larger than anyone can read.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::claims;
use super::hashing::{Batch, Cut, GitBlob, Hashed, Job, Pace, Reading, hash_batches, lock};
use super::layout::{Layout, LocateError, Place, Wanted};
use super::manifest::{Listing, covers};
use super::pieces::PieceDigests;
use super::report::{FileReport, FileStat, Kind, Problem, ProblemKind, RootIdentity};
use super::since::{self, Since};
use super::structure::{self, Structure};
use super::values::{Algorithm, GitId};
use crate::relpath::RelPath;

/// Bytes of files that cannot match which are read beyond the manifest's own size.
const SPARE: u64 = 1 << 30;

/// Hears how far a rehash is. Called from several threads.
pub trait Progress: Sync {
    /// This many bytes in this many files are going to be read.
    fn planned(&self, files: usize, bytes: u64);
    /// So many more bytes of a file were read and hashed.
    fn read(&self, path: &RelPath, bytes: u64);
}

/// Nobody listens.
pub struct NoProgress;

impl Progress for NoProgress {
    fn planned(&self, _: usize, _: u64) {}
    fn read(&self, _: &RelPath, _: u64) {}
}

/// What was found in a folder: facts without a judgement (every state in `files`
/// is still "not checked").
#[derive(Debug, Clone)]
pub struct ReplicaScan {
    /// Which digests were computed.
    pub algorithm: Algorithm,
    /// The folder itself.
    pub root_identity: RootIdentity,
    /// How the checkpoint lies in it.
    pub layout: Layout,
    /// What the weight files say about themselves.
    pub structure: Structure,
    /// How the files were read, and what that did to the page cache.
    pub reading: Reading,
    /// Paths that were not looked into, because they are not part of the checkpoint.
    pub ignore: BTreeSet<RelPath>,
    /// The folders below it, and whether each is empty.
    pub folders: BTreeMap<RelPath, bool>,
    /// Everything in it, in byte order of the paths.
    pub files: Vec<FileReport>,
}

/// The folder could not be opened or listed at all, or no snapshot in it could be
/// settled on.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Unreachable(#[from] pub LocateError);

impl From<io::Error> for Unreachable {
    fn from(e: io::Error) -> Self {
        Self(e.into())
    }
}

/// What is done beside hashing everything.
#[derive(Debug, Clone, Default)]
pub struct What {
    /// Paths that are not looked into, each for itself and all below it.
    pub ignore: BTreeSet<RelPath>,
    /// Git blob ids that files have to be compared with; where a git-lfs pointer
    /// does not explain the id, the content's is worked out.
    pub git_blobs: BTreeMap<RelPath, GitId>,
}

/// Where a replica lies.
pub enum At<'a> {
    /// To be looked for there.
    Path(&'a Path, Wanted<'a>),
    /// Found already.
    Place(Box<Place>),
}

/// One replica to look at.
pub struct Request<'a> {
    /// Where.
    pub at: At<'a>,
    /// What it should hold; without one, whatever is there is hashed.
    pub manifest: Option<&'a Listing>,
    /// What else is done.
    pub what: What,
    /// Which digests to compute.
    pub algorithm: Algorithm,
    /// An earlier report: files that have not moved since are left out. Those are
    /// "not re-read", never verified.
    pub since: Option<Since<'a>>,
    /// Hears how far it is.
    pub progress: &'a dyn Progress,
}

impl<'a> Request<'a> {
    /// To compare with `manifest`: what it ignores is ignored, and what its entries
    /// need is computed.
    pub fn compare(
        at: At<'a>,
        manifest: &'a Listing,
        algorithm: Algorithm,
        progress: &'a dyn Progress,
    ) -> Self {
        let ids = manifest
            .entries()
            .filter_map(|e| Some((e.path.clone(), e.git_blob?)));
        Self {
            at,
            manifest: Some(manifest),
            what: What {
                ignore: manifest.ignore().clone(),
                git_blobs: ids.collect(),
            },
            algorithm: manifest.needs(algorithm),
            since: None,
            progress,
        }
    }
}

/// Rehashes one replica of the checkpoint that `manifest` describes.
pub fn rehash(
    root: &Path,
    manifest: &impl AsRef<Listing>,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    let manifest = manifest.as_ref();
    let wanted = Wanted {
        asked: None,
        pinned: manifest.revision(),
    };
    let at = At::Path(root, wanted);
    scan(Request::compare(at, manifest, algorithm, progress))
}

/// Rehashes a replica that was found already.
pub fn rehash_place(
    place: Place,
    manifest: &impl AsRef<Listing>,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    let at = At::Place(Box::new(place));
    scan(Request::compare(at, manifest.as_ref(), algorithm, progress))
}

/// Hashes whatever a folder holds, for pinning.
pub fn scan_folder(
    root: &Path,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    let place = Place::locate(root, Wanted::default())?;
    scan_place(place, What::default(), algorithm, progress)
}

/// Hashes what a replica that was found holds, for pinning.
pub fn scan_place(
    place: Place,
    what: What,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    scan(Request {
        at: At::Place(Box::new(place)),
        manifest: None,
        what,
        algorithm,
        since: None,
        progress,
    })
}

fn scan(request: Request<'_>) -> Result<ReplicaScan, Unreachable> {
    let mut scans = rehash_each(vec![request], Pace::default(), |_, scan| scan);
    // One request, one answer.
    scans.remove(0)
}

/// Rehashes several replicas at once. All their files share one queue, so every
/// core is busy until the last of them is done, however few files a folder has.
///
/// `finish` turns each replica's scan into the result, with the request's index. It
/// is called as soon as the replica's last file was hashed, on whichever thread did.
/// The results come in the order of the requests.
pub fn rehash_each<R: Send>(
    requests: Vec<Request<'_>>,
    pace: Pace,
    finish: impl Fn(usize, Result<ReplicaScan, Unreachable>) -> R + Sync,
) -> Vec<R> {
    let results: Vec<Mutex<Option<R>>> = requests.iter().map(|_| Mutex::new(None)).collect();
    let answer = |index: usize, scan| *lock(&results[index]) = Some(finish(index, scan));

    let mut listed = Vec::new();
    for (index, listing) in list_all(requests).into_iter().enumerate() {
        match listing {
            Ok(replica) => listed.push((index, replica)),
            Err(e) => answer(index, Err(e)),
        }
    }
    let openers: Vec<_> = listed
        .iter()
        .map(|(_, replica)| |path: &RelPath| replica.place.open_file(path))
        .collect();
    let batches = listed
        .iter()
        .zip(&openers)
        .map(|((_, replica), open)| Batch {
            open,
            algorithm: Some(replica.algorithm),
            progress: replica.progress,
            files: replica.jobs(),
        });
    hash_batches(batches.collect(), pace, &|batch, hashed| {
        let (index, replica) = &listed[batch];
        answer(*index, Ok(replica.finish(hashed)));
    });
    // Every request was answered: it could not be listed, or its files were hashed.
    let answered =
        |slot: Mutex<Option<R>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().filter_map(answered).collect()
}

/// A replica that was listed.
struct Listed<'a> {
    place: Place,
    manifest: Option<&'a Listing>,
    what: What,
    algorithm: Algorithm,
    progress: &'a dyn Progress,
    folders: BTreeMap<RelPath, bool>,
    files: Mutex<Vec<FileReport>>,
}

impl<'a> Listed<'a> {
    fn new(request: Request<'a>) -> Result<Self, Unreachable> {
        let mut place = match request.at {
            At::Path(root, wanted) => Place::locate(root, wanted)?,
            At::Place(place) => *place,
        };
        let (manifest, what) = (request.manifest, request.what);
        let mut files = place.list(&what.ignore)?;
        let folders = folders(&files);
        files.retain(|f| {
            let wanted_here = manifest.is_some_and(|m| m.get(&f.path).is_some());
            let declared = what.ignore.contains(&f.path);
            f.kind != Kind::Folder || f.problem.is_some() || wanted_here || declared
        });
        if let Some(manifest) = manifest.filter(|m| !m.is_absent()) {
            spend_budget(&mut files, manifest);
            if let Some(since) = request.since {
                since::mark(&mut files, manifest, since);
            }
        }
        Ok(Self {
            place,
            manifest,
            what,
            algorithm: request.algorithm,
            progress: request.progress,
            folders,
            files: Mutex::new(files),
        })
    }

    /// The files to hash, in order.
    fn to_hash<'f>(
        &self,
        files: &'f mut [FileReport],
    ) -> impl Iterator<Item = (&'f mut FileReport, FileStat)> {
        files
            .iter_mut()
            .filter(|f| f.kind == Kind::File && f.problem.is_none())
            .filter(|f| !covers(&self.what.ignore, &f.path))
            .filter_map(|f| f.stat.map(|stat| (f, stat)))
    }

    fn jobs(&self) -> Vec<Job> {
        let job = |(file, listed): (&mut FileReport, FileStat)| Job {
            path: file.path.clone(),
            listed,
            git_blob: self.git_blob(file),
            cut: self.cut(&file.path, listed).map(|p| Cut {
                hash: p.hash,
                length: Some(p.length),
            }),
        };
        self.to_hash(&mut lock(&self.files)).map(job).collect()
    }

    /// How the manifest lists a file in pieces. Only where the length is right is it
    /// known how many there are.
    fn cut(&self, path: &RelPath, listed: FileStat) -> Option<&'a PieceDigests> {
        let entry = self.manifest?.get(path)?;
        let entry = (entry.size == Some(listed.size)).then_some(entry)?;
        entry.pieces.as_ref()
    }

    /// Whether the git blob id has to be worked out. Large files are known to git by
    /// their git-lfs pointer, which follows from the SHA-256.
    fn git_blob(&self, file: &FileReport) -> GitBlob {
        if claims::needs_git_blob(file, self.place.layout()) {
            return GitBlob::Needed;
        }
        let id = self.what.git_blobs.get(&file.path);
        id.map_or(GitBlob::NotNeeded, |id| GitBlob::UnlessPointer(*id))
    }

    /// Puts what hashing found where it belongs, and looks at the structure.
    fn finish(&self, hashed: Hashed) -> ReplicaScan {
        let mut files = std::mem::take(&mut *lock(&self.files));
        for ((file, listed), outcome) in self.to_hash(&mut files).zip(hashed.outcomes) {
            match outcome {
                Ok(d) => {
                    (file.sha256, file.blake3, file.git_blob) = (d.sha256, d.blake3, d.git_blob);
                    let cut = self.cut(&file.path, listed);
                    file.pieces = cut
                        .zip(d.pieces)
                        .map(|(c, p)| PieceDigests::new(c.hash, c.length, &p));
                }
                Err(problem) => file.problem = Some(problem),
            }
        }
        let ignore = &self.what.ignore;
        let ours = files.iter().filter(|f| !covers(ignore, &f.path));
        let ours: Vec<_> = ours.collect();
        ReplicaScan {
            algorithm: self.algorithm,
            root_identity: self.place.identity(),
            layout: self.place.layout().clone(),
            structure: structure::inspect(&ours, &|path| self.place.open_file(path)),
            reading: hashed.reading,
            ignore: ignore.clone(),
            folders: self.folders.clone(),
            files,
        }
    }
}

/// Lists the folders side by side: one may be on a slow disk.
fn list_all(requests: Vec<Request<'_>>) -> Vec<Result<Listed<'_>, Unreachable>> {
    thread::scope(|scope| {
        let mut requests = requests.into_iter();
        let first = requests.next();
        let others: Vec<_> = requests
            .map(|request| scope.spawn(|| Listed::new(request)))
            .collect();
        let first = first.map(Listed::new);
        let others = others.into_iter().map(|thread| match thread.join() {
            Ok(listing) => listing,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        first.into_iter().chain(others).collect()
    })
}

/// The folders in a list that is in byte order of the paths, and whether nothing
/// is in them. One that could not be read is not called empty.
fn folders(files: &[FileReport]) -> BTreeMap<RelPath, bool> {
    let mut out = BTreeMap::new();
    for file in files {
        if file.kind == Kind::Folder {
            out.insert(file.path.clone(), file.problem.is_none());
        }
        let path = file.path.as_bytes();
        for (end, _) in path.iter().enumerate().filter(|(_, b)| **b == b'/') {
            if let Ok(above) = RelPath::from_bytes(&path[..end]) {
                out.insert(above, false);
            }
        }
    }
    out
}

fn spend_budget(files: &mut [FileReport], manifest: &Listing) {
    let mut left = manifest.total_size().saturating_add(SPARE);
    for file in files.iter_mut().filter(|f| f.kind == Kind::File) {
        let Some(size) = file.stat.map(|s| s.size) else {
            continue;
        };
        let may_match = |size_listed: Option<u64>| size_listed.is_none_or(|s| s == size);
        if manifest.get(&file.path).is_some_and(|m| may_match(m.size)) {
            continue;
        }
        match left.checked_sub(size) {
            Some(rest) => left = rest,
            None => {
                file.problem = Some(Problem {
                    kind: ProblemKind::TooLarge,
                    detail: format!("{size} bytes that the manifest does not expect were not read"),
                });
            }
        }
    }
}
