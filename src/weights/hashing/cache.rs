//! Reading without disturbing the page cache.
//!
//! A checkpoint is larger than most machines' memory, and on a GB10 the GPU shares
//! that memory: pages that nobody will read again must not push out pages that
//! somebody needs. What was cached before stays cached, what was not is gone
//! afterwards. The first way that works for a file is taken:
//!
//! 1. `RWF_DONTCACHE` (Linux 6.14, per file system): the kernel drops the pages
//!    that the read itself brought in. Its own read-ahead would bring them in
//!    folios larger than a read, each dropped after its first piece and read from
//!    the disk again for the next, so it is turned off. Instead, a read that may
//!    not wait (`RWF_NOWAIT`) is tried some chunks ahead: of pages that are not
//!    there, it starts the transfer and returns at once.
//! 2. `cachestat` (Linux 6.5) tells which windows of the file have no cached page
//!    before reading starts; these are dropped after they were read. Of a window
//!    that is cached in part, everything stays.
//! 3. Neither: pages stay, and the scan says so. Dropping without knowing would
//!    evict what others cached.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;

use runseal_kernel::pages;
use rustix::fs::Advice;
use rustix::io::{Errno, ReadWriteFlags};

/// Bytes whose pages are dropped together. A multiple of every page size.
const WINDOW: u64 = 1 << 20;
/// Bytes asked for ahead of a reader that has to wait for the disk.
const AHEAD: u64 = 1 << 20;

/// What reading does to the page cache, from the best to the worst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageCache {
    /// The kernel was asked not to keep what the read brought in.
    #[default]
    DontCache,
    /// Windows of the files that were not cached before were dropped afterwards.
    Dropped,
    /// What was read stays cached until the kernel needs the memory.
    Kept,
}

/// A file read by position.
pub(super) struct Reader {
    file: File,
    size: u64,
    way: Way,
}

enum Way {
    DontCache {
        /// Whether a read ever had to wait for the disk, of late.
        cold: bool,
        /// Up to where transfers were started.
        asked: u64,
    },
    /// Windows below the number are done with.
    Drop(Ours, u64),
    Keep,
}

/// Which windows had no cached page before the reading began.
enum Ours {
    All,
    Some(Vec<bool>),
}

impl Reader {
    pub(super) fn new(file: File, size: u64) -> Self {
        advise(&file, 0, 0, Advice::Random);
        let way = Way::DontCache {
            cold: false,
            asked: 0,
        };
        Self { file, size, way }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn page_cache(&self) -> PageCache {
        match self.way {
            Way::DontCache { .. } => PageCache::DontCache,
            Way::Drop(..) => PageCache::Dropped,
            Way::Keep => PageCache::Kept,
        }
    }

    /// Reads up to a buffer; 0 at the end of the file. Never interrupted.
    pub(super) fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Way::DontCache { cold, asked } = &mut self.way {
            match dont_cache(&self.file, self.size, buffer, offset, cold, asked) {
                // One for "not with this file system", one for "unknown flag",
                // one for "no such call".
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => self.do_without(),
                other => return Ok(other?),
            }
        }
        let n = read(&self.file, buffer, offset, ReadWriteFlags::empty())?;
        if let Way::Drop(ours, done) = &mut self.way {
            let upto = (offset + n as u64) / WINDOW;
            for window in *done..upto {
                if ours.has(window) {
                    advise(&self.file, window * WINDOW, WINDOW, Advice::DontNeed);
                }
            }
            *done = upto;
        }
        Ok(n)
    }

    /// Before the first byte is read, because reading brings pages in.
    fn do_without(&mut self) {
        advise(&self.file, 0, 0, Advice::Sequential);
        self.way = match ours(&self.file, self.size) {
            Ok(ours) => Way::Drop(ours, 0),
            Err(_) => Way::Keep,
        };
    }
}

impl Drop for Reader {
    /// Read-ahead and folios across two windows leave pages behind; here they are
    /// in nobody's way any more.
    fn drop(&mut self) {
        match &self.way {
            Way::Drop(Ours::All, _) => advise(&self.file, 0, 0, Advice::DontNeed),
            Way::Drop(ours, _) => {
                for window in (0..self.size.div_ceil(WINDOW)).filter(|w| ours.has(*w)) {
                    advise(&self.file, window * WINDOW, WINDOW, Advice::DontNeed);
                }
            }
            Way::DontCache { .. } | Way::Keep => {}
        }
    }
}

impl Ours {
    fn has(&self, window: u64) -> bool {
        match self {
            Self::All => true,
            Self::Some(windows) => {
                let index = usize::try_from(window).unwrap_or(usize::MAX);
                windows.get(index).copied().unwrap_or(false)
            }
        }
    }
}

fn ours(file: &File, size: u64) -> io::Result<Ours> {
    if pages::cached(file, 0, 0)? == 0 {
        return Ok(Ours::All);
    }
    let free = |window| pages::cached(file, window * WINDOW, WINDOW).map(|n| n == 0);
    let windows = (0..size.div_ceil(WINDOW)).map(free);
    Ok(Ours::Some(windows.collect::<io::Result<_>>()?))
}

/// One chunk. A cached file is read without waiting, a chunk a call. Where that
/// would wait, transfers are started ahead first, with the buffer as scratch space.
fn dont_cache(
    file: &File,
    size: u64,
    buffer: &mut [u8],
    offset: u64,
    cold: &mut bool,
    asked: &mut u64,
) -> rustix::io::Result<usize> {
    let chunk = buffer.len() as u64;
    if !*cold {
        match read(file, buffer, offset, DONTCACHE | ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN) => *cold = true,
            other => return other,
        }
    }
    // This chunk is waited for below. It may have been asked for already.
    *asked = (*asked).max(offset + chunk);
    while *asked < size.min(offset + AHEAD) {
        let most = (size - *asked).min(chunk) as usize;
        let ahead = &mut buffer[..most];
        match read(file, ahead, *asked, DONTCACHE | ReadWriteFlags::NOWAIT) {
            // Cached: the reader has passed what it had to wait for.
            Ok(n) if n == most => *cold = false,
            // A failure will come back when the chunk is read.
            Ok(_) | Err(_) => {}
        }
        *asked += most as u64;
    }
    read(file, buffer, offset, DONTCACHE)
}

/// `RWF_DONTCACHE`, which rustix does not name yet.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

fn read(
    file: &File,
    buffer: &mut [u8],
    offset: u64,
    flags: ReadWriteFlags,
) -> rustix::io::Result<usize> {
    rustix::io::retry_on_intr(|| {
        if flags.is_empty() {
            return rustix::io::pread(file, &mut *buffer, offset);
        }
        let mut parts = [IoSliceMut::new(&mut *buffer)];
        rustix::io::preadv2(file, &mut parts, offset, flags)
    })
}

/// A length of 0 means up to the end. It is advice: a refusal changes nothing
/// that was promised about the digests.
fn advise(file: &File, offset: u64, len: u64, advice: Advice) {
    let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(len), advice);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const SIZE: usize = 5 * WINDOW as usize / 2 + 5;

    fn content() -> Vec<u8> {
        (0..SIZE).map(|i| (i / 7 ^ i / 4096) as u8).collect()
    }

    fn reader() -> Reader {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content()).unwrap();
        Reader::new(file, SIZE as u64)
    }

    fn read_all(reader: &mut Reader, chunk: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let mut buffer = vec![0; chunk];
        loop {
            let most = chunk.min(SIZE - out.len());
            match reader
                .read_at(&mut buffer[..most], out.len() as u64)
                .unwrap()
            {
                0 => return out,
                n => out.extend_from_slice(&buffer[..n]),
            }
        }
    }

    #[test]
    fn every_way_reads_the_same() {
        let cold = || Way::DontCache {
            cold: true,
            asked: 0,
        };
        let ways: [fn(&mut Reader); 6] = [
            |_| {},
            |r| r.do_without(),
            |r| r.way = Way::Keep,
            |r| r.way = Way::Drop(Ours::All, 0),
            |r| r.way = Way::Drop(Ours::Some(vec![true, false, true]), 0),
            |r| r.file.sync_all().unwrap(),
        ];
        for (i, change) in ways.iter().enumerate() {
            for chunk in [100_000, 1 << 17, SIZE] {
                let mut reader = reader();
                change(&mut reader);
                assert_eq!(read_all(&mut reader, chunk), content(), "way {i}");
                // A second time from the start, after pages were dropped, and as a
                // reader that has to wait.
                assert_eq!(read_all(&mut reader, chunk), content(), "way {i} again");
                reader.way = cold();
                assert_eq!(read_all(&mut reader, chunk), content(), "way {i} cold");
            }
        }
    }

    /// Only what nobody had cached is dropped; a file just written is all cached.
    #[test]
    fn cached_windows_are_not_ours() {
        let reader = reader();
        // Where the kernel cannot say, nothing is dropped at all.
        if let Ok(Ours::Some(windows)) = ours(&reader.file, reader.size) {
            assert_eq!(windows, [false, false, false]);
        } else {
            assert!(ours(&reader.file, reader.size).is_err());
        }
        assert!(!Ours::Some(vec![true]).has(1));
    }
}
