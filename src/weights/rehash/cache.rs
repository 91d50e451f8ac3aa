//! Reading without disturbing the page cache.
//!
//! A checkpoint is larger than most machines' memory, and on a GB10 the GPU shares
//! that memory: pages that nobody will read again must not push out pages that
//! somebody needs. What was cached before stays cached, what was not is gone
//! afterwards. The first way that works for a file is taken:
//!
//! 1. `RWF_DONTCACHE` (Linux 6.14, per file system): the kernel drops the pages
//!    that the read itself brought in.
//! 2. `cachestat` (Linux 6.5) tells which windows of the file have no cached page
//!    before reading starts; these are dropped after they were read. Of a window
//!    that is cached in part, everything stays.
//! 3. Neither: pages stay, and the scan says so. Dropping without knowing would
//!    evict what others cached.

use std::fs::File;
use std::io::{self, IoSliceMut};

use runseal_kernel::pages;
use rustix::fs::Advice;
use rustix::io::{Errno, ReadWriteFlags};

/// Bytes whose pages are dropped together. A multiple of every page size.
const WINDOW: u64 = 1 << 20;

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
    DontCache,
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
        Self {
            file,
            size,
            way: Way::DontCache,
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn page_cache(&self) -> PageCache {
        match self.way {
            Way::DontCache => PageCache::DontCache,
            Way::Drop(..) => PageCache::Dropped,
            Way::Keep => PageCache::Kept,
        }
    }

    /// Reads up to a buffer; 0 at the end of the file. Never interrupted.
    pub(super) fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Way::DontCache = self.way {
            match read(&self.file, buffer, offset, DONTCACHE) {
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
                    drop_pages(&self.file, window * WINDOW, WINDOW);
                }
            }
            *done = upto;
        }
        Ok(n)
    }

    /// Before the first byte is read, because reading brings pages in.
    fn do_without(&mut self) {
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
            Way::Drop(Ours::All, _) => drop_pages(&self.file, 0, 0),
            Way::Drop(ours, _) => {
                for window in (0..self.size.div_ceil(WINDOW)).filter(|w| ours.has(*w)) {
                    drop_pages(&self.file, window * WINDOW, WINDOW);
                }
            }
            Way::DontCache | Way::Keep => {}
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
fn drop_pages(file: &File, offset: u64, len: u64) {
    let len = std::num::NonZeroU64::new(len);
    let _ = rustix::fs::fadvise(file, offset, len, Advice::DontNeed);
}
