//! The committed bundles audit clean for every reader, with the key that is
//! committed beside them.

use std::path::Path;

use assert_cmd::Command;

fn committed() -> Vec<String> {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("evidence/committed.txt");
    std::fs::read_to_string(list)
        .unwrap()
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

fn verify(args: &[&str]) -> serde_json::Value {
    let out = Command::cargo_bin("verify")
        .unwrap()
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .arg("record")
        .args(args)
        .args(["--format", "json"])
        .output()
        .unwrap();
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
}

#[test]
fn committed_bundles_are_verified_with_the_committed_key() {
    let names = committed();
    assert!(!names.is_empty());
    for name in names {
        let path = format!("evidence/{name}");
        let report = verify(&[&path, "--trusted-key", "evidence/keys/operator.pub.pem"]);
        assert_eq!(report["verdict"], "verified", "{name}: {report:#}");
        assert_eq!(report["grades"], "recomputed", "{name}");
        let stranger = verify(&[&path]);
        assert_eq!(stranger["verdict"], "self_consistent", "{name}");
    }
}

/// What the list does not name is not committed evidence.
#[test]
fn the_list_is_complete() {
    let out = std::process::Command::new("git")
        .args(["ls-files", "evidence"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    // A source archive has no git; the list is then all there is to check.
    let Ok(out) = out else { return };
    let mut tracked: Vec<String> = String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .filter_map(|l| {
            let (dir, file) = l.strip_prefix("evidence/")?.split_once('/')?;
            (file == "record.intoto.jsonl").then(|| dir.to_owned())
        })
        .collect();
    if tracked.is_empty() {
        return;
    }
    tracked.sort();
    let mut names = committed();
    names.sort();
    assert_eq!(tracked, names);
}
