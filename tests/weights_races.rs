//! Files that move while they are read. The progress callbacks are the moments:
//! one runs after listing, before anything is opened, the other between two reads
//! of a file.

mod weights_support;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use runseal::codes::Code;
use runseal::relpath::RelPath;
use runseal::weights::*;
use weights_support::{context, pin};

const SIZE: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq)]
enum Moment {
    /// All is listed, nothing is open.
    Listed,
    /// The first bytes of `big` were read.
    BigBegun,
}

/// Does something once.
struct Meddler<F: Fn() + Sync> {
    moment: Moment,
    act: F,
    done: AtomicBool,
    read: AtomicU64,
}

impl<F: Fn() + Sync> Progress for Meddler<F> {
    fn planned(&self, _: usize, _: u64) {
        if self.moment == Moment::Listed {
            self.done.store(true, SeqCst);
            (self.act)();
        }
    }
    fn read(&self, path: &RelPath, bytes: u64) {
        self.read.fetch_add(bytes, SeqCst);
        let begun = self.moment == Moment::BigBegun && path.to_string() == "big";
        if begun && !self.done.swap(true, SeqCst) {
            (self.act)();
        }
    }
}

fn meddled(moment: Moment, act: impl Fn(&Path) + Sync) -> (ReplicaReport, Manifest, u64) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("model");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("big"), vec![7u8; SIZE]).unwrap();
    fs::write(root.join("other"), b"other").unwrap();
    let manifest = pin(&root);
    // Kernels stamp times with a clock that may tick only every few ms; a change
    // within the tick of the creation could not be told from it.
    std::thread::sleep(std::time::Duration::from_millis(30));
    let meddler = Meddler {
        moment,
        act: || act(&root),
        done: AtomicBool::new(false),
        read: AtomicU64::new(0),
    };
    let scan = rehash(&root, &manifest, Algorithm::Both, &meddler).unwrap();
    assert!(meddler.done.load(SeqCst), "the moment never came");
    let report = scan.into_report(&manifest, context("r0"));
    (report, manifest, meddler.read.load(SeqCst))
}

fn assert_changed(act: impl Fn(&Path) + Sync) {
    let (report, manifest, read) = meddled(Moment::BigBegun, act);
    let big = &report.files[0];
    assert_eq!(big.state, State::NotChecked, "{big:?}");
    assert_eq!((big.sha256, big.blake3), (None, None));
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.findings[0].code, Code::ChangedDuringRead);
    assert_eq!(report.findings[0].subject, "r0/big");
    assert_eq!(report.observed_root, None);
    assert!(matches!(
        derive_integrity(&manifest, &report),
        Integrity::NotChecked { .. }
    ));
    assert_eq!(check_report(&manifest, &report), []);
    assert!(read <= (SIZE + 5) as u64, "{read} bytes were read");
}

#[test]
fn a_quiet_file_is_verified() {
    let (report, manifest, read) = meddled(Moment::BigBegun, |_| {});
    assert_eq!(derive_integrity(&manifest, &report), Integrity::Verified);
    assert_eq!(read, (SIZE + 5) as u64);
}

#[test]
fn truncated_while_read() {
    assert_changed(|root| {
        let file = OpenOptions::new()
            .write(true)
            .open(root.join("big"))
            .unwrap();
        file.set_len(1000).unwrap();
    });
}

#[test]
fn grown_while_read_is_bounded() {
    assert_changed(|root| {
        let mut file = OpenOptions::new()
            .append(true)
            .open(root.join("big"))
            .unwrap();
        file.write_all(&vec![7; 4 * SIZE]).unwrap();
    });
}

#[test]
fn flipped_behind_the_reader_with_the_old_mtime() {
    assert_changed(|root| {
        let file = OpenOptions::new()
            .write(true)
            .open(root.join("big"))
            .unwrap();
        let mtime = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(&[8], 0).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(mtime))
            .unwrap();
    });
}

#[test]
fn replaced_while_read() {
    assert_changed(|root| {
        fs::write(root.join("../new"), vec![7u8; SIZE]).unwrap();
        fs::rename(root.join("../new"), root.join("big")).unwrap();
    });
}

/// A file becomes something else between listing and opening.
#[test]
fn swapped_between_listing_and_opening() {
    let swap = |with: fn(&Path)| {
        let (report, manifest, _) = meddled(Moment::Listed, |root| {
            fs::remove_file(root.join("other")).unwrap();
            with(root);
        });
        let other = &report.files[1];
        assert_eq!(other.sha256, None);
        assert_eq!(other.state, State::NotChecked);
        assert_eq!(check_report(&manifest, &report), []);
        assert_eq!(report.findings[0].code, Code::ChangedDuringRead);
    };
    // Same bytes, but outside of the folder: not opened.
    let link = |root: &Path| {
        fs::write(root.join("../outside"), b"other").unwrap();
        symlink("../outside", root.join("other")).unwrap();
    };
    swap(link);
    let pipe = |root: &Path| {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let mode = Mode::from_raw_mode(0o644);
        mknodat(CWD, root.join("other"), FileType::Fifo, mode, 0).unwrap();
    };
    swap(pipe);
    let file = |root: &Path| fs::write(root.join("other"), b"other").unwrap();
    swap(file);
    swap(|_| {});
}
