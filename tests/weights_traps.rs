//! Every way in which a flat folder can be something other than the pinned
//! checkpoint, on a real file system, through the real binary.

mod weights_support;

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

use runseal::relpath::RelPath;
use runseal::weights::{
    Algorithm, Binding, Integrity, Listing, Looked, Manifest, NoProgress, Source, check_report,
    scan_folder, second_look,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use weights_support::*;

fn finding(code: &str, path: &str) -> (String, String) {
    (code.to_owned(), format!("model/{path}"))
}

fn pipe(path: &std::path::Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

#[test]
fn an_untouched_checkpoint_verifies() {
    let f = Fixture::new();
    for algorithm in ["sha256", "both"] {
        let answer = f.verify(&["--algorithm", algorithm]);
        assert_eq!(answer.code, 0, "{answer:?}");
        let json = answer.json();
        assert_eq!(json["verdict"], "verified");
        let report = &json["replicas"][0]["report"];
        assert_eq!(report["files"].as_array().unwrap().len(), 5);
        let observed = report["observed_root"].as_str();
        assert_eq!(observed, Some(f.manifest.root().hex().as_str()));
    }
}

/// What the root commits to is only known from SHA-256.
#[test]
fn blake3_alone_never_verifies_a_pinned_root() {
    let f = Fixture::new();
    let blake3 = ["--algorithm", "blake3"];
    let answer = f.verify(&blake3);
    assert_eq!((answer.code, answer.findings()), (1, vec![]), "{answer:?}");
    let json = answer.json();
    assert_eq!(json["verdict"], "not_verified");
    let replica = &json["replicas"][0];
    assert_eq!(replica["integrity"]["state"], "not_checked");
    assert_eq!(replica["report"]["observed_root"].as_str(), None);
    let check = |name: &str| {
        let checks = json["checks"].as_array().unwrap();
        checks.iter().find(|c| c["name"] == name).unwrap()["outcome"].clone()
    };
    assert_eq!(check("replicas-verified"), "not_performed");
    let args = ["weights", "model", "--manifest", "manifest.json"];
    let human = verify_in(f.dir.path(), &[&args[..], &blake3].concat());
    assert_eq!(human.code, 1);
    let says = "not verified: replicas-verified was not performed: only BLAKE3 was compared";
    assert!(human.stdout.contains(says), "{}", human.stdout);
    assert!(human.stdout.contains("hint: leave --algorithm out"));
    // It counts for no assertion, nor in a report that is judged later.
    let codes: Vec<_> = f
        .verify(&[&blake3[..], &["--replicas", "1"]].concat())
        .findings();
    assert_eq!(codes, [("replica-count".to_owned(), "replicas".to_owned())]);
    f.verify(&[&blake3[..], &["--save-reports", "saved"]].concat());
    let args = [
        "weights",
        "--manifest",
        "manifest.json",
        "--report",
        "saved",
    ];
    assert_eq!(verify_in(f.dir.path(), &args).code, 1);
    // A list that pins no root has nothing better.
    let lines = f
        .manifest
        .files()
        .map(|file| format!("{}  {}\n", file.blake3.unwrap(), file.path));
    fs::write(f.dir.path().join("B3SUMS.b3"), lines.collect::<String>()).unwrap();
    let args = ["weights", "model", "--manifest", "B3SUMS.b3"];
    assert_eq!(
        verify_in(f.dir.path(), &[&args[..], &blake3].concat()).code,
        0
    );
}

#[test]
fn a_flipped_bit_with_the_old_mtime_is_named_with_both_digests() {
    let f = Fixture::new();
    let path = f.at(SHARDS[1]);
    let mtime = fs::metadata(&path).unwrap().modified().unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let mut bytes = content(SHARDS[1]);
    bytes[4321] ^= 0x10;
    file.write_all_at(&bytes[4321..4322], 4321).unwrap();
    file.set_times(FileTimes::new().set_modified(mtime))
        .unwrap();
    drop(file);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), mtime);

    for algorithm in ["sha256", "blake3", "both"] {
        let answer = f.verify(&["--algorithm", algorithm]);
        assert_eq!(answer.code, 1);
        assert_eq!(answer.findings(), [finding("digest-mismatch", SHARDS[1])]);
    }
    let json = f.verify(&[]).json();
    let hash = |b: &[u8]| runseal::digest::Sha256Digest::of(b).hex();
    assert_eq!(json["findings"][0]["expected"], hash(&content(SHARDS[1])));
    assert_eq!(json["findings"][0]["found"], hash(&bytes));
    assert_eq!(json["replicas"][0]["integrity"]["state"], "mismatch");
}

#[test]
fn missing_truncated_grown_and_empty() {
    let f = Fixture::new();
    fs::remove_file(f.at(SHARDS[0])).unwrap();
    assert_eq!(f.only_finding(), finding("file-missing", SHARDS[0]));

    // The structure says what became of the file, beside the digest.
    for (name, len, named) in [
        (SHARDS[0], 4999, "shard-truncated"),
        (SHARDS[1], 5001, "shard-overlong"),
        (SHARDS[2], 0, "shard-truncated"),
    ] {
        let f = Fixture::new();
        let file = OpenOptions::new().write(true).open(f.at(name)).unwrap();
        file.set_len(len).unwrap();
        assert_eq!(
            f.verify(&[]).findings(),
            [finding("size-mismatch", name), finding(named, name)]
        );
    }
    let f = Fixture::new();
    let file = OpenOptions::new().write(true).open(f.at("config.json"));
    file.unwrap().set_len(39).unwrap();
    assert_eq!(f.only_finding(), finding("size-mismatch", "config.json"));
}

#[test]
fn a_missing_folder_is_all_its_files_missing() {
    let f = Fixture::new();
    fs::remove_dir_all(f.at("original")).unwrap();
    assert_eq!(
        f.only_finding(),
        finding("file-missing", "original/params.json")
    );
}

#[test]
fn swapped_shards_are_both_named() {
    let f = Fixture::new();
    fs::rename(f.at(SHARDS[0]), f.at("x")).unwrap();
    fs::rename(f.at(SHARDS[1]), f.at(SHARDS[0])).unwrap();
    fs::rename(f.at("x"), f.at(SHARDS[1])).unwrap();
    let answer = f.verify(&[]);
    let expected = [SHARDS[0], SHARDS[1]]
        .map(|s| [finding("digest-mismatch", s), finding("shard-swapped", s)])
        .concat();
    assert_eq!((answer.code, answer.findings()), (1, expected));
    let detail = answer.json()["findings"][1]["detail"].clone();
    assert!(detail.as_str().unwrap().ends_with(SHARDS[1]), "{detail}");
}

#[test]
fn a_folder_for_a_file() {
    let f = Fixture::new();
    fs::remove_file(f.at("config.json")).unwrap();
    fs::create_dir(f.at("config.json")).unwrap();
    assert_eq!(f.only_finding(), finding("file-type", "config.json"));
    // With the file inside it, that file is one too many as well.
    fs::write(f.at("config.json/config.json"), content("config.json")).unwrap();
    assert_eq!(
        f.verify(&[]).findings(),
        [
            finding("file-type", "config.json"),
            finding("file-extra", "config.json/config.json")
        ]
    );
}

#[test]
fn a_file_for_a_folder() {
    let f = Fixture::new();
    fs::remove_dir_all(f.at("original")).unwrap();
    fs::write(f.at("original"), "x").unwrap();
    assert_eq!(
        f.verify(&[]).findings(),
        [
            finding("file-extra", "original"),
            finding("file-missing", "original/params.json")
        ]
    );
}

#[test]
fn extra_files_wherever_they_hide() {
    for extra in [
        "extra",
        ".hidden",
        ".gitattributes",
        ".git/config",
        "original/.x",
        "a/b/c/d",
    ] {
        let f = Fixture::new();
        fs::create_dir_all(f.at(extra).parent().unwrap()).unwrap();
        fs::write(f.at(extra), "extra").unwrap();
        assert_eq!(f.only_finding(), finding("file-extra", extra));
    }
}

#[test]
fn empty_folders_are_ignored_and_an_extra_empty_file_is_not() {
    let f = Fixture::new();
    fs::create_dir_all(f.at("empty/inner")).unwrap();
    assert_eq!(f.verify(&[]).code, 0);
    fs::write(f.at("empty/inner/file"), "").unwrap();
    assert_eq!(f.only_finding(), finding("file-extra", "empty/inner/file"));
}

#[test]
fn an_empty_folder_that_was_recorded_and_is_gone_is_a_note() {
    let mut f = Fixture::new();
    fs::create_dir_all(f.at("cache/compiled")).unwrap();
    let bytes = pin(&f.root()).to_bytes();
    assert!(
        String::from_utf8_lossy(&bytes).contains(r#""empty_folders":["cache/compiled"]"#),
        "only the folder that holds nothing is one"
    );
    fs::write(f.dir.path().join("manifest.json"), &bytes).unwrap();
    f.manifest = Manifest::parse(&bytes).unwrap();
    assert_eq!((f.verify(&[]).code, f.verify(&[]).findings().len()), (0, 0));

    fs::remove_dir(f.at("cache/compiled")).unwrap();
    let answer = f.verify(&[]);
    assert_eq!(answer.code, 0);
    assert_eq!(
        answer.findings(),
        [finding("empty-folder-missing", "cache/compiled")]
    );
    // The recorded report follows from its own facts, and so does no other.
    let honest = report(&f.root(), &f.manifest, "r0");
    assert_eq!(check_report(&f.manifest, &honest), []);
    let mut denied = honest.clone();
    let path = RelPath::parse("cache/compiled").unwrap();
    denied.empty_folders.insert(path);
    assert!(!check_report(&f.manifest, &denied).is_empty());
}

#[test]
fn files_in_a_folder_that_is_called_empty_are_refused() {
    let f = Fixture::new();
    let inside = RelPath::parse("config.json").unwrap();
    let refused = f.manifest.clone().with_empty_folders([inside]).unwrap_err();
    assert!(refused.to_string().contains("calls empty"), "{refused}");
}

#[test]
fn blake3_that_was_compared_with_nothing_is_said() {
    let f = Fixture::new();
    assert_eq!(f.verify(&["--algorithm", "both"]).findings(), []);
    let scan = scan_folder(&f.root(), Algorithm::Sha256, &NoProgress).unwrap();
    let manifest = Manifest::from_scan(&scan, None).unwrap();
    fs::write(f.dir.path().join("manifest.json"), manifest.to_bytes()).unwrap();
    let answer = f.verify(&["--algorithm", "both"]);
    let note = ("blake3-not-compared".to_owned(), "manifest".to_owned());
    assert_eq!((answer.code, answer.findings()), (0, vec![note]));
    assert_eq!(f.verify(&[]).findings(), []);
}

#[test]
fn a_huge_sparse_extra_does_not_keep_anyone_waiting() {
    let f = Fixture::new();
    // More than could be read in the time limit of a test.
    File::create(f.at("sparse"))
        .unwrap()
        .set_len(1 << 42)
        .unwrap();
    assert_eq!(f.only_finding(), finding("file-extra", "sparse"));
    fs::remove_file(f.at("sparse")).unwrap();
    let file = OpenOptions::new()
        .write(true)
        .open(f.at(SHARDS[0]))
        .unwrap();
    file.set_len(1 << 42).unwrap();
    assert_eq!(f.only_finding(), finding("size-mismatch", SHARDS[0]));
}

#[test]
fn a_symlink_for_a_file_is_found_even_with_the_same_bytes() {
    // Inside the folder: an extra copy, and a link to it.
    let f = Fixture::new();
    fs::rename(f.at(SHARDS[0]), f.at("copy")).unwrap();
    symlink("copy", f.at(SHARDS[0])).unwrap();
    assert_eq!(
        f.verify(&[]).findings(),
        [
            finding("file-extra", "copy"),
            finding("symlink-in-flat-folder", SHARDS[0])
        ]
    );
    // Outside of it, relative and absolute.
    for absolute in [false, true] {
        let f = Fixture::new();
        let outside = f.dir.path().join("outside");
        fs::rename(f.at(SHARDS[0]), &outside).unwrap();
        let target = if absolute {
            outside
        } else {
            "../outside".into()
        };
        symlink(target, f.at(SHARDS[0])).unwrap();
        assert_eq!(f.only_finding(), finding("symlink-escapes", SHARDS[0]));
    }
}

#[test]
fn extra_symlinks_are_found_and_never_followed() {
    for (target, code) in [
        ("/etc/passwd", "symlink-escapes"),
        ("/dev/zero", "symlink-escapes"),
        ("../manifest.json", "symlink-escapes"),
        ("config.json", "file-extra"),
        ("nowhere", "file-extra"),
        ("link", "symlink-escapes"),
        (".", "file-extra"),
        ("..", "symlink-escapes"),
    ] {
        let f = Fixture::new();
        symlink(target, f.at("link")).unwrap();
        assert_eq!(f.only_finding(), finding(code, "link"), "{target}");
    }
}

#[test]
fn folder_loops_end() {
    let f = Fixture::new();
    symlink("b", f.at("a")).unwrap();
    symlink("a", f.at("b")).unwrap();
    symlink("..", f.at("original/up")).unwrap();
    assert_eq!(
        f.verify(&[]).findings(),
        [
            finding("symlink-escapes", "a"),
            finding("symlink-escapes", "b"),
            finding("file-extra", "original/up"),
        ]
    );
}

#[test]
fn a_folder_replaced_by_a_link_to_its_equal() {
    let f = Fixture::new();
    fs::rename(f.at("original"), f.dir.path().join("elsewhere")).unwrap();
    symlink("../elsewhere", f.at("original")).unwrap();
    assert_eq!(
        f.verify(&[]).findings(),
        [
            finding("symlink-escapes", "original"),
            finding("file-missing", "original/params.json"),
        ]
    );
}

#[test]
fn pipes_and_sockets_are_never_opened() {
    let f = Fixture::new();
    pipe(&f.at("pipe"));
    assert_eq!(f.only_finding(), finding("file-type", "pipe"));

    let f = Fixture::new();
    fs::remove_file(f.at(SHARDS[2])).unwrap();
    pipe(&f.at(SHARDS[2]));
    assert_eq!(f.only_finding(), finding("file-type", SHARDS[2]));

    let f = Fixture::new();
    let _listener = std::os::unix::net::UnixListener::bind(f.at("socket")).unwrap();
    assert_eq!(f.only_finding(), finding("file-type", "socket"));
}

#[test]
fn a_hard_link_to_a_pinned_file_is_an_extra_file() {
    let f = Fixture::new();
    fs::hard_link(f.at("config.json"), f.at("again")).unwrap();
    assert_eq!(f.only_finding(), finding("file-extra", "again"));
}

#[test]
fn what_cannot_be_read_is_never_verified() {
    let args = [
        "weights",
        "model",
        "--manifest",
        "manifest.json",
        "--format",
        "json",
    ];
    let f = Fixture::new();
    let open = |mode| fs::set_permissions(f.root(), PermissionsExt::from_mode(mode)).unwrap();
    open(0o755);
    fs::set_permissions(f.at("original"), PermissionsExt::from_mode(0o755)).unwrap();
    let manifest = f.dir.path().join("manifest.json");
    fs::set_permissions(manifest, PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(verify_unprivileged(f.dir.path(), &args).code, 0);

    fs::set_permissions(f.at("config.json"), PermissionsExt::from_mode(0o000)).unwrap();
    let answer = verify_unprivileged(f.dir.path(), &args);
    let json = answer.json();
    assert_eq!(answer.code, 1);
    assert_eq!(
        answer.findings(),
        [finding("could-not-read", "config.json")]
    );
    assert_eq!(json["replicas"][0]["integrity"]["state"], "not_checked");
    // A replica that was not read whole does not count as rehashed.
    let counted = verify_unprivileged(f.dir.path(), &[&args[..], &["--replicas", "1"]].concat());
    assert!(
        counted
            .findings()
            .iter()
            .any(|(code, _)| code == "replica-count")
    );
    fs::set_permissions(f.at("config.json"), PermissionsExt::from_mode(0o644)).unwrap();

    // Below a closed folder nothing is known, so nothing is called missing.
    for mode in [0o000, 0o644] {
        fs::set_permissions(f.at("original"), PermissionsExt::from_mode(mode)).unwrap();
        let answer = verify_unprivileged(f.dir.path(), &args);
        let codes: Vec<_> = answer
            .findings()
            .into_iter()
            .map(|(code, _)| code)
            .collect();
        assert_eq!(
            (answer.code, codes),
            (1, vec!["could-not-read".to_owned()]),
            "{mode:o}"
        );
    }
    fs::set_permissions(f.at("original"), PermissionsExt::from_mode(0o755)).unwrap();

    // The folder itself.
    open(0o000);
    let answer = verify_unprivileged(f.dir.path(), &args);
    open(0o755);
    assert_eq!(
        answer.findings(),
        [("replica-unreachable".to_owned(), "model".to_owned())]
    );
}

#[test]
fn a_folder_nested_too_deep_is_not_passed_over() {
    // Holds for every user, root too.
    let f = Fixture::new();
    let deep: std::path::PathBuf = std::iter::repeat_n("d", 80).collect();
    fs::create_dir_all(f.root().join(deep)).unwrap();
    let answer = f.verify(&[]);
    let codes: Vec<_> = answer
        .findings()
        .into_iter()
        .map(|(code, _)| code)
        .collect();
    assert_eq!((answer.code, codes), (1, vec!["could-not-read".to_owned()]));
}

#[test]
fn an_execute_bit_is_a_note_and_other_permissions_are_nothing() {
    let f = Fixture::new();
    fs::set_permissions(f.at("config.json"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!((f.verify(&[]).code, f.verify(&[]).findings().len()), (0, 0));
    fs::set_permissions(f.at("config.json"), PermissionsExt::from_mode(0o755)).unwrap();
    let answer = f.verify(&[]);
    assert_eq!(answer.code, 0);
    assert_eq!(answer.findings(), [finding("mode-differs", "config.json")]);
}

#[test]
fn odd_names_are_clean_data() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    let names: [&[u8]; 8] = [
        b"new\nline",
        b"back\\slash",
        b"\xff\xfe not utf-8",
        b"tab\there",
        b" ",
        b"-rf",
        b"\x1b[31mred",
        "ünïcode \u{202e}".as_bytes(),
    ];
    for name in names {
        fs::write(model.join(OsStr::from_bytes(name)), name).unwrap();
    }
    fs::write(dir.path().join("manifest.json"), pin(&model).to_bytes()).unwrap();
    let args = ["weights", "model", "--manifest", "manifest.json"];
    let answer = verify_in(dir.path(), &args);
    assert_eq!(answer.code, 0, "{answer:?}");

    // And when they are wrong, they are named without touching the terminal.
    for name in names {
        fs::write(model.join(OsStr::from_bytes(name)), b"other").unwrap();
    }
    let answer = verify_in(dir.path(), &args);
    assert_eq!(answer.code, 1);
    for named in [
        "new\\nline",
        "back\\\\slash",
        "\\xff\\xfe",
        "\\x1b[31mred",
        "\\u{202e}",
    ] {
        assert!(answer.stdout.contains(named), "{named}: {}", answer.stdout);
    }
    assert!(!answer.stdout.contains(['\x1b', '\u{202e}']));
}

#[test]
fn the_folder_may_be_reached_through_a_link_and_must_be_a_folder() {
    let f = Fixture::new();
    symlink("model", f.dir.path().join("latest")).unwrap();
    let via = |p| verify_in(f.dir.path(), &["weights", p, "--manifest", "manifest.json"]);
    assert_eq!(via("latest").code, 0);
    for unreachable in ["nowhere", "manifest.json"] {
        let answer = via(unreachable);
        assert_eq!(answer.code, 1);
        assert!(answer.stdout.contains("replica-unreachable"), "{answer:?}");
    }
}

#[test]
fn a_file_of_size_zero_verifies_and_one_byte_more_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("empty"), "").unwrap();
    fs::write(dir.path().join("m"), pin(&model).to_bytes()).unwrap();
    let run = || verify_in(dir.path(), &["weights", "model", "--manifest", "m"]).code;
    assert_eq!(run(), 0);
    fs::write(model.join("empty"), "x").unwrap();
    assert_eq!(run(), 1);
}

/// A large checkpoint is read for hours: what was read first may change meanwhile.
#[test]
fn what_moves_after_it_was_read_is_found_at_the_end() {
    let f = Fixture::new();
    let mut report = report(&f.root(), &f.manifest, "r0");
    let now = || "2100-01-01T00:00:00Z".to_owned();
    report = second_look(&f.root(), report, &now);
    assert_eq!(report.after, None);
    fs::write(f.at("config.json"), "{}").unwrap();
    fs::write(f.at("late.py"), "x").unwrap();
    let listing: &Listing = f.manifest.as_ref();
    let looked = Looked::at(listing, second_look(&f.root(), report, &now));
    assert!(matches!(looked.integrity, Integrity::NotChecked { .. }));
    let found = looked.findings.iter();
    let found: Vec<_> = found.map(|f| (f.code.name(), f.subject.as_str())).collect();
    let changed = "changed-during-read";
    assert_eq!(
        found,
        [(changed, "r0/config.json"), (changed, "r0/late.py")]
    );
}

#[test]
fn a_revision_that_cannot_be_looked_at_is_not_passed_over() {
    let f = Fixture::new();
    let (a, b) = ("a".repeat(40), "b".repeat(40));
    let source = Source {
        repository: None,
        revision: Some(a.clone()),
        binding: Binding::Asserted,
    };
    let files = f.manifest.files().cloned();
    let named = Manifest::new(files, Some(source)).unwrap();
    fs::write(f.dir.path().join("manifest.json"), named.to_bytes()).unwrap();
    assert_eq!(f.verify(&["--revision", &a]).code, 0);
    let other = f.verify(&["--revision", &b]);
    assert_eq!(other.code, 2);
    assert!(
        other.stderr.contains(&format!("the manifest is of {a}")),
        "{other:?}"
    );
    let tag = f.verify(&["--revision", "v1.0"]);
    assert_eq!(
        tag.findings(),
        [("snapshot-not-found".to_owned(), "model".to_owned())]
    );
}

#[test]
fn damaged_pointers_are_pointers() {
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{:064}\nsize 5000000000\n",
        1
    );
    let old = pointer.replace("git-lfs.github.com", "hawser.github.com");
    for text in [pointer.replace('\n', "\r\n"), format!("{pointer}\n"), old] {
        let f = Fixture::new();
        fs::write(f.at("weights.bin"), &text).unwrap();
        let manifest = pin(&f.root());
        fs::write(f.dir.path().join("manifest.json"), manifest.to_bytes()).unwrap();
        assert_eq!(f.only_finding(), finding("lfs-pointer", "weights.bin"));
    }
}
