//! Every reader of a file that somebody else wrote, on files that are almost
//! right: bytes flipped, cut, doubled, spliced with another file, numbers made
//! huge. None may panic or run away, and what is accepted keeps its promises.
//!
//! The mutations follow from a fixed seed, so a failure is met again.
//! `RUNSEAL_MUTATIONS=N` makes N per file instead of the default.

use std::fs;
use std::io::BufReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use runseal::weights::git::{ObjectDir, Revision};
use runseal::weights::remote::protocol;
use runseal::weights::{
    Algorithm, GitId, Inventory, ListFormat, Listing, Manifest, NoProgress, SavedReport,
    report_bytes, scan_folder,
};
use runseal::{envelope, json, oms, plan};

mod weights_support;

/// SplitMix64: small, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below.max(1) as u64) as usize
    }

    /// A file that is almost `seed`.
    fn mutate(&mut self, seed: &[u8], other: &[u8]) -> Vec<u8> {
        let mut out = seed.to_vec();
        for _ in 0..=self.roll(3) {
            let at = self.roll(out.len() + 1);
            let to = (at + 1 + self.roll(24)).min(out.len());
            match self.roll(9) {
                0 if at < out.len() => out[at] ^= 1 << self.roll(8),
                1 if at < out.len() => out[at] = self.roll(256) as u8,
                2 => out.truncate(at),
                3 => drop(out.drain(at.min(to)..to)),
                4 => {
                    let again = out[at.min(to)..to].to_vec();
                    out.splice(at..at, again);
                }
                5 => {
                    let from = self.roll(other.len() + 1);
                    let piece = other[from..].iter().take(40).copied();
                    let piece: Vec<u8> = piece.collect();
                    out.splice(at..at, piece);
                }
                6 => {
                    let words: [&[u8]; 9] = [
                        b"18446744073709551615",
                        b"-1",
                        b"1e999",
                        b"../",
                        b"\0",
                        b"\r\n",
                        b"\xff",
                        b"[[[[[[[[",
                        b"null",
                    ];
                    out.splice(at..at, words[self.roll(words.len())].iter().copied());
                }
                7 if at + 8 <= out.len() => {
                    let huge = [u64::MAX, 1 << 62, 1 << 32, 0][self.roll(4)];
                    out[at..at + 8].copy_from_slice(&huge.to_le_bytes());
                }
                _ => out.extend_from_slice(&other[..other.len().min(9)]),
            }
        }
        out
    }
}

fn mutations(default: usize) -> usize {
    let asked = std::env::var("RUNSEAL_MUTATIONS").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn vector(path: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests");
    fs::read(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Reads every seed as it is, which must succeed, and then many that are almost it.
fn hold<T>(name: &str, seeds: &[Vec<u8>], read: impl Fn(&[u8]) -> Option<T>, n: usize) {
    let mut dice = Dice(name.bytes().map(u64::from).sum());
    let (mut good, mut bad) = (0, 0);
    for (i, seed) in seeds.iter().enumerate() {
        assert!(read(seed).is_some(), "{name}: seed {i} is not accepted");
        for _ in 0..mutations(n) {
            let other = &seeds[dice.roll(seeds.len())];
            let bytes = dice.mutate(seed, other);
            match catch_unwind(AssertUnwindSafe(|| read(&bytes).is_some())) {
                Ok(true) => good += 1,
                Ok(false) => bad += 1,
                Err(_) => panic!("{name} panics on {}", hex::encode(&bytes)),
            }
        }
    }
    // Neither "accepts everything" nor "accepts nothing" would have tried much.
    assert!(bad > 0, "{name}: nothing was refused ({good} accepted)");
}

#[test]
fn lists_of_other_programs() {
    let list = |name: &str| vector(&format!("vectors/foreign/{name}"));
    let names = [
        "SHA256SUMS",
        "SHA256SUMS.binary",
        "SHA256SUMS.tag",
        "hashdeep.txt",
    ];
    let seeds: Vec<_> = names.map(list).into();
    let read = |bytes: &[u8]| {
        let listing = Listing::read(bytes, None).ok()?;
        // Nothing that was accepted is empty or leads elsewhere.
        assert!(listing.file_count() > 0);
        for entry in listing.entries() {
            let path = entry.path.as_bytes();
            let mut parts = path.split(|b| *b == b'/');
            assert!(parts.all(|p| !matches!(p, b"" | b"." | b"..")));
        }
        Some(listing)
    };
    hold("lists", &seeds, read, 4000);
    let b3 = [list("B3SUMS")];
    let told = Some(ListFormat::B3sum);
    hold("b3sum", &b3, |b| Listing::read(b, told).ok(), 4000);
}

#[test]
fn own_manifests_and_reports() {
    let dir = tempfile::tempdir().unwrap();
    weights_support::checkpoint(dir.path());
    let manifest = weights_support::pin(dir.path());
    let read = |bytes: &[u8]| {
        let read = Manifest::parse(bytes).ok()?;
        assert_eq!(Manifest::parse(&read.to_bytes()).unwrap(), read);
        Some(read)
    };
    hold("manifest", &[manifest.to_bytes()], read, 6000);
    let report = weights_support::report(dir.path(), &manifest, "r0");
    let read = |bytes: &[u8]| {
        let saved = SavedReport::parse(bytes).ok()?;
        // Whatever a report says, judging it ends.
        runseal::weights::check_report(&manifest, &saved.report);
        Some(saved)
    };
    hold("report", &[report_bytes(&report)], read, 2000);
}

#[test]
fn inventories() {
    let seed = br#"format = "runseal.cluster/v1"
manifest = "m.json"
[manifests]
draft = "d.json"
[[replica]]
name = "gx0"
transport = "local"
path = "/m"
paths.draft = "/d"
[[replica]]
name = "gx1"
transport = "ssh"
host = "gx1.lan"
user = "u"
port = 22
path = "/m"
paths.draft = "/d"
sudo = true
[[replica]]
name = "gx2"
transport = "command"
command = ["srun", "-w", "{host}", "{agent}"]
path = "/m"
paths.draft = "/d"
"#;
    let read = |bytes: &[u8]| Inventory::parse(std::str::from_utf8(bytes).ok()?).ok();
    hold("inventory", &[seed.to_vec()], read, 4000);
}

#[test]
fn weight_files() {
    let names = ["several.safetensors", "single.gguf"];
    for name in names {
        let seed = vector(&format!("vectors/foreign/{name}"));
        let dir = tempfile::tempdir().unwrap();
        let read = |bytes: &[u8]| {
            fs::write(dir.path().join(name), bytes).unwrap();
            let scan = scan_folder(dir.path(), Algorithm::Sha256, &NoProgress).ok()?;
            scan.structure.problems.is_empty().then_some(())
        };
        hold(name, &[seed], read, 1500);
    }
}

/// A mutation of a git object is another object, so it is stored under its own id.
fn store(dir: &Path, kind: &str, bytes: &[u8]) -> GitId {
    let framed = [format!("{kind} {}\0", bytes.len()).as_bytes(), bytes].concat();
    let id = hex::encode(<sha1::Sha1 as sha1::Digest>::digest(&framed));
    fs::write(dir.join(&id), bytes).unwrap();
    id.parse().unwrap()
}

#[test]
fn git_objects() {
    let commit = |tree: GitId| format!("tree {tree}\nauthor A <a@b> 1 +0000\n\nx\n");
    let dir = tempfile::tempdir().unwrap();
    let read = |commit| Revision::read(&ObjectDir::new(dir.path()), commit).ok();

    let tree = [&b"100644 a\0"[..], &[7; 20], b"100755 b.bin\0", &[8; 20]].concat();
    let of_tree = |bytes: &[u8]| {
        let tree = store(dir.path(), "tree", bytes);
        let revision = read(store(dir.path(), "commit", commit(tree).as_bytes()))?;
        // As many names as there are, and none that leads elsewhere.
        let paths = revision.blobs.keys().map(|p| p.as_bytes());
        for path in paths {
            assert!(!path.contains(&b'/') && !matches!(path, b"." | b".."));
        }
        Some(())
    };
    hold("tree", std::slice::from_ref(&tree), of_tree, 1500);

    let tree = store(dir.path(), "tree", &tree);
    let of_commit = |bytes: &[u8]| read(store(dir.path(), "commit", bytes)).map(|_| ());
    hold("commit", &[commit(tree).into_bytes()], of_commit, 1500);
}

#[test]
fn signed_things() {
    let names = [
        "files-sha256-p256.sig",
        "shards-sha256-p384.sig",
        "files-blake3-p384.sig",
    ];
    let seeds: Vec<_> = names.map(|n| vector(&format!("vectors/oms/{n}"))).into();
    hold("oms", &seeds, |b| oms::read_manifest(b, None).ok(), 1500);
    let golden = |name: &str| vector(&format!("golden/completed/{name}"));
    let envelopes = [golden("record.intoto.jsonl")];
    hold(
        "envelope",
        &envelopes,
        |b| envelope::parse_own_lines(b).ok(),
        2000,
    );
    let plans = [golden("plan.json")];
    hold(
        "plan",
        &plans,
        |b| json::from_slice::<plan::RunPlan>(b).ok(),
        3000,
    );
}

#[test]
fn messages_of_an_agent() {
    let seeds = [
        br#"{"message":"progress","is":{"bytes":1}}"#.to_vec(),
        br#"{"message":"planned","is":{"files":1,"bytes":2}}"#.to_vec(),
        br#"{"message":"unreachable","is":{"code":"replica-unreachable","reason":"x"}}"#.to_vec(),
    ];
    let seeds = seeds.map(|s| [s, b"\n".to_vec()].concat());
    let read = |bytes: &[u8]| {
        let mut input = BufReader::new(bytes);
        protocol::read(&mut input, protocol::MAX_SMALL).ok()
    };
    hold("message", &seeds, read, 4000);
}
