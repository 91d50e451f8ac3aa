//! Which parts of a file are in the page cache.
//!
//! `cachestat` (Linux 6.5) counts the cached pages of a range without bringing any
//! in. It may be refused: by older kernels, and for files that the caller could
//! not open for writing, because cached pages tell what others read.

use std::fs::File;
use std::io;

/// Number of pages of `file` in the page cache, among those that overlap `len`
/// bytes from `offset`. A `len` of 0 means up to the end of the file.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub fn cached(file: &File, offset: u64, len: u64) -> io::Result<u64> {
    use std::os::fd::AsRawFd;

    /// `struct cachestat_range`.
    #[repr(C)]
    struct Range {
        offset: u64,
        len: u64,
    }

    /// `struct cachestat`, all in pages.
    #[repr(C)]
    #[derive(Default)]
    struct Counts {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }

    /// The same on every architecture that numbers its calls after 2019 alike,
    /// which is all but Alpha.
    const SYS_CACHESTAT: libc::c_long = 451;

    let range = Range { offset, len };
    let mut counts = Counts::default();
    // SAFETY: the two pointers are to live structs of the layout that the kernel
    // reads and writes, and to nothing after the call returns; the descriptor is
    // open for as long as `file` is borrowed. No flags exist.
    let answer = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut counts,
            0 as libc::c_uint,
        )
    };
    match answer {
        0 => Ok(counts.cached),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Other systems cannot say.
#[cfg(not(target_os = "linux"))]
pub fn cached(_: &File, _: u64, _: u64) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn written_pages_are_counted_where_the_kernel_can() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        match cached(&file, 0, 0) {
            Ok(all) => {
                assert!(all > 0);
                let first = cached(&file, 0, 1).unwrap();
                assert_eq!(first, 1);
                assert_eq!(cached(&file, 1 << 30, 1 << 20).unwrap(), 0);
            }
            Err(e) => {
                let known = [libc::ENOSYS, libc::EPERM, libc::EOPNOTSUPP];
                assert!(known.contains(&e.raw_os_error().unwrap()), "{e}");
            }
        }
    }
}
