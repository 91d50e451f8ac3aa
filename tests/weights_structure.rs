//! What the weight files say about themselves, beside the digests and without
//! them, through the real binary.

mod weights_support;

use std::fs;
use std::path::{Path, PathBuf};

use weights_support::*;

/// A checkpoint of two shards with an index, or with GGUF files, and its manifest.
struct Model(tempfile::TempDir);

const A: &str = "model-00001-of-00002.safetensors";
const B: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const PARTS: [&str; 2] = ["split-00001-of-00002.gguf", "split-00002-of-00002.gguf"];

fn foreign(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/foreign");
    fs::read(folder.join(name)).unwrap()
}

fn index(total: u64) -> String {
    serde_json::json!({
        "metadata": {"total_size": total},
        "weight_map": {"embed": A, "layer.0": A, "layer.1": B},
    })
    .to_string()
}

impl Model {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("model")).unwrap();
        for (name, bytes) in files {
            fs::write(dir.path().join("model").join(name), bytes).unwrap();
        }
        let this = Self(dir);
        this.pin();
        this
    }

    fn sharded() -> Self {
        Self::new(&[
            (
                A,
                safetensors(&[("embed", &[1; 64]), ("layer.0", &[2; 8])], 0),
            ),
            (B, safetensors(&[("layer.1", &[3; 40])], 0)),
            (INDEX, index(112).into_bytes()),
            ("other.safetensors", foreign("several.safetensors")),
        ])
    }

    fn gguf() -> Self {
        let names = ["single.gguf", PARTS[0], PARTS[1]];
        Self::new(&names.map(|n| (n, foreign(n))))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join("model").join(name)
    }

    fn pin(&self) {
        let manifest = pin(&self.0.path().join("model"));
        fs::write(self.0.path().join("m.json"), manifest.to_bytes()).unwrap();
    }

    fn edit(&self, name: &str, edit: impl Fn(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.at(name)).unwrap();
        edit(&mut bytes);
        fs::write(self.at(name), bytes).unwrap();
    }

    fn run(&self, more: &[&str]) -> (i32, Vec<(String, String)>) {
        let args = [&["weights", "model", "--format", "json"], more].concat();
        let answer = verify_in(self.0.path(), &args);
        (answer.code, answer.findings())
    }

    /// Codes with the manifest, checked for the same structural ones without it.
    fn codes(&self, structural: &[(&str, &str)]) -> Vec<(String, String)> {
        let (code, findings) = self.run(&[]);
        let expected = [&[("not-compared", "model")], structural].concat();
        let subject = |s: &str| {
            if s == "model" {
                s.to_owned()
            } else {
                format!("model/{s}")
            }
        };
        let expected: Vec<_> = expected
            .iter()
            .map(|(c, s)| ((*c).to_owned(), subject(s)))
            .collect();
        assert_eq!((code, findings), (1, expected));
        self.run(&["--manifest", "m.json"]).1
    }
}

fn finding(code: &str, name: &str) -> (String, String) {
    (code.to_owned(), format!("model/{name}"))
}

#[test]
fn whole_models_have_no_findings_and_no_manifest_is_no_pass() {
    for model in [Model::sharded(), Model::gguf()] {
        assert_eq!(model.codes(&[]), []);
        assert_eq!(model.run(&["--manifest", "m.json"]).0, 0);
        // Even when replicas are asserted, or compared with each other.
        let (code, findings) = model.run(&["--replicas", "1"]);
        assert_eq!(code, 1);
        assert!(findings.iter().any(|(c, _)| c == "replica-count"));
    }
    let model = Model::sharded();
    let human = verify_in(model.0.path(), &["weights", "model"]);
    assert_eq!(human.code, 1);
    for says in [
        "manifest  none\n",
        "model  not checked",
        "(of what was found, not pinned)",
        "3 safetensors, 0 GGUF, structure as it should be",
        "there is no manifest, so nothing was compared",
        "not verified: 1 finding",
    ] {
        assert!(human.stdout.contains(says), "{says}: {}", human.stdout);
    }
}

#[test]
fn a_truncated_shard_is_called_that() {
    let m = Model::sharded();
    m.edit(B, |b| b.truncate(b.len() - 1));
    let found = m.codes(&[("shard-truncated", B)]);
    assert_eq!(
        found,
        [finding("size-mismatch", B), finding("shard-truncated", B)]
    );
    // Pinned like that, the digest agrees and the structure still does not.
    m.pin();
    let (code, found) = m.run(&["--manifest", "m.json"]);
    assert_eq!((code, found), (1, vec![finding("shard-truncated", B)]));
    m.edit("other.safetensors", |b| b.truncate(4));
    assert_eq!(m.run(&[]).1[1..].len(), 2);
}

#[test]
fn a_tail_and_a_broken_header() {
    let m = Model::sharded();
    m.edit(A, |b| b.push(0));
    let found = m.codes(&[("shard-overlong", A)]);
    assert_eq!(
        found,
        [finding("size-mismatch", A), finding("shard-overlong", A)]
    );
    let m = Model::sharded();
    m.edit(A, |b| b[9] = b'!');
    let found = m.codes(&[("safetensors-malformed", A)]);
    assert_eq!(
        found,
        [
            finding("digest-mismatch", A),
            finding("safetensors-malformed", A)
        ]
    );
}

#[test]
fn swapped_shards_are_called_that_by_digest_and_by_tensors() {
    let m = Model::sharded();
    let (a, b) = (fs::read(m.at(A)).unwrap(), fs::read(m.at(B)).unwrap());
    fs::write(m.at(A), &b).unwrap();
    fs::write(m.at(B), &a).unwrap();
    let found = m.codes(&[("shard-swapped", A), ("shard-swapped", B)]);
    let both = [A, B].map(|s| [finding("size-mismatch", s), finding("shard-swapped", s)]);
    assert_eq!(found, both.concat());
    // Another checkpoint's shard, of the same tensors as its neighbour.
    let m = Model::sharded();
    let stranger = safetensors(&[("embed", &[9; 64]), ("layer.0", &[9; 8])], 0);
    fs::write(m.at(B), stranger).unwrap();
    let found = m.codes(&[("shard-swapped", B)]);
    assert_eq!(
        found,
        [finding("size-mismatch", B), finding("shard-swapped", B)]
    );
}

#[test]
fn index_and_headers_that_differ() {
    let m = Model::sharded();
    m.edit(INDEX, |b| {
        *b = index(112).replace("layer.1", "layer.2").into_bytes()
    });
    assert_eq!(
        m.codes(&[("index-mismatch", B)]),
        [
            finding("index-mismatch", B),
            finding("digest-mismatch", INDEX)
        ]
    );
    let m = Model::sharded();
    fs::remove_file(m.at(B)).unwrap();
    let found = m.codes(&[("index-mismatch", INDEX)]);
    assert_eq!(
        found,
        [finding("file-missing", B), finding("index-mismatch", INDEX)]
    );
    let m = Model::sharded();
    m.edit(INDEX, |b| *b = b"{}".to_vec());
    assert_eq!(
        m.codes(&[("index-mismatch", INDEX)])[1],
        finding("index-mismatch", INDEX)
    );
}

#[test]
fn what_some_publishers_get_wrong_is_a_note() {
    // With everything else right, these do not keep a checkpoint from verifying.
    for (name, bytes, code) in [
        (INDEX, index(113).into_bytes(), "index-total-size"),
        (
            B,
            safetensors(&[("layer.1", &[3; 40]), ("stray", &[1])], 0),
            "index-unlisted",
        ),
        (
            "odd.safetensors",
            b"\x31\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"Q9\",\"shape\":[1],\"data_offsets\":[0,1]}}"
                .to_vec(),
            "structure-not-checked",
        ),
        (
            "odd.gguf",
            b"GGUF\x09\0\0\0".to_vec(),
            "structure-not-checked",
        ),
    ] {
        let m = Model::sharded();
        let mut bytes = bytes;
        if name == "odd.safetensors" {
            bytes[0] = (bytes.len() - 8) as u8;
            bytes.push(0);
        }
        fs::write(m.at(name), bytes).unwrap();
        m.pin();
        let (exit, found) = m.run(&["--manifest", "m.json"]);
        assert_eq!((exit, found), (0, vec![finding(code, name)]));
    }
}

#[test]
fn gguf_files_cut_short_or_broken() {
    let m = Model::gguf();
    m.edit("single.gguf", |b| b.truncate(b.len() - 100));
    let found = m.codes(&[("gguf-truncated", "single.gguf")]);
    assert_eq!(
        found,
        [
            finding("size-mismatch", "single.gguf"),
            finding("gguf-truncated", "single.gguf")
        ]
    );
    let m = Model::gguf();
    m.edit("single.gguf", |b| b[0] = b'X');
    m.codes(&[("gguf-malformed", "single.gguf")]);
    let m = Model::gguf();
    m.edit("single.gguf", |b| b.extend([0; 64]));
    m.codes(&[("gguf-malformed", "single.gguf")]);
}

#[test]
fn gguf_splits_incomplete_or_exchanged() {
    let m = Model::gguf();
    fs::remove_file(m.at(PARTS[1])).unwrap();
    let found = m.codes(&[("gguf-split", PARTS[0])]);
    assert_eq!(
        found,
        [
            finding("gguf-split", PARTS[0]),
            finding("file-missing", PARTS[1])
        ]
    );
    let m = Model::gguf();
    let parts = PARTS.map(|p| fs::read(m.at(p)).unwrap());
    fs::write(m.at(PARTS[0]), &parts[1]).unwrap();
    fs::write(m.at(PARTS[1]), &parts[0]).unwrap();
    let found = m.codes(&[("gguf-split", PARTS[0]), ("gguf-split", PARTS[1])]);
    let each = |p| ["size-mismatch", "shard-swapped", "gguf-split"].map(|c| finding(c, p));
    assert_eq!(found, PARTS.map(each).concat());
    let m = Model::gguf();
    fs::rename(m.at(PARTS[1]), m.at("renamed.gguf")).unwrap();
    m.codes(&[("gguf-split", "renamed.gguf"), ("gguf-split", PARTS[0])]);
}

#[test]
fn a_pointer_is_no_weights() {
    let m = Model::sharded();
    let weights = fs::read(m.at(A)).unwrap();
    fs::write(m.at(A), hub::pointer(&weights)).unwrap();
    let found = m.codes(&[("lfs-pointer", A)]);
    assert_eq!(
        found,
        [finding("size-mismatch", A), finding("lfs-pointer", A)]
    );
    // In any file: tokenizers and pickles are kept in LFS too.
    let m = Model::new(&[("model.bin", hub::pointer(&weights).into_bytes())]);
    assert_eq!(
        m.codes(&[("lfs-pointer", "model.bin")]),
        [finding("lfs-pointer", "model.bin")]
    );
}

/// A file that could not be read is there: nothing that names it says otherwise.
#[test]
fn what_could_not_be_read_is_not_called_missing() {
    use std::os::unix::fs::PermissionsExt;
    let closed = |m: &Model, name: &str| {
        fs::set_permissions(m.at(name), fs::Permissions::from_mode(0o000)).unwrap();
        let args = [
            "weights",
            "model",
            "--manifest",
            "m.json",
            "--format",
            "json",
        ];
        verify_unprivileged(m.0.path(), &args)
    };
    for (m, name) in [(Model::sharded(), A), (Model::gguf(), PARTS[1])] {
        let answer = closed(&m, name);
        assert_eq!(answer.findings(), [finding("could-not-read", name)]);
        assert_eq!(answer.code, 1);
    }
    let pipe = |m: &Model, name: &str| {
        fs::remove_file(m.at(name)).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, m.at(name), kind, mode, 0).unwrap();
        m.run(&["--manifest", "m.json"]).1
    };
    assert_eq!(pipe(&Model::sharded(), A), [finding("file-type", A)]);
    let part = pipe(&Model::gguf(), PARTS[0]);
    assert_eq!(part, [finding("file-type", PARTS[0])]);
    // Nor is one that was left out because it has not moved.
    let m = Model::sharded();
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let manifest = ["--manifest", "m.json"];
    let (code, _) = m.run(&[&manifest[..], &["--save-reports", "saved"]].concat());
    assert_eq!(code, 0);
    let since = [&manifest[..], &["--changed-since", "saved"]].concat();
    let found = m.run(&since).1;
    assert!(
        found.iter().all(|(code, _)| code == "not-re-read"),
        "{found:?}"
    );
    assert_eq!(found.len(), 4);
}

#[test]
fn an_index_that_names_nothing_or_no_weights() {
    let m = Model::sharded();
    m.edit(INDEX, |b| *b = br#"{"weight_map": {}}"#.to_vec());
    m.pin();
    let (code, found) = m.run(&["--manifest", "m.json"]);
    assert_eq!((code, found), (1, vec![finding("index-mismatch", INDEX)]));
    // A set of three of which it names two.
    let m = Model::sharded();
    let three = "model-00003-of-00002.safetensors";
    fs::write(m.at(three), safetensors(&[("layer.2", &[4; 8])], 0)).unwrap();
    m.pin();
    let (code, found) = m.run(&["--manifest", "m.json"]);
    assert_eq!((code, found), (1, vec![finding("index-mismatch", three)]));
    // A file that is there, and holds no tensors that could be compared.
    let m = Model::sharded();
    m.edit(INDEX, |b| {
        *b = br#"{"weight_map": {"a": "m.bin"}}"#.to_vec()
    });
    fs::write(m.at("m.bin"), b"pickle").unwrap();
    m.pin();
    let args = ["weights", "model", "--manifest", "m.json"];
    let said = verify_in(m.0.path(), &args).stdout;
    assert!(
        said.contains("\"m.bin\", which is no safetensors file"),
        "{said}"
    );
}

#[test]
fn the_case_of_an_ending_does_not_matter() {
    let upper = |name: &str| {
        let (stem, ending) = name.split_once('.').unwrap();
        format!("{stem}.{}", ending.to_uppercase())
    };
    // In a folder: structure is looked at, and the parts of a split belong together.
    let m = Model::sharded();
    fs::rename(m.at("other.safetensors"), m.at(&upper("other.safetensors"))).unwrap();
    m.pin();
    assert_eq!(m.run(&["--manifest", "m.json"]), (0, vec![]));
    m.edit("other.SAFETENSORS", |b| b.truncate(b.len() - 1));
    m.pin();
    let (_, found) = m.run(&["--manifest", "m.json"]);
    assert_eq!(found, [finding("shard-truncated", "other.SAFETENSORS")]);

    let m = Model::gguf();
    let names = [PARTS[0], PARTS[1], "single.gguf"].map(|n| (n, upper(n)));
    for (lower, upper) in &names {
        fs::rename(m.at(lower), m.at(upper)).unwrap();
    }
    m.pin();
    assert_eq!(m.run(&["--manifest", "m.json"]), (0, vec![]));
    // As a path: a file by itself, and all parts of a split.
    let path = |name: &str| {
        let path = format!("model/{name}");
        let answer = verify_in(m.0.path(), &["weights", &path, "--format", "json"]);
        let report = answer.json()["replicas"][0]["report"].clone();
        assert_eq!(report["layout"]["kind"], "gguf_file", "{answer:?}");
        report["files"].as_array().unwrap().len()
    };
    assert_eq!(path(&names[2].1), 1);
    assert_eq!(path(&names[1].1), 2);
    fs::remove_file(m.at(&names[1].1)).unwrap();
    let (_, found) = m.run(&["--manifest", "m.json"]);
    assert!(
        found.contains(&finding("gguf-split", &names[0].1)),
        "{found:?}"
    );
    m.edit(&names[2].1, |b| b.truncate(b.len() - 100));
    let (_, found) = m.run(&[]);
    let cut = finding("gguf-truncated", &names[2].1);
    assert!(found.contains(&cut), "{found:?}");
}

#[test]
fn headers_that_lie_about_their_length_keep_nobody_waiting() {
    for length in [u64::MAX, 1 << 62, 100_000_001, 99_999_999, 0, 1] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        let m = Model::new(&[("x.safetensors", bytes)]);
        let (code, found) = m.run(&[]);
        assert_eq!((code, found.len()), (1, 2), "{length}: {found:?}");
    }
    // A table that promises more tensors than the file could hold.
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend([0xff; 16]);
    let m = Model::new(&[("x.gguf", bytes)]);
    assert_eq!(m.run(&[]).1[1], finding("gguf-truncated", "x.gguf"));
    // Sparse, so that only the header is cheap to read.
    let m = Model::new(&[("x.safetensors", vec![])]);
    let file = fs::File::create(m.at("x.safetensors")).unwrap();
    file.set_len(64 << 20).unwrap();
    assert_eq!(
        m.run(&[]).1[1],
        finding("safetensors-malformed", "x.safetensors")
    );
}
