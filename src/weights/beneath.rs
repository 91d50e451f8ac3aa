//! Looking into a folder without ever leaving it.
//!
//! Everything is resolved from one open descriptor of the folder. Listing goes
//! down through descriptors of the sub-folders, so a folder that is swapped for a
//! symbolic link meanwhile cannot lead elsewhere; opening asks the kernel to stay
//! beneath the root and to follow no link (`openat2`), or, on kernels and in
//! sandboxes without that call, opens one component after another.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode as OpenMode, OFlags, Stat};

use super::report::{FileReport, FileStat, Kind, Problem, ProblemKind, RootIdentity, State};
use super::values::{Mode, Wide};
use crate::relpath::{RelPath, escape};

/// Deepest folder looked into; each level holds a descriptor open. Checkpoints
/// have two or three.
const MAX_DEPTH: usize = 64;

/// An open folder.
pub(super) struct Folder {
    fd: OwnedFd,
    pub(super) identity: RootIdentity,
}

impl Folder {
    /// Opens a replica's folder. The path itself may be a symbolic link: it is
    /// what the operator declared.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(CWD, root, flags, OpenMode::empty())?;
        let identity = identity(&fd)?;
        Ok(Self { fd, identity })
    }

    /// Everything below the folder, in byte order of the paths, folders included.
    /// Folders for which `enter` is false are listed and not looked into. Fails
    /// only when the folder itself cannot be listed.
    pub(super) fn list_into(
        &self,
        enter: &dyn Fn(&RelPath) -> bool,
    ) -> io::Result<Vec<FileReport>> {
        let mut found = Vec::new();
        let here = open_folder(self.fd.as_fd(), c".")?;
        list_into(here, &[], 0, enter, &mut found)?;
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    /// Opens a folder below this one; no link is followed on the way.
    pub(super) fn open_folder(&self, path: &RelPath) -> io::Result<Self> {
        let flags = OFlags::RDONLY
            | OFlags::DIRECTORY
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let fd = match open_beneath(self.fd.as_fd(), path, flags) {
            Err(e) if without_openat2(e) => open_stepwise(self.fd.as_fd(), path, flags)?,
            other => other?,
        };
        let identity = identity(&fd)?;
        Ok(Self { fd, identity })
    }

    /// What stands at a name in this folder; None when nothing does.
    pub(super) fn look(&self, name: &RelPath) -> io::Result<Option<(Kind, FileStat)>> {
        match rustix::fs::statat(&self.fd, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some((kind(&stat), file_stat(&stat)))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Opens what was listed as a regular file. Another thing that took its place
    /// is not read: no link is followed, and `O_NONBLOCK` keeps a pipe from
    /// blocking until the caller's `fstat` has seen what it is.
    pub(super) fn open_file(&self, path: &RelPath) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match open_beneath(self.fd.as_fd(), path, flags) {
            Ok(fd) => Ok(fd.into()),
            Err(e) if without_openat2(e) => Ok(open_stepwise(self.fd.as_fd(), path, flags)?.into()),
            Err(e) => Err(e.into()),
        }
    }
}

fn identity(fd: &OwnedFd) -> io::Result<RootIdentity> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(RootIdentity {
        dev: Wide(stat.st_dev.into()),
        ino: Wide(stat.st_ino.into()),
    })
}

#[cfg(target_os = "linux")]
fn open_beneath(root: BorrowedFd, path: &RelPath, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::ResolveFlags as R;
    let resolve = R::BENEATH | R::NO_SYMLINKS | R::NO_MAGICLINKS;
    rustix::fs::openat2(root, path.as_bytes(), flags, OpenMode::empty(), resolve)
}

#[cfg(not(target_os = "linux"))]
fn open_beneath(_: BorrowedFd, _: &RelPath, _: OFlags) -> rustix::io::Result<OwnedFd> {
    Err(rustix::io::Errno::NOSYS)
}

/// Old kernels and emulators lack the call, some sandboxes forbid it (`EPERM`),
/// and a deep path can be longer than one call takes.
fn without_openat2(e: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    e == Errno::NOSYS || e == Errno::PERM || e == Errno::NAMETOOLONG
}

fn open_stepwise(root: BorrowedFd, path: &RelPath, flags: OFlags) -> io::Result<OwnedFd> {
    let mut parts: Vec<&[u8]> = path.as_bytes().split(|b| *b == b'/').collect();
    // A RelPath has at least one component.
    let name = parts.pop().unwrap_or_default();
    let mut folder: Option<OwnedFd> = None;
    for part in parts {
        let at = folder.as_ref().map_or(root, |f| f.as_fd());
        folder = Some(open_folder(at, &CString::new(part)?)?);
    }
    let at = folder.as_ref().map_or(root, |f| f.as_fd());
    Ok(rustix::fs::openat(at, name, flags, OpenMode::empty())?)
}

fn open_folder(at: BorrowedFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags =
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::openat(at, name, flags, OpenMode::empty())?)
}

fn list_into(
    fd: OwnedFd,
    prefix: &[u8],
    depth: usize,
    enter: &dyn Fn(&RelPath) -> bool,
    out: &mut Vec<FileReport>,
) -> io::Result<()> {
    let mut dir = Dir::new(fd)?;
    let mut names = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    let fd = dir.fd()?;
    // The reports are put in order at the end; sorting what is nearly in order, and is
    // this small, moves far fewer bytes.
    names.sort_unstable();
    for name in names {
        let mut bytes = prefix.to_vec();
        bytes.extend_from_slice(name.to_bytes());
        let path = RelPath::from_bytes(&bytes).map_err(io::Error::other)?;
        let mut entry = look_at(fd, &name, path);
        if entry.kind == Kind::Folder && enter(&entry.path) {
            bytes.push(b'/');
            let inner = if depth + 1 >= MAX_DEPTH {
                Err(io::Error::other(format!(
                    "nested deeper than {MAX_DEPTH} folders"
                )))
            } else {
                open_folder(fd, &name).and_then(|fd| list_into(fd, &bytes, depth + 1, enter, out))
            };
            entry.problem = inner.err().map(|e| could_not_read(&e));
        }
        out.push(entry);
    }
    Ok(())
}

fn look_at(folder: BorrowedFd, name: &CString, path: RelPath) -> FileReport {
    let mut entry = FileReport {
        path,
        kind: Kind::Unknown,
        stat: None,
        sha256: None,
        blake3: None,
        git_blob: None,
        pieces: None,
        blob: None,
        target: None,
        problem: None,
        state: State::NotChecked,
        compared: Vec::new(),
        reason: None,
    };
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => {
            entry.kind = kind(&stat);
            entry.stat = Some(file_stat(&stat));
        }
        Err(e) => entry.problem = Some(could_not_read(&e.into())),
    }
    if entry.kind == Kind::Symlink {
        match rustix::fs::readlinkat(folder, name, Vec::new()) {
            Ok(target) => entry.target = Some(escape(target.to_bytes())),
            Err(e) => entry.problem = Some(could_not_read(&e.into())),
        }
    }
    entry
}

/// What the mode bits say an entry is.
pub(super) fn kind(stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Folder,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Pipe,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice | FileType::BlockDevice => Kind::Device,
        _ => Kind::Unknown,
    }
}

/// The part of a stat that reports keep.
pub(super) fn file_stat(stat: &Stat) -> FileStat {
    let ns = |s: i128, ns: i128| Wide(s * 1_000_000_000 + ns);
    FileStat {
        // A negative size does not exist outside of broken file systems.
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: Mode(stat.st_mode & 0o7777),
        dev: Wide(stat.st_dev.into()),
        ino: Wide(stat.st_ino.into()),
        mtime_ns: ns(stat.st_mtime.into(), stat.st_mtime_nsec.into()),
        ctime_ns: ns(stat.st_ctime.into(), stat.st_ctime_nsec.into()),
    }
}

/// The problem of an entry that the system did not let us read.
pub(super) fn could_not_read(e: &io::Error) -> Problem {
    Problem {
        kind: ProblemKind::CouldNotRead,
        detail: e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text).unwrap()
    }

    #[test]
    fn both_ways_of_opening_stay_inside_and_follow_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), b"inside").unwrap();
        std::fs::write(dir.path().join("outside"), b"outside").unwrap();
        std::os::unix::fs::symlink("../outside", root.join("out")).unwrap();
        std::os::unix::fs::symlink("a/b", root.join("folder")).unwrap();
        std::os::unix::fs::symlink("a/b/file", root.join("in")).unwrap();

        let folder = Folder::open(&root).unwrap();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let stepwise = |p: &RelPath| Ok(open_stepwise(folder.fd.as_fd(), p, flags)?.into());
        let at_once = |p: &RelPath| folder.open_file(p);
        type Open<'a> = &'a dyn Fn(&RelPath) -> io::Result<File>;
        let ways: [Open; 2] = [&at_once, &stepwise];
        for open in ways {
            let mut text = String::new();
            open(&path("a/b/file"))
                .unwrap()
                .read_to_string(&mut text)
                .unwrap();
            assert_eq!(text, "inside");
            for refused in ["out", "in", "folder/file", "nothing"] {
                assert!(open(&path(refused)).is_err(), "{refused}");
            }
        }
    }

    #[test]
    fn a_folder_nested_too_deep_is_named_and_not_entered() {
        let dir = tempfile::tempdir().unwrap();
        let deep: std::path::PathBuf = std::iter::repeat_n("d", MAX_DEPTH + 1).collect();
        std::fs::create_dir_all(dir.path().join(&deep)).unwrap();
        std::fs::write(dir.path().join(&deep).join("file"), b"x").unwrap();
        let found = Folder::open(dir.path())
            .unwrap()
            .list_into(&|_| true)
            .unwrap();
        assert!(found.iter().all(|f| f.kind == Kind::Folder));
        let problems: Vec<_> = found.iter().filter_map(|f| f.problem.as_ref()).collect();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].kind, ProblemKind::CouldNotRead);
    }
}
