//! Reading without disturbing the page cache.
//!
//! A checkpoint is larger than most machines' memory, and on a GB10 the GPU shares
//! that memory: pages that nobody will read again must not push out pages that
//! somebody needs. What was cached before stays cached, what was not is gone
//! afterwards. There are four ways, chosen per file and counted in the report:
//!
//! 1. *Drop*, when `cachestat` (Linux 6.5) says that no page of the file is cached:
//!    the kernel reads ahead as for anyone, in large folios, and what was read is
//!    dropped behind the reader. Measured to be the fastest way to read a cold file.
//! 2. *Don't cache*, when some pages are cached or nobody can say: `RWF_DONTCACHE`
//!    (Linux 6.14, per file system) makes the kernel drop the pages that the read
//!    itself brought in, and no others. Its read-ahead would bring them in folios
//!    larger than a read, each dropped after its first piece and read from the disk
//!    again for the next, so it is turned off. Instead, a read that may not wait
//!    (`RWF_NOWAIT`) is tried some chunks ahead: of pages that are not there, it
//!    starts the transfer and returns at once.
//! 3. Where the file system lacks that, but `cachestat` answers, the windows of the
//!    file that had no cached page are dropped. Of a window that is cached in part,
//!    everything stays.
//! 4. With neither call, `O_DIRECT` ([`super::direct`]): dropping without knowing
//!    would evict what others cached.
//!
//! On a file system that knows none of these, pages stay, and the report says so. A
//! page that somebody else brings in while the first or third way reads the same
//! file may be dropped with the rest.

use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::num::NonZeroU64;
use std::sync::Arc;

use runseal_kernel::pages;
use rustix::fs::Advice;
use rustix::io::{Errno, ReadWriteFlags};

use super::direct::Direct;

/// Bytes that are looked at together. A multiple of every page size.
const WINDOW: u64 = 1 << 20;
/// After so many bytes, what was read is dropped.
const STEP: u64 = 4 << 20;
/// A file as small as this is read at once, and needs no care: one read drops it all.
const SMALL: u64 = 128 * 1024;
/// Bytes asked for ahead of a reader that has to wait for the disk.
const AHEAD: u64 = 1 << 20;

/// What reading a file does to the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageCache {
    /// The kernel was asked not to keep what the read brought in.
    DontCache,
    /// Windows of the files that were not cached before were dropped afterwards.
    Dropped,
    /// The read went past it.
    Direct,
    /// What was read stays cached until the kernel needs the memory.
    Kept,
}

/// A file read by position.
pub(super) struct Reader {
    file: Arc<File>,
    size: u64,
    /// Reads in flight, where nobody reads ahead for us.
    depth: usize,
    way: Way,
}

enum Way {
    DontCache {
        /// Whether a read ever had to wait for the disk, of late.
        cold: bool,
        /// Up to where transfers were started.
        asked: u64,
    },
    /// Bytes below the number were dropped, as far as they are ours.
    Drop(Ours, u64),
    Direct(Direct),
    Keep,
}

const DONT_CACHE: Way = Way::DontCache {
    cold: false,
    asked: 0,
};

/// Which windows had no cached page before the reading began.
enum Ours {
    All,
    Some(Vec<bool>),
}

impl Reader {
    pub(super) fn new(file: File, size: u64, depth: usize) -> Self {
        let way = if size <= SMALL {
            DONT_CACHE
        } else if let Ok(0) = pages::cached(&file, 0, 0) {
            advise(&file, 0, 0, Advice::Sequential);
            Way::Drop(Ours::All, 0)
        } else {
            advise(&file, 0, 0, Advice::Random);
            DONT_CACHE
        };
        Self {
            file: Arc::new(file),
            size,
            depth,
            way,
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn page_cache(&self) -> PageCache {
        match self.way {
            Way::DontCache { .. } => PageCache::DontCache,
            Way::Drop(..) => PageCache::Dropped,
            Way::Direct(_) => PageCache::Direct,
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
        if let Way::Direct(direct) = &mut self.way {
            return direct.read_at(buffer, offset);
        }
        let n = read(&self.file, buffer, offset, ReadWriteFlags::empty())?;
        if let Way::Drop(ours, dropped) = &mut self.way {
            let read = offset + n as u64;
            if read >= *dropped + STEP {
                // From a step further back: a folio that reached across the end was
                // left then.
                ours.drop_range(&self.file, dropped.saturating_sub(STEP), read);
                *dropped = read;
            }
        }
        Ok(n)
    }

    /// Before the first byte is read, because reading brings pages in.
    fn do_without(&mut self) {
        advise(&self.file, 0, 0, Advice::Sequential);
        self.way = match ours(&self.file, self.size) {
            Ok(ours) => Way::Drop(ours, 0),
            Err(_) => self.direct(),
        };
    }

    fn direct(&self) -> Way {
        match Direct::new(&self.file, self.size, self.depth) {
            Ok(direct) => Way::Direct(direct),
            Err(_) => Way::Keep,
        }
    }
}

/// A file of which a little is read from the front. What is read stays cached only
/// where neither `cachestat` nor `RWF_DONTCACHE` can be had.
pub(in crate::weights) struct Unkept {
    file: File,
    at: u64,
    cold: bool,
}

impl Unkept {
    /// No read ahead; and if nothing of it is cached, nothing will be.
    pub(in crate::weights) fn new(file: File) -> Self {
        advise(&file, 0, 0, Advice::Random);
        let cold = matches!(pages::cached(&file, 0, 0), Ok(0));
        Self { file, at: 0, cold }
    }
}

impl Read for Unkept {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = match read(&self.file, buffer, self.at, DONTCACHE) {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                read(&self.file, buffer, self.at, ReadWriteFlags::empty())?
            }
            other => other?,
        };
        self.at += n as u64;
        Ok(n)
    }
}

impl Drop for Unkept {
    fn drop(&mut self) {
        if self.cold {
            advise(&self.file, 0, 0, Advice::DontNeed);
        }
    }
}

impl Drop for Reader {
    /// What is left: the end of the file, or more of it when reading failed.
    fn drop(&mut self) {
        if let Way::Drop(ours, _) = &self.way {
            ours.drop_range(&self.file, 0, self.size);
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

    /// Drops the windows from the one at `start` to the one before `end` that are
    /// ours, neighbours together: a folio can be larger than a window, and is only
    /// dropped as a whole.
    fn drop_range(&self, file: &File, start: u64, end: u64) {
        let mut window = start / WINDOW;
        let end = end.div_ceil(WINDOW);
        while window < end {
            let run = (window..end).take_while(|w| self.has(*w)).count() as u64;
            if run > 0 {
                advise(file, window * WINDOW, run * WINDOW, Advice::DontNeed);
            }
            window += run + 1;
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

    const SIZE: usize = 2 * STEP as usize + 1_500_005;

    fn content() -> Vec<u8> {
        (0..SIZE).map(|i| ((i / 7) ^ (i / 4096)) as u8).collect()
    }

    fn reader() -> Reader {
        // The build's own folder: /tmp may be memory, which has no O_DIRECT.
        let program = std::env::current_exe().unwrap();
        let mut file = tempfile::tempfile_in(program.parent().unwrap()).unwrap();
        file.write_all(&content()).unwrap();
        Reader::new(file, SIZE as u64, 3)
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
        let ways: [fn(&mut Reader); 8] = [
            |_| {},
            |r| r.do_without(),
            |r| r.way = Way::Keep,
            |r| r.way = r.direct(),
            |r| r.way = Way::Drop(Ours::All, 0),
            |r| r.way = DONT_CACHE,
            |r| r.way = Way::Drop(Ours::Some(vec![true, false, true, true]), 0),
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
                // With O_DIRECT on, any other read would be refused.
                if matches!(reader.way, Way::Direct(_)) {
                    continue;
                }
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
            assert_eq!(windows, [false; SIZE.div_ceil(WINDOW as usize)]);
        } else {
            assert!(ours(&reader.file, reader.size).is_err());
        }
        assert!(!Ours::Some(vec![true]).has(1));
    }
}
