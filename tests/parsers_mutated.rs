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

use runseal::ecdsa_keys::{self, Curve, EcdsaSigningKey};
use runseal::keys::{self, SigningKey};
use runseal::weights::git::{ObjectDir, Revision, blob_id};
use runseal::weights::remote::failure::{End, How};
use runseal::weights::remote::{Failure, elf, protocol};
use runseal::weights::{
    Algorithm, GitId, Inventory, ListFormat, Listing, Manifest, NoProgress, Place, SavedReport,
    Wanted, What, pointer_tree, report_bytes, scan_folder, scan_place, sign_report,
};
use runseal::{envelope, json, oms, plan};
use weights_support::hub;

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
    let (large, small) = (b"large", b"small");
    let tree = serde_json::json!([
        {"type": "directory", "path": "sub", "size": 0, "oid": "0".repeat(40)},
        {"type": "file", "path": "sub/large", "size": 5, "oid": blob_id(large).to_string(),
         "lfs": {"oid": runseal::digest::Sha256Digest::of(large).hex(), "size": 5, "pointerSize": 130}},
        {"type": "file", "path": "small", "size": 5, "oid": blob_id(small).to_string(), "lastCommit": null},
    ]);
    hold("hub tree", &[tree.to_string().into_bytes()], read, 4000);
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
    // Signed: whatever becomes of the envelope, only these bytes verify.
    let key = SigningKey::from_seed(&[5; 32]);
    let trusted = [runseal::weights::NodeKey {
        replica: None,
        key: key.public(),
    }];
    let signed = sign_report(&report, &key);
    let read = |bytes: &[u8]| {
        let saved = SavedReport::parse(bytes).ok()?;
        let good = matches!(
            saved.signature(&trusted),
            runseal::weights::Signature::Verified(_)
        );
        assert!(!good || saved.report == report, "another report verifies");
        good.then_some(())
    };
    hold("signed report", &[signed], read, 2000);
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
    let names = [
        "several.safetensors",
        "single.gguf",
        "split-00001-of-00002.gguf",
        "split-00002-of-00002.gguf",
    ];
    for name in names {
        let seed = vector(&format!("vectors/foreign/{name}"));
        let dir = tempfile::tempdir().unwrap();
        for other in names
            .iter()
            .filter(|n| n.starts_with("split") && name.starts_with("split"))
        {
            let bytes = vector(&format!("vectors/foreign/{other}"));
            fs::write(dir.path().join(other), bytes).unwrap();
        }
        let read = |bytes: &[u8]| {
            fs::write(dir.path().join(name), bytes).unwrap();
            let scan = scan_folder(dir.path(), Algorithm::Sha256, &NoProgress).ok()?;
            scan.structure.problems.is_empty().then_some(())
        };
        hold(name, &[seed], read, 1500);
    }
}

/// What lies beside weights and is read for them: an index, pointers, a client's notes.
#[test]
fn files_beside_weights() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = [1, 2].map(|n| format!("model-0000{n}-of-00002.safetensors"));
    let shard = |name: &str| weights_support::safetensors(&[(name, &[1; 8])], 0);
    fs::write(dir.path().join(&a), shard("x")).unwrap();
    fs::write(dir.path().join(&b), shard("y")).unwrap();
    let map = serde_json::json!({"x": a, "y": b});
    let index = serde_json::json!({"metadata": {"total_size": 16}, "weight_map": map});
    let read = |bytes: &[u8]| {
        fs::write(dir.path().join("model.safetensors.index.json"), bytes).unwrap();
        let scan = scan_folder(dir.path(), Algorithm::Sha256, &NoProgress).ok()?;
        scan.structure.problems.is_empty().then_some(())
    };
    hold("index", &[index.to_string().into_bytes()], read, 1500);

    let checkout = tempfile::tempdir().unwrap();
    let read = |bytes: &[u8]| {
        fs::write(checkout.path().join("m.bin"), bytes).unwrap();
        // Accepted is one pointer, and then it says how long the file is.
        let listing = pointer_tree(checkout.path()).ok()?;
        assert_eq!(listing.file_count(), 1);
        listing.entries().next()?.size
    };
    let pointer = hub::pointer(b"content").into_bytes();
    hold("pointer", std::slice::from_ref(&pointer), read, 1500);
    // Where weights should be, it is always found; what is almost one may be anything.
    let read = |bytes: &[u8]| {
        fs::write(checkout.path().join("m.bin"), bytes).unwrap();
        let scan = scan_folder(checkout.path(), Algorithm::Sha256, &NoProgress).ok()?;
        (!scan.structure.problems.is_empty()).then_some(())
    };
    hold("pointer as weights", &[pointer], read, 1500);
}

#[test]
fn what_hub_clients_leave_behind() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), b"{}").unwrap();
    let etag = blob_id(b"{}").to_string();
    hub::metadata(dir.path(), "config.json", hub::COMMIT, &etag);
    let path = ".cache/huggingface/download/config.json.metadata";
    let path = dir.path().join(path);
    let seed = fs::read(&path).unwrap();
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let place = Place::locate(dir.path(), Wanted::default()).ok()?;
        let claim = place.layout().claims.first()?.clone();
        let scan = scan_place(place, What::default(), Algorithm::Sha256, &NoProgress);
        assert!(scan.is_ok());
        claim.commit
    };
    hold("metadata", &[seed], read, 1500);

    let cache = hub::Cache::new(dir.path());
    cache.snapshot(hub::OTHER, &hub::files());
    let read = |bytes: &[u8]| {
        fs::write(cache.root.join("refs/main"), bytes).unwrap();
        let place = Place::locate(&cache.root, Wanted::default()).ok()?;
        // Never another snapshot than one that is there.
        let revision = place.layout().revision.clone()?;
        assert!([hub::COMMIT, hub::OTHER].contains(&revision.as_str()));
        Some(())
    };
    hold("ref", &[hub::COMMIT.into(), hub::OTHER.into()], read, 1500);

    // A link of a snapshot leads to a blob of the same cache, or is not followed.
    cache.point("main", hub::COMMIT);
    let link = cache.at(hub::COMMIT, "config.json");
    let target = fs::read_link(&link).unwrap();
    let read = |bytes: &[u8]| {
        use std::os::unix::ffi::OsStrExt;
        fs::remove_file(&link).unwrap();
        let target = std::ffi::OsStr::from_bytes(bytes);
        if std::os::unix::fs::symlink(target, &link).is_err() {
            std::os::unix::fs::symlink("nowhere", &link).unwrap();
        }
        let scan = scan_folder(&cache.root, Algorithm::Sha256, &NoProgress).ok()?;
        let mut files = scan.files.iter();
        let file = files.find(|f| f.path.as_bytes() == b"config.json")?;
        let blob = file.blob.as_ref().filter(|_| file.sha256.is_some())?;
        assert!(cache.root.join("blobs").join(blob).is_file(), "{blob}");
        Some(())
    };
    let seed = target.to_str().unwrap().as_bytes().to_vec();
    hold("link", &[seed], read, 500);
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

    // As git stores it: named by the id that its bytes must still have.
    let id = store(dir.path(), "tree", &tree);
    fs::remove_file(dir.path().join(id.to_string())).unwrap();
    let whole = store(dir.path(), "commit", commit(id).as_bytes());
    let header = format!("tree {}\0", tree.len()).into_bytes();
    let framed = [header, tree.clone()].concat();
    let loose = miniz_oxide::deflate::compress_to_vec_zlib(&framed, 6);
    let name = id.to_string();
    let (two, rest) = name.split_at(2);
    fs::create_dir(dir.path().join(two)).unwrap();
    let of_loose = |bytes: &[u8]| {
        fs::write(dir.path().join(two).join(rest), bytes).unwrap();
        let revision = read(whole)?;
        assert_eq!(revision.blobs.len(), 2, "other bytes with the same id");
        Some(())
    };
    hold("loose object", &[loose, framed], of_loose, 1500);

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
    // What is inside, where base64 keeps mutations of the outside from getting.
    let payloads: Vec<_> = seeds
        .iter()
        .map(|b| oms::Bundle::parse(b).unwrap().payload().to_vec())
        .collect();
    let key = EcdsaSigningKey::generate(Curve::P256).unwrap();
    let public = key.public();
    let read = |bytes: &[u8]| {
        let bundle = oms::Bundle::sign(bytes.to_vec(), &key).to_bytes();
        let listing = oms::read_manifest(&bundle, Some(&public)).ok()?.listing;
        assert!(listing.file_count() > 0);
        for entry in listing.entries() {
            let mut parts = entry.path.as_bytes().split(|b| *b == b'/');
            assert!(parts.all(|p| !matches!(p, b"" | b"." | b"..")));
        }
        Some(())
    };
    hold("oms statement", &payloads, read, 300);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), b"x").unwrap();
    let read = |bytes: &[u8]| {
        let bundle = oms::Bundle::sign(bytes.to_vec(), &key).to_bytes();
        let at = oms::Where::at(dir.path());
        let report = oms::check_folder(at, &bundle, Some(&public), &NoProgress);
        assert!(!report.verified, "a folder of other files verifies");
        report.statement.map(|_| ())
    };
    hold("oms folder", &payloads, read, 100);
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
    // Both directions of a whole rehash.
    let dir = tempfile::tempdir().unwrap();
    weights_support::checkpoint(dir.path());
    let manifest = weights_support::pin(dir.path());
    let expected = serde_json::to_value(protocol::Expected::of(manifest.as_ref())).unwrap();
    let rehash = serde_json::json!({"message": "rehash", "is": {
        "path": "/m", "expected": expected, "algorithm": "sha256", "replica": "r0", "role": "target",
    }});
    let report = weights_support::report(dir.path(), &manifest, "r0");
    let report = String::from_utf8(report_bytes(&report)).unwrap();
    let answer = serde_json::json!({"message": "report", "is": {"report": report}});
    let hello = serde_json::json!({"message": "hello", "is": {
        "protocol": protocol::PROTOCOL, "version": "1", "binary_sha256": "0".repeat(64),
        "boot_id": "b", "arch": "x86_64",
    }});
    let seeds = [rehash, answer, hello].map(|v| format!("{v}\n").into_bytes());
    let read = |bytes: &[u8]| {
        let mut input = BufReader::new(bytes);
        let message = protocol::read(&mut input, protocol::MAX_LARGE).ok()?;
        match message {
            protocol::Message::Rehash(request) => {
                request.expected.listing().ok()?;
            }
            protocol::Message::Report { report, .. } => {
                SavedReport::parse(report.as_bytes()).ok()?;
            }
            _ => {}
        }
        Some(())
    };
    hold("rehash", &seeds, read, 1000);
}

#[test]
fn keys_programs_and_last_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key.pem");
    let key = SigningKey::from_seed(&[7; 32]);
    let ecdsa = EcdsaSigningKey::generate(Curve::P384).unwrap();
    let put = |bytes: &[u8]| {
        use std::os::unix::fs::PermissionsExt;
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    };
    type Load<'a> = &'a dyn Fn() -> bool;
    let loads: [(&str, Vec<u8>, Load); 4] = [
        ("secret", key.to_pem().as_bytes().to_vec(), &|| {
            keys::load_secret(&path).is_ok()
        }),
        ("public", key.public().to_pem().into_bytes(), &|| {
            keys::load_public(&path).is_ok()
        }),
        ("ecdsa secret", ecdsa.to_pem().as_bytes().to_vec(), &|| {
            ecdsa_keys::load_secret(&path).is_ok()
        }),
        (
            "ecdsa public",
            ecdsa.public().to_pem().into_bytes(),
            &|| ecdsa_keys::load_public(&path).is_ok(),
        ),
    ];
    for (name, seed, load) in loads {
        let read = |bytes: &[u8]| {
            put(bytes);
            load().then_some(())
        };
        hold(name, &[seed], read, 400);
    }

    let own = fs::read("/proc/self/exe").unwrap()[..4096].to_vec();
    hold("elf", &[own], elf::read, 2000);

    // What ssh or a node says last is only ever sorted, never believed or refused.
    let words = b"ssh: connect to host gx1 port 22: Connection refused\n\
        @    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nPermission denied (publickey).\n";
    let read = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let end = |ssh, how| End {
            how,
            stderr: text.clone(),
            ssh,
            ..End::default()
        };
        for how in [How::Code(255), How::Code(1), How::Signal(9), How::Forced] {
            for ssh in [true, false] {
                let failure = Failure::classify(&end(ssh, how));
                assert!(!failure.detail.contains('\n'));
            }
        }
        std::str::from_utf8(bytes).ok().map(|_| ())
    };
    hold("last words", &[words.to_vec()], read, 1000);
}
