//! Reports, agreement and the second look: a forged report never passes, and two
//! names for one copy count once.

mod weights_support;

use std::fs;

use runseal::codes::Code;
use runseal::digest::Sha256Digest;
use runseal::json;
use runseal::weights::*;
use weights_support::*;

fn flip(path: &std::path::Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[10] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// A replica with a flipped byte, an extra, a missing and a linked file.
fn spoiled() -> (Fixture, ReplicaReport) {
    let f = Fixture::new();
    flip(&f.at(SHARDS[0]));
    fs::write(f.at("extra"), "x").unwrap();
    fs::remove_file(f.at(SHARDS[1])).unwrap();
    fs::remove_file(f.at("config.json")).unwrap();
    std::os::unix::fs::symlink("original/params.json", f.at("config.json")).unwrap();
    let report = report(&f.root(), &f.manifest, "r0");
    (f, report)
}

#[test]
fn a_report_survives_json_and_is_consistent() {
    for (f, report) in [spoiled(), {
        let f = Fixture::new();
        let r = report(&f.root(), &f.manifest, "r0");
        (f, r)
    }] {
        let bytes = json::canonical(&report);
        assert!(json::is_canonical(&bytes));
        let read: ReplicaReport = json::from_slice(&bytes).unwrap();
        assert_eq!(read, report);
        assert_eq!(check_report(&f.manifest, &read), []);
    }
}

#[test]
fn the_schemas_fit_what_is_written() {
    let (f, mut report) = spoiled();
    report.after = Some(restat(&f.root(), &report, report.finished.clone()));
    let source = Source {
        repository: Some("org/name".to_owned()),
        revision: None,
        binding: Binding::Asserted,
    };
    let manifest = Manifest::new(f.manifest.files().cloned(), Some(source)).unwrap();
    let survey = f.verify(&[]).json();
    for (schema, document) in [
        (
            schemars::schema_for!(ReplicaReport),
            serde_json::to_value(&report).unwrap(),
        ),
        (
            schemars::schema_for!(Manifest),
            serde_json::to_value(&manifest).unwrap(),
        ),
        (schemars::schema_for!(Survey), survey),
    ] {
        let validator = jsonschema::validator_for(schema.as_value()).unwrap();
        let errors: Vec<_> = validator
            .iter_errors(&document)
            .map(|e| e.to_string())
            .collect();
        assert!(errors.is_empty(), "{errors:?}");
        assert!(!validator.is_valid(&serde_json::json!({})));
    }
}

#[test]
fn integrity_never_believes_a_stored_verdict() {
    let (f, mut forged) = spoiled();
    assert_eq!(derive_integrity(&f.manifest, &forged), Integrity::Mismatch);
    for file in &mut forged.files {
        (file.state, file.reason) = (State::Verified, None);
    }
    forged.findings.clear();
    forged.observed_root = Some(f.manifest.root());
    assert_eq!(derive_integrity(&f.manifest, &forged), Integrity::Mismatch);
    assert!(check_report(&f.manifest, &forged).len() >= 3);
}

#[test]
fn every_edit_of_a_report_is_noticed() {
    let f = Fixture::new();
    let honest = report(&f.root(), &f.manifest, "r0");
    assert_eq!(derive_integrity(&f.manifest, &honest), Integrity::Verified);
    let other = Sha256Digest::of(b"other");
    type Edit<'a> = &'a dyn Fn(&mut ReplicaReport);
    // Edit, and whether the replica may still be called verified.
    let edits: &[(&str, Edit, bool)] = &[
        ("format", &|r| r.format.push('x'), true),
        ("manifest root", &|r| r.manifest_root = Some(other), false),
        ("no manifest root", &|r| r.manifest_root = None, false),
        (
            "an unfinished download",
            &|r| {
                r.layout
                    .as_mut()
                    .unwrap()
                    .incomplete
                    .push("x.incomplete".into())
            },
            true,
        ),
        (
            "a claim",
            &|r| {
                r.layout.as_mut().unwrap().claims.push(Claim {
                    path: r.files[0].path.clone(),
                    commit: None,
                    etag: Some("0".repeat(64)),
                });
            },
            true,
        ),
        (
            "a problem of structure",
            &|r| {
                r.structure
                    .as_mut()
                    .unwrap()
                    .problems
                    .push(StructureProblem {
                        path: r.files[0].path.clone(),
                        kind: StructureKind::ShardTruncated,
                        detail: "x".into(),
                        expected: None,
                        found: None,
                    })
            },
            true,
        ),
        ("ignored", &|r| r.files[0].state = State::Ignored, true),
        (
            "compared",
            &|r| r.files[0].compared = vec![Compared::Blake3],
            true,
        ),
        (
            "a blob's name",
            &|r| r.files[0].blob = Some("0".repeat(40)),
            true,
        ),
        ("observed root", &|r| r.observed_root = Some(other), true),
        ("no observed root", &|r| r.observed_root = None, true),
        (
            "times swapped",
            &|r| std::mem::swap(&mut r.started, &mut r.finished),
            true,
        ),
        ("no time", &|r| r.started = "yesterday".into(), true),
        (
            "local time",
            &|r| r.finished = "2026-01-02T03:04:06+00:00".into(),
            true,
        ),
        ("state", &|r| r.files[0].state = State::Mismatch, true),
        ("reason", &|r| r.files[0].reason = Some("x".into()), true),
        ("digest", &|r| r.files[0].sha256 = Some(other), false),
        ("no digest", &|r| r.files[0].sha256 = None, false),
        (
            "size",
            &|r| r.files[0].stat.as_mut().unwrap().size += 1,
            false,
        ),
        ("no stat", &|r| r.files[0].stat = None, false),
        ("kind", &|r| r.files[0].kind = Kind::Pipe, false),
        ("target", &|r| r.files[0].target = Some("x".into()), true),
        (
            "blake3",
            &|r| r.files[0].blake3 = Some(Blake3Digest([0; 32])),
            true,
        ),
        ("file dropped", &|r| drop(r.files.remove(0)), false),
        (
            "file doubled",
            &|r| r.files.insert(0, r.files[0].clone()),
            false,
        ),
        ("order", &|r| r.files.swap(0, 1), false),
        ("all dropped", &|r| r.files.clear(), false),
        ("algorithm", &|r| r.algorithm = Algorithm::Blake3, false),
        (
            "problem",
            &|r| {
                r.files[0].problem = Some(Problem {
                    kind: ProblemKind::CouldNotRead,
                    detail: "x".into(),
                })
            },
            false,
        ),
        (
            "a change denied",
            &|r| {
                r.after = Some(Restat {
                    finished: r.finished.clone(),
                    unchanged: true,
                    changed: vec![StatChange {
                        path: "a".into(),
                        what: "x".into(),
                    }],
                })
            },
            true,
        ),
        (
            "second look before the first",
            &|r| {
                r.after = Some(Restat {
                    finished: r.started.clone(),
                    unchanged: true,
                    changed: vec![],
                })
            },
            true,
        ),
    ];
    for (name, edit, verified) in edits {
        let mut edited = honest.clone();
        edit(&mut edited);
        let found = check_report(&f.manifest, &edited);
        assert!(!found.is_empty(), "{name}");
        assert!(found.iter().all(|f| f.code == Code::ReplicaReportMismatch));
        let integrity = derive_integrity(&f.manifest, &edited);
        assert_eq!(
            integrity == Integrity::Verified,
            *verified,
            "{name}: {integrity:?}"
        );
    }
}

#[test]
fn findings_cannot_be_dropped_or_reworded() {
    let (f, report) = spoiled();
    let mut dropped = report.clone();
    dropped.findings.pop();
    assert_eq!(check_report(&f.manifest, &dropped).len(), 1);
    let mut reworded = report;
    reworded.findings[0].detail = "nothing to see".to_owned();
    assert_eq!(check_report(&f.manifest, &reworded).len(), 1);
}

#[test]
fn blake3_alone_does_not_make_an_audited_replica_verified() {
    let f = Fixture::new();
    let scan = rehash(&f.root(), &f.manifest, Algorithm::Blake3, &NoProgress).unwrap();
    let report = scan.into_report(&f.manifest, context("r0"));
    assert_eq!(check_report(&f.manifest, &report), []);
    assert!(matches!(
        derive_integrity(&f.manifest, &report),
        Integrity::NotChecked { .. }
    ));
}

#[test]
fn devices_and_things_unknown_are_judged_without_a_device_at_hand() {
    let f = Fixture::new();
    let with_kind = |kind| {
        let mut scan = rehash(&f.root(), &f.manifest, Algorithm::Sha256, &NoProgress).unwrap();
        (scan.files[0].kind, scan.files[0].sha256) = (kind, None);
        scan.into_report(&f.manifest, context("r0"))
    };
    let device = with_kind(Kind::Device);
    assert_eq!(device.findings[0].code, Code::FileType);
    assert_eq!(derive_integrity(&f.manifest, &device), Integrity::Mismatch);
    let unknown = with_kind(Kind::Unknown);
    assert_eq!(unknown.findings[0].code, Code::CouldNotRead);
    assert!(matches!(
        derive_integrity(&f.manifest, &unknown),
        Integrity::NotChecked { .. }
    ));
}

#[test]
fn the_second_look_sees_every_kind_of_change() {
    let look = |act: &dyn Fn(&Fixture)| {
        let f = Fixture::new();
        let report = report(&f.root(), &f.manifest, "r0");
        // As in the race tests: not within one tick of the creation.
        std::thread::sleep(std::time::Duration::from_millis(30));
        act(&f);
        let after = restat(&f.root(), &report, "2026-01-02T03:05:00Z".to_owned());
        assert_eq!(after.unchanged, after.changed.is_empty());
        let mut with = report.clone();
        with.after = Some(after.clone());
        assert_eq!(check_report(&f.manifest, &with), []);
        after
            .changed
            .into_iter()
            .map(|c| (c.path, c.what))
            .collect::<Vec<_>>()
    };
    assert_eq!(look(&|_| {}), []);
    // Reading is no change.
    assert_eq!(look(&|f| drop(fs::read(f.at(SHARDS[0])).unwrap())), []);

    let one = |act: &dyn Fn(&Fixture)| {
        let changed = look(act);
        assert_eq!(changed.len(), 1, "{changed:?}");
        changed.into_iter().next().unwrap()
    };
    let edited = one(&|f| {
        let path = f.at(SHARDS[0]);
        let mtime = fs::metadata(&path).unwrap().modified().unwrap();
        flip(&path);
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(mtime))
            .unwrap();
    });
    assert_eq!(edited, (SHARDS[0].to_owned(), "ctime changed".to_owned()));
    assert_eq!(
        one(&|f| fs::remove_file(f.at("config.json")).unwrap()).1,
        "it vanished"
    );
    assert_eq!(
        one(&|f| fs::write(f.at("new"), "").unwrap()).1,
        "it appeared"
    );
    let kind = one(&|f| {
        fs::remove_file(f.at("config.json")).unwrap();
        fs::create_dir(f.at("config.json")).unwrap();
    });
    assert_eq!(kind.1, "it was a file and is a folder");
    let gone = one(&|f| fs::remove_dir_all(f.root()).unwrap());
    assert_eq!(gone.0, ".");
    // An equal copy in its place: another folder, other files.
    let replaced = look(&|f| {
        fs::rename(f.root(), f.dir.path().join("old")).unwrap();
        checkpoint(&f.root());
    });
    assert_eq!(replaced.len(), 6, "{replaced:?}");
    assert_eq!(
        replaced[0],
        (".".to_owned(), "it is another folder".to_owned())
    );
}

// ---- agreement ----

/// Four copies of the checkpoint, `r0` to `r3`.
fn four(f: &Fixture) -> Vec<std::path::PathBuf> {
    let roots: Vec<_> = (0..4).map(|i| f.dir.path().join(format!("r{i}"))).collect();
    roots.iter().for_each(|r| checkpoint(r));
    roots
}

fn reports(f: &Fixture, roots: &[std::path::PathBuf]) -> Vec<ReplicaReport> {
    let named = roots.iter().enumerate();
    named
        .map(|(i, r)| report(r, &f.manifest, &format!("r{i}")))
        .collect()
}

fn agreement(reports: &[ReplicaReport]) -> Agreement {
    agree(&reports.iter().collect::<Vec<_>>())
}

#[test]
fn four_copies_agree() {
    let f = Fixture::new();
    let a = agreement(&reports(&f, &four(&f)));
    assert_eq!((a.replicas, a.machines, a.all_agree), (4, 1, true));
    assert_eq!(a.findings(), []);
    assert_eq!(a.files.len(), 5);
}

#[test]
fn groups_are_put_in_words() {
    let f = Fixture::new();
    let roots = four(&f);
    flip(&roots[2].join(SHARDS[1]));
    let good = Sha256Digest::of(&content(SHARDS[1]));
    let bad = Sha256Digest::of(&fs::read(roots[2].join(SHARDS[1])).unwrap());
    let a = agreement(&reports(&f, &roots));
    assert!(!a.all_agree);
    let [finding] = &a.findings()[..] else {
        panic!("{:?}", a.findings())
    };
    assert_eq!(
        (finding.code, finding.subject.as_str()),
        (Code::ReplicasDisagree, SHARDS[1])
    );
    assert_eq!(
        finding.detail,
        format!("r0, r1, r3 agree on sha256:{good}; r2 has sha256:{bad}")
    );
    let path = runseal::relpath::RelPath::parse(SHARDS[1]).unwrap();
    assert_eq!(
        a.others("r2", "target", &path).unwrap(),
        format!("the other three agree on sha256:{good}")
    );
    assert_eq!(
        a.others("r0", "target", &path).unwrap(),
        format!("of the others, two agree on sha256:{good}; one has sha256:{bad}")
    );

    // Two against two, one of them without the file in the end.
    flip(&roots[3].join(SHARDS[1]));
    let a = agreement(&reports(&f, &roots));
    assert_eq!(
        a.findings()[0].detail,
        format!("r0, r1 agree on sha256:{good}; r2, r3 agree on sha256:{bad}")
            .split("; ")
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
            .join("; "),
    );
    fs::remove_file(roots[3].join(SHARDS[1])).unwrap();
    let a = agreement(&reports(&f, &roots));
    assert!(a.findings()[0].detail.ends_with("; r3 does not have it"));
}

#[test]
fn what_could_not_be_read_is_no_agreement_and_no_disagreement() {
    let f = Fixture::new();
    let mut reports = reports(&f, &four(&f));
    let file = &mut reports[1].files[0];
    file.sha256 = None;
    let a = agreement(&reports);
    assert!(!a.all_agree);
    assert_eq!(a.findings(), []);
    assert_eq!(a.files[0].not_read, ["r1"]);
}

#[test]
fn two_names_for_one_copy_count_once() {
    let f = Fixture::new();
    let mut roots = four(&f);
    // A link to another replica, and one shared file.
    fs::remove_dir_all(&roots[1]).unwrap();
    std::os::unix::fs::symlink("r0", &roots[1]).unwrap();
    fs::remove_file(roots[3].join(SHARDS[2])).unwrap();
    fs::hard_link(roots[2].join(SHARDS[2]), roots[3].join(SHARDS[2])).unwrap();
    let a = agreement(&reports(&f, &roots));
    assert_eq!((a.replicas, a.machines, a.all_agree), (2, 1, true));
    assert_eq!(a.duplicates, [["r0", "r1"], ["r2", "r3"]]);
    let findings = a.findings();
    assert!(findings.iter().all(|f| f.code == Code::ReplicaDuplicate));
    assert_eq!(findings[0].detail, "r0, r1 are one copy under 2 names");
    // A file shared between the two pairs joins all four.
    fs::remove_file(roots[0].join("config.json")).unwrap();
    fs::hard_link(roots[3].join("config.json"), roots[0].join("config.json")).unwrap();
    assert_eq!(agreement(&reports(&f, &roots)).replicas, 1);
    roots.truncate(1);
    assert_eq!(agreement(&reports(&f, &roots)).replicas, 1);
}

/// An overlay shows the layer below under another device number; touching one file in
/// it changes that file alone.
#[test]
fn an_overlay_with_a_touched_file_is_no_second_copy() {
    let f = Fixture::new();
    let roots = four(&f);
    let mut reports = reports(&f, &roots);
    reports.truncate(2);
    let below = reports[0].files.clone();
    for (lower, upper) in below.iter().zip(&mut reports[1].files) {
        let touched = upper.path.to_string() == "config.json";
        if let (Some(lower), Some(upper), false) = (lower.stat, upper.stat.as_mut(), touched) {
            let dev = upper.dev;
            *upper = lower;
            upper.dev = dev;
            upper.dev.0 += 1;
        }
    }
    let a = agreement(&reports);
    assert_eq!((a.replicas, a.machines), (1, 1));
    assert_eq!(a.duplicates, [["r0", "r1"]]);
}

#[test]
fn machines_are_told_apart_by_boot_id_and_a_shared_file_system_is_noticed() {
    let f = Fixture::new();
    let roots = four(&f);
    let mut reports = reports(&f, &roots);
    for (i, report) in reports.iter_mut().enumerate() {
        report.boot_id = format!("boot-{i}");
    }
    let a = agreement(&reports);
    assert_eq!((a.replicas, a.machines), (4, 4));
    // Equal inode numbers on two machines mean nothing by themselves.
    let mut same_inodes = reports.clone();
    for (a, b) in same_inodes[0]
        .files
        .clone()
        .iter()
        .zip(&mut same_inodes[1].files)
    {
        let stat = b.stat.as_mut().unwrap();
        // The clock that stamps files need not have ticked between two copies.
        stat.ctime_ns.0 += 1;
        (stat.dev, stat.ino) = (a.stat.unwrap().dev, a.stat.unwrap().ino);
    }
    same_inodes[1].root_identity = same_inodes[0].root_identity;
    assert_eq!(agreement(&same_inodes).replicas, 4);
    // The same inodes with the same change times to the nanosecond: one NFS export.
    reports[1].files = reports[0].files.clone();
    let a = agreement(&reports);
    assert_eq!((a.replicas, a.machines), (3, 4));
}
