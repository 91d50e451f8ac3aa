//! The hashing loop: every size and mixture of sizes gives the digests of `sha2` and
//! `blake3`, however many workers share the files and however they are paired.

use std::collections::BTreeMap;
use std::fs;
use std::num::{NonZeroU64, NonZeroUsize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use proptest::prelude::*;
use runseal::relpath::RelPath;
use runseal::weights::*;
use sha2::{Digest, Sha256};

const CHUNK: usize = 128 * 1024;

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    let mut x = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A folder with files of these sizes, and what their digests must be.
fn folder(root: &Path, sizes: &[usize]) -> BTreeMap<String, ([u8; 32], [u8; 32])> {
    fs::create_dir_all(root).unwrap();
    let write = |(i, size): (usize, &usize)| {
        let (name, content) = (format!("f{i}"), bytes(i, *size));
        fs::write(root.join(&name), &content).unwrap();
        let digests = (
            Sha256::digest(&content).into(),
            *blake3::hash(&content).as_bytes(),
        );
        (name, digests)
    };
    sizes.iter().enumerate().map(write).collect()
}

fn assert_digests(
    scan: &ReplicaScan,
    expected: &BTreeMap<String, ([u8; 32], [u8; 32])>,
    algorithm: Algorithm,
) {
    assert_eq!(scan.files.len(), expected.len());
    for file in &scan.files {
        let (sha256, blake3) = expected[&file.path.to_string()];
        assert_eq!(file.problem, None);
        assert_eq!(
            file.sha256.map(|d| d.0),
            algorithm.sha256().then_some(sha256),
            "{file:?}"
        );
        assert_eq!(
            file.blake3.map(|d| d.0),
            algorithm.blake3().then_some(blake3),
            "{file:?}"
        );
    }
}

fn request<'a>(root: &'a Path, algorithm: Algorithm, progress: &'a dyn Progress) -> Request<'a> {
    Request {
        at: At::Path(root, Wanted::default()),
        manifest: None,
        what: What::default(),
        algorithm,
        since: None,
        progress,
    }
}

fn jobs(n: usize) -> Pace {
    Pace {
        jobs: NonZeroUsize::new(n),
        ..Pace::default()
    }
}

/// Counts, per file and in all.
#[derive(Default)]
struct Count {
    files: AtomicUsize,
    planned: AtomicU64,
    read: Mutex<BTreeMap<String, u64>>,
}

impl Progress for Count {
    fn planned(&self, files: usize, bytes: u64) {
        self.files.fetch_add(files, SeqCst);
        self.planned.fetch_add(bytes, SeqCst);
    }
    fn read(&self, path: &RelPath, bytes: u64) {
        *self
            .read
            .lock()
            .unwrap()
            .entry(path.to_string())
            .or_default() += bytes;
    }
}

#[test]
fn sizes_around_blocks_and_chunks() {
    let mut sizes: Vec<usize> = (0..=130).collect();
    for edge in [CHUNK, 2 * CHUNK, 9 * CHUNK] {
        sizes.extend([edge - 64, edge - 1, edge, edge + 1, edge + 63]);
    }
    let dir = tempfile::tempdir().unwrap();
    let expected = folder(dir.path(), &sizes);
    for algorithm in [Algorithm::Sha256, Algorithm::Blake3, Algorithm::Both] {
        for workers in [1, 2, 5, 40] {
            let count = Count::default();
            let scans = rehash_each(
                vec![request(dir.path(), algorithm, &count)],
                jobs(workers),
                |_, scan| scan.unwrap(),
            );
            assert_digests(&scans[0], &expected, algorithm);
            assert_eq!(count.files.load(SeqCst), sizes.len());
            assert_eq!(
                count.planned.load(SeqCst),
                sizes.iter().sum::<usize>() as u64
            );
            let read = count.read.lock().unwrap();
            for (i, size) in sizes.iter().enumerate().filter(|(_, size)| **size > 0) {
                assert_eq!(read[&format!("f{i}")], *size as u64);
            }
        }
    }
}

#[test]
fn many_folders_share_one_queue_and_each_is_answered_once() {
    let dir = tempfile::tempdir().unwrap();
    let sets: [&[usize]; 4] = [&[3 << 20], &[], &[1 << 20, 5, 2 << 20], &[100]];
    let algorithms = [
        Algorithm::Sha256,
        Algorithm::Both,
        Algorithm::Blake3,
        Algorithm::Both,
    ];
    let roots: Vec<_> = (0..4).map(|i| dir.path().join(format!("r{i}"))).collect();
    let expected: Vec<_> = roots.iter().zip(sets).map(|(r, s)| folder(r, s)).collect();
    let missing = dir.path().join("missing");
    for workers in 1..6 {
        let mut requests: Vec<_> = roots
            .iter()
            .zip(algorithms)
            .map(|(root, algorithm)| request(root, algorithm, &NoProgress))
            .collect();
        requests.insert(2, request(&missing, Algorithm::Both, &NoProgress));
        let calls = AtomicUsize::new(0);
        let scans = rehash_each(requests, jobs(workers), |index, scan| {
            calls.fetch_add(1, SeqCst);
            (index, scan)
        });
        assert_eq!(calls.load(SeqCst), 5);
        let indices: Vec<_> = scans.iter().map(|(index, _)| *index).collect();
        assert_eq!(indices, [0, 1, 2, 3, 4]);
        assert!(scans[2].1.is_err());
        for (replica, scan) in [0, 1, 3, 4].into_iter().enumerate() {
            let scan = scans[scan].1.as_ref().unwrap();
            assert_digests(scan, &expected[replica], algorithms[replica]);
        }
    }
    assert!(rehash_each(Vec::new(), jobs(3), |index, _| index).is_empty());
}

/// Git blob ids need a second reading, of some files. Nobody planned for its bytes, so
/// they are not counted.
#[test]
fn git_blob_ids_where_the_pointer_does_not_explain_them() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [0, 100, 3 * CHUNK + 1, 200_000, 5];
    let expected = folder(dir.path(), &sizes);
    let id = |bytes: &[u8]| git::blob_id(bytes);
    let pointer = |i: usize| {
        let (sha256, size) = (hex::encode(expected[&format!("f{i}")].0), sizes[i]);
        let head = "version https://git-lfs.github.com/spec/v1";
        id(format!("{head}\noid sha256:{sha256}\nsize {size}\n").as_bytes())
    };
    let path = |i: usize| RelPath::parse(&format!("f{i}")).unwrap();
    let git_blobs = BTreeMap::from([
        (path(0), id(b"")),
        (path(1), id(&bytes(1, sizes[1]))),
        (path(2), id(b"something else")),
        (path(3), pointer(3)),
    ]);
    for workers in [1, 2, 3] {
        let count = Count::default();
        let mut asked = request(dir.path(), Algorithm::Both, &count);
        asked.what.git_blobs = git_blobs.clone();
        let scans = rehash_each(vec![asked], jobs(workers), |_, scan| scan.unwrap());
        assert_digests(&scans[0], &expected, Algorithm::Both);
        let found: Vec<_> = scans[0].files.iter().map(|f| f.git_blob).collect();
        let of = |i: usize| Some(id(&bytes(i, sizes[i])));
        assert_eq!(found, [of(0), of(1), of(2), None, None]);
        let read: u64 = count.read.lock().unwrap().values().sum();
        assert_eq!(read, sizes.iter().sum::<usize>() as u64);
        let r = scans[0].reading;
        assert_eq!(r.dont_cache + r.dropped + r.direct + r.kept, 5);
    }
}

/// The largest of all replicas first, so that no core has it alone at the end. BLAKE3
/// does not pair files, so one worker shows the order.
#[test]
fn the_largest_file_of_all_replicas_is_first() {
    #[derive(Default)]
    struct Order(Mutex<Vec<u64>>);
    impl Progress for Order {
        fn planned(&self, _: usize, _: u64) {}
        fn read(&self, _: &RelPath, bytes: u64) {
            self.0.lock().unwrap().push(bytes);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    folder(&a, &[10, 5000, 300]);
    folder(&b, &[4000, 70_000, 20]);
    let order = Order::default();
    let requests = vec![
        request(&a, Algorithm::Blake3, &order),
        request(&b, Algorithm::Blake3, &order),
    ];
    rehash_each(requests, jobs(1), |_, scan| scan.is_ok());
    let order = order.0.into_inner().unwrap();
    assert_eq!(order, [70_000, 5000, 4000, 300, 20, 10]);
}

/// Three equal files on two workers: one has two of them, and hands one over when the
/// other is done.
#[test]
fn files_handed_over_midway_keep_their_digests() {
    let dir = tempfile::tempdir().unwrap();
    let expected = folder(dir.path(), &[9 << 20, 9 << 20, 9 << 20]);
    for workers in [2, 3, 4] {
        let slow = Slow(AtomicUsize::new(0));
        let scans = rehash_each(
            vec![request(dir.path(), Algorithm::Sha256, &slow)],
            jobs(workers),
            |_, scan| scan.unwrap(),
        );
        assert_digests(&scans[0], &expected, Algorithm::Sha256);
    }
}

/// Holds the second file up, so that others wait for work.
struct Slow(AtomicUsize);

impl Progress for Slow {
    fn planned(&self, _: usize, _: u64) {}
    fn read(&self, path: &RelPath, _: u64) {
        if path.to_string() == "f1" && self.0.fetch_add(1, SeqCst) < 20 {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// A listener's panic ends the rehash; no worker waits for the one that is gone.
#[test]
fn a_panic_in_a_listener_reaches_the_caller() {
    struct Bad;
    impl Progress for Bad {
        fn planned(&self, _: usize, _: u64) {}
        fn read(&self, path: &RelPath, _: u64) {
            assert_ne!(path.to_string(), "f0", "a deliberate failure");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path(), &[1 << 20, 10, 10, 10]);
    for workers in [1, 2, 4] {
        let run = || {
            let requests = vec![request(dir.path(), Algorithm::Sha256, &Bad)];
            rehash_each(requests, jobs(workers), |_, scan| scan.is_ok())
        };
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    }
}

/// Slow limits finish too, and change no digest.
#[test]
fn a_limited_pace_gives_the_same_digests() {
    let dir = tempfile::tempdir().unwrap();
    let expected = folder(dir.path(), &[300_000, 70_000, 0]);
    let pace = Pace {
        jobs: NonZeroUsize::new(2),
        bytes_per_second: NonZeroU64::new(4_000_000),
    };
    let requests = vec![request(dir.path(), Algorithm::Both, &NoProgress)];
    let scans = rehash_each(requests, pace, |_, scan| scan.unwrap());
    assert_digests(&scans[0], &expected, Algorithm::Both);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_mixture(
        sizes in prop::collection::vec(0usize..400_000, 1..12),
        workers in 1usize..6,
        both in any::<bool>(),
    ) {
        let algorithm = if both { Algorithm::Both } else { Algorithm::Sha256 };
        let dir = tempfile::tempdir().unwrap();
        let expected = folder(dir.path(), &sizes);
        let requests = vec![request(dir.path(), algorithm, &NoProgress)];
        let scans = rehash_each(requests, jobs(workers), |_, scan| scan.unwrap());
        assert_digests(&scans[0], &expected, algorithm);
    }
}
