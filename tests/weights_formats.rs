//! Foreign manifests: lists that other programs wrote, what is refused, what is
//! compared when a list says less than ours.

mod weights_support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use proptest::prelude::*;
use runseal::digest::Sha256Digest;
use runseal::relpath::RelPath;
use runseal::weights::git::blob_id;
use runseal::weights::*;
use serde_json::{Value, json};
use weights_support::*;

fn foreign(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/foreign");
    fs::read(folder.join(name)).unwrap()
}

/// The ten files that the lists in tests/vectors/foreign are of.
const NAMES: [&[u8]; 10] = [
    b" *star",
    b"#hash",
    b"a) = b",
    b"back\\slash",
    b"com,ma",
    b"na\nme",
    b"plain.txt",
    b"return\r",
    b"sub/inner.bin",
    b"\xff\xfe",
];

fn odd_names(without: &[&[u8]]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("model/sub")).unwrap();
    for name in NAMES.iter().filter(|n| !without.contains(n)) {
        let content = [b"content of ", *name, b"\n"].concat();
        fs::write(
            dir.path().join("model").join(OsStr::from_bytes(name)),
            content,
        )
        .unwrap();
    }
    dir
}

fn run(dir: &Path, manifest: &str, more: &[&str]) -> Answer {
    let args = [
        "weights",
        "model",
        "--manifest",
        manifest,
        "--format",
        "json",
    ];
    verify_in(dir, &[&args[..], more].concat())
}

#[test]
fn lists_of_other_programs_verify_clean_data_of_any_name() {
    for (list, without, format, root) in [
        ("SHA256SUMS", &[][..], "sha256sum", false),
        ("SHA256SUMS.binary", &[], "sha256sum", false),
        ("SHA256SUMS.tag", &[], "bsd_tag", false),
        ("B3SUMS", &[NAMES[9]], "b3sum", false),
        ("hashdeep.txt", &[NAMES[5]], "hashdeep", true),
    ] {
        let dir = odd_names(without);
        // The name tells b3sum from sha256sum, as its bytes do not.
        fs::write(dir.path().join(list), foreign(list)).unwrap();
        let told: &[&str] = if format == "b3sum" {
            &["--manifest-format", "b3sum"]
        } else {
            &[]
        };
        let answer = run(dir.path(), list, told);
        assert_eq!(answer.code, 0, "{list}: {answer:?}");
        let json = answer.json();
        assert_eq!(json["manifests"][0]["format"], format);
        assert_eq!(json["manifests"][0]["files"], 10 - without.len());
        // A root is only pinned when sizes were given too. What was found has one.
        assert_eq!(json["manifests"][0]["root"].is_string(), root, "{list}");
        let report = &json["replicas"][0]["report"];
        let found = pin(&dir.path().join("model")).root().hex();
        assert_eq!(report["observed_root"], found);
        assert_eq!(report["manifest_root"].is_string(), root);

        // And every file of it is really compared.
        for name in NAMES.iter().filter(|n| !without.contains(n)) {
            let path = dir.path().join("model").join(OsStr::from_bytes(name));
            let good = fs::read(&path).unwrap();
            let mut bad = good.clone();
            bad[3] ^= 1;
            fs::write(&path, bad).unwrap();
            let answer = run(dir.path(), list, told);
            let shown = RelPath::from_bytes(name).unwrap();
            let only = [("digest-mismatch".to_owned(), format!("model/{shown}"))];
            assert_eq!(
                (answer.code, answer.findings()),
                (1, only.to_vec()),
                "{list}"
            );
            fs::write(&path, good).unwrap();
        }
    }
}

#[test]
fn the_report_says_what_was_compared_and_that_no_root_was_pinned() {
    let dir = odd_names(&[NAMES[9]]);
    fs::write(dir.path().join("list.b3"), foreign("B3SUMS")).unwrap();
    let answer = verify_in(dir.path(), &["weights", "model", "--manifest", "list.b3"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let root = pin(&dir.path().join("model")).root();
    for says in [
        "manifest  list.b3: 9 files (b3sum lines)\n",
        "root      not pinned",
        "compared  9 files by BLAKE3\n",
        &format!("root      {root} (of what was found, not pinned)\n"),
    ] {
        assert!(answer.stdout.contains(says), "{says}: {}", answer.stdout);
    }
    // Read as sha256sum lines it fails; it never passes by accident.
    fs::write(dir.path().join("list"), foreign("B3SUMS")).unwrap();
    let answer = run(dir.path(), "list", &[]);
    assert_eq!((answer.code, answer.findings().len()), (1, 9));
}

#[test]
fn our_own_lines_are_read_back_and_by_sha256sum() {
    let dir = odd_names(&[]);
    let manifest = pin(&dir.path().join("model"));
    let lines = manifest.to_sha256sums();
    // Coreutils wrote the same bytes, apart from the order of the lines.
    let sorted = |bytes: &[u8]| {
        let mut lines: Vec<_> = bytes.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&lines), sorted(&foreign("SHA256SUMS")));
    let listing = Listing::read(&lines, None).unwrap();
    assert_eq!(listing.format(), ListFormat::Sha256sum);
    for (entry, file) in listing.entries().zip(manifest.files()) {
        assert_eq!((&entry.path, entry.sha256), (&file.path, Some(file.sha256)));
    }
    assert_eq!(listing.file_count(), 10);
}

fn sha(bytes: &[u8]) -> String {
    Sha256Digest::of(bytes).hex()
}

fn read(text: &str) -> Result<Listing, ManifestError> {
    Listing::read(text.as_bytes(), None)
}

#[test]
fn harmless_variations_are_accepted() {
    let d = sha(b"x");
    let path = RelPath::parse("a/b").unwrap();
    for text in [
        format!("{d}  a/b\n"),
        format!("{}  a/b\n", d.to_uppercase()),
        format!("{d}  a/b\r\n{d}  c\r\n"),
        format!("{d}  ./a/b\n"),
        format!("# comment\n\n{d} *a/b\n"),
        format!("\u{feff}{d}  a/b\n"),
        format!("SHA256 (a/b) = {d}\n"),
        format!("SHA256 (a/b) = {}\r\n", d.to_uppercase()),
        format!("%%%% HASHDEEP-1.0\r\n%%%% size,sha256,filename\r\n## c\r\n1,{d},./a/b\r\n"),
    ] {
        let listing = read(&text).unwrap();
        assert_eq!(
            listing.get(&path).unwrap().sha256.unwrap().hex(),
            d,
            "{text}"
        );
    }
    // Two algorithms of one file are one entry.
    let both = format!("SHA256 (a/b) = {d}\nBLAKE3 (a/b) = {d}\n");
    let listing = read(&both).unwrap();
    assert_eq!(listing.file_count(), 1);
    assert!(listing.get(&path).unwrap().blake3.is_some());
}

#[test]
fn what_is_garbled_or_ambiguous_is_refused_and_the_line_is_named() {
    let (d, e) = (sha(b"x"), sha(b"y"));
    let deep = "%%%% HASHDEEP-1.0\n%%%% size,sha256,filename\n";
    let tree = |entry: Value| json!([entry]).to_string();
    let plain = json!({"type": "file", "path": "a", "size": 1, "oid": "0".repeat(40)});
    let with = |key: &str, value: Value| {
        let mut v = plain.clone();
        v[key] = value;
        tree(v)
    };
    for (text, says) in [
        (String::new(), "lists no files"),
        ("\n\n".into(), "lists no files"),
        ("# only a comment\n".into(), "lists no files"),
        (format!("{d}  a"), "cut short"),
        (format!("{d}  a\n{}", &d[..20]), "cut short"),
        (format!("{d}  a\n{}\n", &d[..20]), "line 2"),
        (format!("{d}  a\nhello\n"), "line 2"),
        (format!("{d} a\n"), "line 1"),
        (format!("{d}  \n"), "known format"),
        (format!("{}g  a\n", &d[..63]), "known format"),
        (format!("{d}  a\n{d}  a\n"), "twice"),
        (format!("{d}  a\n{e}  a\n"), "contradict"),
        (format!("{d}  Model\n{d}  model\n"), "one file where case"),
        (format!("{d}  a\n{d}  a/b\n"), "as a file"),
        (format!("{d}  ../a\n"), "'..' component"),
        (format!("{d}  a/../../b\n"), "'..' component"),
        (format!("{d}  /etc/passwd\n"), "absolute"),
        (format!("{d}  a\0{d}  b\0"), "cut short"),
        (format!("{d}  a\0\n"), "NUL"),
        (format!("\\{d}  a\\t\n"), "unknown escape"),
        (format!("\\{d}  a\\\n"), "unknown escape"),
        (format!("{d}  a\nSHA256 (b) = {d}\n"), "line 2"),
        (format!("SHA256 (a) = {d}\n{d}  b\n"), "line 2"),
        (
            "MD5 (a) = d41d8cd98f00b204e9800998ecf8427e\n".into(),
            "MD5 is neither",
        ),
        (format!("SHA256 (a) = {}\n", &d[..62]), "64 hexadecimal"),
        (format!("BLAKE3 (a\u{fffd}) = {d}\n"), "U+FFFD"),
        ("%%%% HASHDEEP-1.0\n".into(), "lists no files"),
        (format!("%%%% HASHDEEP-1.0\n1,{d},a\n"), "named the columns"),
        (format!("{deep}1,{d}\n"), "fewer columns"),
        (format!("{deep}x,{d},a\n"), "size is not a number"),
        (format!("{deep}1,{},a\n", &d[..10]), "not a SHA-256"),
        (format!("{deep}1,{d},/data/a\n"), "absolute"),
        (format!("{deep}1,{d},na\nme\n"), "fewer columns"),
        (
            "%%%% HASHDEEP-1.0\n%%%% size,md5,filename\n1,aa,a\n".into(),
            "no usable digest",
        ),
        (
            format!("%%%% HASHDEEP-1.0\n%%%% filename,sha256\na,{d}\n"),
            "last column",
        ),
        ("[]".into(), "lists no files"),
        ("[{}]".into(), "path"),
        (tree(json!({"type": "file", "path": "a"})), "no size"),
        (with("path", json!("../a")), "'..' component"),
        (with("type", json!("symlink")), "neither file nor directory"),
        (with("oid", json!("main")), "40 hexadecimal"),
        (with("lfs", json!({"oid": d, "size": 2})), "contradict"),
        (with("lfs", json!({})), "lfs.oid"),
        (
            json!([plain, {"type": "directory", "path": "sub", "oid": "x", "size": 0}]).to_string(),
            "recursive",
        ),
        (format!("[{},{}]", plain, plain), "twice"),
        ("[{\"path\":\"a\",\"path\":\"b\"}]".into(), "duplicate key"),
        (
            "-----BEGIN PGP SIGNED MESSAGE-----\n".into(),
            "known format",
        ),
        ("{\"format\":\"x\"}".into(), "format"),
    ] {
        let error = read(&text).map(|l| l.file_count()).unwrap_err().to_string();
        assert!(error.contains(says), "{text:?}\n  {error}\n  {says}");
    }
    let error = Listing::read(b"\xff\xfea\0", None).unwrap_err().to_string();
    assert!(error.contains("UTF-16"), "{error}");
    // Through the program: exit 2, nothing on stdout.
    let f = Fixture::new();
    fs::write(f.dir.path().join("list"), format!("{d}  ../a\n")).unwrap();
    let answer = run(f.dir.path(), "list", &[]);
    assert_eq!((answer.code, answer.stdout.as_str()), (2, ""));
    assert!(answer.stderr.contains("line 1"), "{}", answer.stderr);
}

/// The tree listing of the test checkpoint: shards in LFS, the rest plain.
fn tree_listing() -> Value {
    let entry = |(name, bytes): (String, Vec<u8>)| {
        let mut entry = json!({
            "type": "file", "path": name, "size": bytes.len(), "oid": blob_id(&bytes).to_string(),
            "lastCommit": null,
        });
        if entry["path"].as_str().unwrap().ends_with("safetensors") {
            entry["oid"] = blob_id(hub::pointer(&bytes).as_bytes()).to_string().into();
            entry["lfs"] = json!({"oid": sha(&bytes), "size": bytes.len(), "pointerSize": 131});
            entry["xetHash"] = json!("0".repeat(64));
        }
        entry
    };
    let mut entries: Vec<_> = hub::files().into_iter().map(entry).collect();
    entries
        .push(json!({"type": "directory", "path": "original", "size": 0, "oid": "0".repeat(40)}));
    entries.into()
}

#[test]
fn a_hub_listing_compares_large_files_by_sha256_and_small_ones_by_blob_id() {
    let f = Fixture::new();
    fs::write(f.dir.path().join("tree.json"), tree_listing().to_string()).unwrap();
    let check = || run(f.dir.path(), "tree.json", &[]);
    let answer = check();
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(
        answer.findings(),
        [("compared-by-sha1".to_owned(), "model".to_owned())]
    );
    let json = answer.json();
    assert_eq!(json["manifests"][0]["format"], "hf_tree");
    assert!(json["manifests"][0]["root"].is_null());
    let report = &json["replicas"][0]["report"];
    assert_eq!(report["observed_root"], f.manifest.root().hex());
    for file in report["files"].as_array().unwrap() {
        let large = file["path"].as_str().unwrap().ends_with("safetensors");
        let by = if large { "sha256" } else { "git_blob" };
        assert_eq!(file["compared"], json!([by]));
    }
    let human = verify_in(
        f.dir.path(),
        &["weights", "model", "--manifest", "tree.json"],
    );
    assert!(
        human
            .stdout
            .contains("compared  3 files by SHA-256, 2 files by git blob id"),
        "{}",
        human.stdout
    );

    for name in [SHARDS[0], "config.json"] {
        let good = content(name);
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        fs::write(f.at(name), bad).unwrap();
        let answer = check();
        assert_eq!(answer.code, 1);
        let found = ("digest-mismatch".to_owned(), format!("model/{name}"));
        assert!(answer.findings().contains(&found), "{answer:?}");
        fs::write(f.at(name), good).unwrap();
    }
    fs::write(f.at("config.json"), "short").unwrap();
    assert_eq!(check().findings()[1].0, "size-mismatch");
}

#[test]
fn a_report_on_a_foreign_list_is_checked_again_like_any_other() {
    let f = Fixture::new();
    let listing = Listing::read(tree_listing().to_string().as_bytes(), None).unwrap();
    let scan = rehash(&f.root(), &listing, Algorithm::Sha256, &NoProgress).unwrap();
    let report = scan.into_report(&listing, context("r0"));
    assert_eq!(check_report(&listing, &report), []);
    assert_eq!(derive_integrity(&listing, &report), Integrity::Verified);
    // Without the blob id nothing was compared.
    let mut forged = report.clone();
    forged.files[0].git_blob = None;
    assert!(!check_report(&listing, &forged).is_empty());
    assert!(matches!(
        derive_integrity(&listing, &forged),
        Integrity::NotChecked { .. }
    ));
    // And against nothing, nothing is verified.
    let absent = Listing::absent();
    let scan = rehash(&f.root(), &absent, Algorithm::Sha256, &NoProgress).unwrap();
    let report = scan.into_report(&absent, context("r0"));
    assert!(matches!(
        derive_integrity(&absent, &report),
        Integrity::NotChecked { .. }
    ));
    assert!(report.files.iter().all(|f| f.state == State::NotChecked));
}

#[test]
fn a_clone_with_pointers_is_a_manifest_with_a_root() {
    let f = Fixture::new();
    let clone = f.dir.path().join("clone");
    hub::repository(&clone);
    hub::checked_out(&f.root());
    let answer = run(f.dir.path(), "clone", &[]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let json = answer.json();
    assert_eq!(json["manifests"][0]["format"], "git_lfs");
    assert_eq!(json["manifests"][0]["root"], pin(&f.root()).root().hex());
    let mut bad = content(SHARDS[1]);
    *bad.last_mut().unwrap() ^= 1;
    fs::write(f.at(SHARDS[1]), bad).unwrap();
    assert_eq!(
        run(f.dir.path(), "clone", &[]).findings()[0].0,
        "digest-mismatch"
    );
    // The checkpoint itself is no such clone: it would agree with itself.
    hub::checked_out(&f.root());
    let answer = run(f.dir.path(), "model", &[]);
    assert_eq!((answer.code, answer.stdout.as_str()), (2, ""));
    assert!(
        answer.stderr.contains("no git-lfs pointer"),
        "{}",
        answer.stderr
    );
    // Nor does a clone agree with itself.
    let args = [
        "weights",
        "clone",
        "--manifest",
        "clone",
        "--ignore",
        ".git",
        "--format",
        "json",
    ];
    assert_eq!(verify_in(f.dir.path(), &args).code, 1);
    // A link in it leads nobody elsewhere.
    std::os::unix::fs::symlink("/etc/passwd", clone.join("link")).unwrap();
    assert_eq!(run(f.dir.path(), "clone", &[]).code, 2);
}

#[test]
fn blake3_alone_cannot_be_asked_of_a_list_without_it() {
    let f = Fixture::new();
    fs::write(f.dir.path().join("list"), f.manifest.to_sha256sums()).unwrap();
    assert_eq!(
        run(f.dir.path(), "list", &["--algorithm", "blake3"]).code,
        2
    );
    assert_eq!(run(f.dir.path(), "list", &["--algorithm", "both"]).code, 0);
    // Sizes are not in it, so a truncated file is told by its digest.
    fs::write(f.at("config.json"), "short").unwrap();
    let findings = run(f.dir.path(), "list", &[]).findings();
    assert_eq!(
        findings,
        [("digest-mismatch".to_owned(), "model/config.json".to_owned())]
    );
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let d = sha(b"x");
        for format in [
            None,
            Some(ListFormat::Sha256sum),
            Some(ListFormat::B3sum),
            Some(ListFormat::BsdTag),
            Some(ListFormat::Hashdeep),
            Some(ListFormat::HfTree),
            Some(ListFormat::Runseal),
            Some(ListFormat::GitLfs),
        ] {
            let _ = Listing::read(&bytes, format);
            for front in [
                format!("{d}  "),
                format!("\\{d} *"),
                "SHA256 (".to_owned(),
                "%%%% HASHDEEP-1.0\n%%%% size,sha256,filename\n1,".to_owned(),
                "[{\"type\":\"file\",\"path\":\"".to_owned(),
            ] {
                let _ = Listing::read(&[front.as_bytes(), &bytes, b"\n"].concat(), format);
            }
        }
    }

    #[test]
    fn any_manifest_survives_its_lines(
        names in prop::collection::btree_set(prop::collection::vec(1u8..=255, 1..12), 1..8),
    ) {
        // The folder is a number, so that no two names collide.
        let files = names.iter().enumerate().map(|(i, name)| {
            let name: Vec<u8> = name.iter().map(|b| if *b == b'/' { b'_' } else { *b }).collect();
            let path = [format!("{i}/x").as_bytes(), &name].concat();
            ManifestFile {
                path: RelPath::from_bytes(&path).unwrap(),
                size: 1,
                sha256: Sha256Digest::of(&name),
                blake3: None,
                mode: None,
            }
        });
        let manifest = Manifest::new(files, None).unwrap();
        let listing = Listing::read(&manifest.to_sha256sums(), None).unwrap();
        let back: Vec<_> = listing.entries().map(|e| (e.path.clone(), e.sha256.unwrap())).collect();
        let there: Vec<_> = manifest.files().map(|f| (f.path.clone(), f.sha256)).collect();
        prop_assert_eq!(back, there);
    }

    #[test]
    fn one_changed_byte_of_a_list_never_reads_as_the_same_list(
        at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let whole = foreign("SHA256SUMS");
        let mut bytes = whole.clone();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let same = |l: &Listing| l.entries().map(|e| (e.path.clone(), e.sha256)).collect::<Vec<_>>();
        if let Ok(read) = Listing::read(&bytes, None) {
            let before = Listing::read(&whole, None).unwrap();
            let harmless = whole[at].eq_ignore_ascii_case(&byte) || (whole[at], byte) == (b' ', b'*');
            prop_assert!(harmless || same(&read) != same(&before));
        }
    }
}
