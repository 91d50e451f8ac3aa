//! What a rehash leaves behind in memory: nothing in the page cache that was not
//! there, and a small process, whatever the size of the files. Seen from outside, by
//! the kernel's own counts.

mod weights_support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use runseal_kernel::pages;
use serde_json::Value;
use weights_support::{answer, pin, safetensors};

const SIZE: usize = 24 << 20;
const LARGEST_PAGE: u64 = 64 * 1024;

/// A folder beside the program: /tmp may be memory, which is all page cache.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn noise() -> Vec<u8> {
    (0..SIZE).map(|i| ((i / 5) ^ (i / 4096)) as u8).collect()
}

fn write(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// Pages of a file in the page cache.
fn cached(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    pages::cached(&file, 0, 0).unwrap()
}

fn evict(path: &Path) {
    let file = File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn warm(path: &Path, bytes: u64) {
    let file = File::open(path).unwrap();
    // Exactly so much, and nothing ahead of it.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    std::io::copy(&mut file.take(bytes), &mut std::io::sink()).unwrap();
}

/// Why this file system or kernel cannot be asked, if so.
fn cannot(path: &Path) -> Option<String> {
    let file = File::open(path).unwrap();
    if let Err(e) = pages::cached(&file, 0, 0) {
        return Some(format!("the kernel does not count cached pages: {e}"));
    }
    warm(path, 1 << 20);
    if cached(path) == 0 {
        return Some("this file system keeps nothing in the page cache".to_owned());
    }
    evict(path);
    (cached(path) > 0).then(|| "this file system lets nothing be dropped".to_owned())
}

struct Set {
    dir: tempfile::TempDir,
    cold: std::path::PathBuf,
    half: std::path::PathBuf,
}

impl Set {
    /// Two files and their manifest; nothing when it would prove nothing here.
    fn new() -> Option<Self> {
        let dir = folder();
        let model = dir.path().join("model");
        fs::create_dir(&model).unwrap();
        // The header of the one is read for the structure, beside the hashing.
        let (cold, half) = (model.join("cold.safetensors"), model.join("half.bin"));
        write(&cold, &safetensors(&[("t", &noise())], 4000));
        write(&half, &noise());
        fs::write(dir.path().join("m.json"), pin(&model).to_bytes()).unwrap();
        if let Some(why) = cannot(&cold) {
            eprintln!("not performed: {why}");
            return None;
        }
        Some(Self { dir, cold, half })
    }

    fn command(&self, program: &Path, before: &[&str], more: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path()).args(before).args([
            "weights",
            "model",
            "--manifest",
            "m.json",
            "--format",
            "json",
        ]);
        command.args(more);
        command
    }

    /// Runs a rehash with one file cold and half of the other cached. What was
    /// cached stays, and nothing else is there afterwards but `header` pages, at most.
    /// Returns how it read.
    fn rehash(&self, mut command: Command, header: u64) -> Value {
        // The kernel may take pages away by itself, and on a busy machine does.
        let mut gone = 0;
        for _ in 0..5 {
            evict(&self.cold);
            evict(&self.half);
            warm(&self.half, SIZE as u64 / 2);
            let before = cached(&self.half);
            assert!(before >= SIZE as u64 / 2 / LARGEST_PAGE, "{before} pages");
            let answer = answer(command.output().unwrap());
            let (cold, half) = (cached(&self.cold), cached(&self.half));
            assert_eq!(answer.code, 0, "{answer:?}");
            let reading = answer.json()["replicas"][0]["report"]["reading"].clone();
            assert_eq!(reading["kept"], 0, "{reading}");
            assert!(
                cold <= header,
                "{cold} pages left of a cold file, {reading}"
            );
            assert!(half <= before, "{half} of {before} pages, {reading}");
            gone = before - half;
            if gone == 0 {
                return reading;
            }
        }
        panic!("{gone} pages that were cached before are gone");
    }
}

fn verify() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_verify"))
}

#[test]
fn the_page_cache_is_left_as_it_was() {
    let Some(set) = Set::new() else { return };
    for more in [&[][..], &["--jobs", "1"], &["--io-limit", "400"]] {
        let reading = set.rehash(set.command(verify(), &[], more), 0);
        let files: u64 = reading
            .as_object()
            .unwrap()
            .values()
            .filter_map(Value::as_u64)
            .sum();
        assert_eq!(files, 2);
        // Nothing was cached, and the kernel could tell.
        assert!(reading["dropped"].as_u64() >= Some(1), "{reading}");
    }
}

/// The same on kernels that lack the newer calls.
#[test]
fn on_older_kernels_too() {
    let helper = verify().with_file_name("examples").join("older-kernel");
    let told = Command::new(&helper)
        .args(["no-dontcache", "no-cachestat", "--self-test"])
        .output()
        .unwrap();
    assert_eq!(told.stdout, b"Ok((false, false))\n", "{told:?}");
    let Some(set) = Set::new() else { return };
    let verify = verify().to_str().unwrap();
    let reading = set.rehash(set.command(&helper, &["no-dontcache", verify], &[]), 0);
    assert_eq!(reading["dropped"], 2, "{reading}");
    let reading = set.command(&helper, &["no-dontcache", "no-cachestat", verify], &[]);
    // The header is read again for the structure, with plain reads.
    let reading = set.rehash(reading, 3);
    assert_eq!(reading["direct"], 2, "{reading}");
}

#[test]
fn the_report_for_people_says_how_the_files_were_read() {
    let Some(set) = Set::new() else { return };
    evict(&set.cold);
    evict(&set.half);
    let mut command = Command::new(verify());
    command.args(["weights", "model", "--manifest", "m.json"]);
    let answer = answer(command.current_dir(set.dir.path()).output().unwrap());
    assert_eq!(answer.code, 0, "{answer:?}");
    let line = "\npage cache left as it was: 2 files dropped behind the reader\n";
    assert!(answer.stdout.contains(line), "{answer:?}");
}

/// Peak resident memory of a child, bytes: the kernel keeps it while it lives.
fn peak(mut child: Child) -> u64 {
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) * 1024);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    assert!(out.contains("verified"), "{out}");
    peak
}

/// Holes cost no disk, and are read like anything else.
#[test]
fn memory_does_not_grow_with_the_files() {
    const MOST: u64 = 32 << 20;
    let peaks: Vec<u64> = [8 << 20, 256 << 20]
        .map(|size: u64| {
            let dir = folder();
            let model = dir.path().join("model");
            fs::create_dir(&model).unwrap();
            for i in 0..3 {
                let file = File::create(model.join(format!("f{i}"))).unwrap();
                file.set_len(size).unwrap();
            }
            fs::write(dir.path().join("m.json"), pin(&model).to_bytes()).unwrap();
            let mut command = Command::new(verify());
            command.args(["weights", "model", "--manifest", "m.json"]);
            command.current_dir(dir.path()).stdout(Stdio::piped());
            peak(command.spawn().unwrap())
        })
        .into();
    // A look between start and end was enough to see something.
    assert!(peaks.iter().all(|p| *p > 1 << 20), "{peaks:?}");
    assert!(peaks.iter().all(|p| *p <= MOST), "{peaks:?}");
}
