//! A file that must hold still while it is read.

use std::fs::File;
use std::io;

use super::cache::{PageCache, Reader};
use crate::weights::beneath::{could_not_read, file_stat, kind};
use crate::weights::report::{FileStat, Kind, Problem, ProblemKind};

/// A file being read, and the state that it must still be in at the end. Pull
/// style, so that a hasher can take turns between several of them.
pub(super) struct SteadyFile {
    reader: Reader,
    listed: FileStat,
    offset: u64,
}

impl SteadyFile {
    /// Takes a file that was just opened and compares it with what was listed.
    /// `depth` is how many reads may be in flight.
    pub(super) fn new(
        opened: io::Result<File>,
        listed: FileStat,
        depth: usize,
    ) -> Result<Self, Problem> {
        let file = opened.map_err(|e| not_opened(&e))?;
        compare(&file, &listed)?;
        Ok(Self {
            reader: Reader::new(file, listed.size, depth),
            listed,
            offset: 0,
        })
    }

    /// Bytes not read yet.
    pub(super) fn left(&self) -> u64 {
        self.listed.size - self.offset
    }

    /// How the file is read.
    pub(super) fn page_cache(&self) -> PageCache {
        self.reader.page_cache()
    }

    /// Reads on into the front of `buffer`, at most as far as the size at the
    /// first look. Returns how many bytes; 0 only at that end.
    pub(super) fn next_chunk(&mut self, buffer: &mut [u8]) -> Result<usize, Problem> {
        let most = self.left().min(buffer.len() as u64) as usize;
        if most == 0 {
            return Ok(0);
        }
        let n = self.reader.read_at(&mut buffer[..most], self.offset);
        let n = n.map_err(|e| could_not_read(&e))?;
        if n == 0 {
            return Err(changed("it became shorter"));
        }
        self.offset += n as u64;
        Ok(n)
    }

    /// Compares with the first look. To be called after the last read.
    pub(super) fn finish(self) -> Result<(), Problem> {
        compare(self.reader.file(), &self.listed)
    }
}

fn compare(file: &File, listed: &FileStat) -> Result<(), Problem> {
    let now = rustix::fs::fstat(file).map_err(|e| could_not_read(&e.into()))?;
    if kind(&now) != Kind::File {
        return Err(changed("it is no longer a file"));
    }
    let what = differences(listed, &file_stat(&now));
    if what.is_empty() {
        Ok(())
    } else {
        Err(changed(&format!("{} changed", what.join(", "))))
    }
}

/// It was a file when it was listed. Gone, or a link, or a socket by now: that is
/// a change and not a matter of permissions.
fn not_opened(e: &io::Error) -> Problem {
    use rustix::io::Errno;
    let gone = [Errno::NOENT, Errno::LOOP, Errno::NXIO, Errno::NOTDIR];
    match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(errno) if gone.contains(&errno) => changed(&format!("it was replaced: {e}")),
        _ => could_not_read(e),
    }
}

fn changed(what: &str) -> Problem {
    Problem {
        kind: ProblemKind::ChangedDuringRead,
        detail: what.to_owned(),
    }
}

/// What differs between two looks at one file. The change time covers whatever
/// the others miss, and cannot be set back by a program.
pub(in crate::weights) fn differences(before: &FileStat, after: &FileStat) -> Vec<&'static str> {
    [
        ("size", before.size != after.size),
        (
            "identity",
            (before.dev, before.ino) != (after.dev, after.ino),
        ),
        ("mtime", before.mtime_ns != after.mtime_ns),
        ("ctime", before.ctime_ns != after.ctime_ns),
    ]
    .into_iter()
    .filter_map(|(name, differs)| differs.then_some(name))
    .collect()
}
