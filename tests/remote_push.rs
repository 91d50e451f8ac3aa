//! `--push-agent`: a node without `verify` gets one, checked, and nothing is ever
//! overwritten.

mod remote_support;
mod weights_support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use remote_support::*;
use runseal::digest::Sha256Digest;

fn cache(c: &Cluster, host: &str, sha: &str) -> PathBuf {
    c.at(&format!("home-{host}/.cache/runseal/agents/{sha}"))
}

fn own() -> (Vec<u8>, String) {
    let bytes = fs::read(assert_cmd::cargo::cargo_bin!("verify")).unwrap();
    let sha = Sha256Digest::of(&bytes).hex();
    (bytes, sha)
}

#[test]
fn a_node_without_verify_gets_it_once() {
    let c = Cluster::new();
    let (bytes, sha) = own();
    c.inventory(&["missing-0", "missing-1"]);
    assert_eq!(c.verify(&[]).code, 1);
    let answer = c.json(&["--push-agent", "--replicas", "2"]);
    assert_eq!((answer.code, codes(&answer)), (0, vec![]), "{answer:?}");
    let folder = cache(&c, "missing-0", &sha);
    assert_eq!(fs::read(folder.join("verify")).unwrap(), bytes);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no leftovers");
    let mode = fs::metadata(&folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
    // The second time it is there: three commands to the node less one.
    let calls = || {
        fs::read_to_string(c.at("calls"))
            .unwrap()
            .matches("cat >")
            .count()
    };
    assert_eq!(calls(), 2);
    assert_eq!(c.verify(&["--push-agent"]).code, 0);
    assert_eq!(calls(), 2);
}

#[test]
fn what_is_in_its_place_is_left_alone() {
    let c = Cluster::new();
    let (_, sha) = own();
    let folder = cache(&c, "missing", &sha);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("verify"), "mine").unwrap();
    let (code, codes, detail) = c.one("missing", &["--push-agent"]);
    assert_eq!((code, codes), (1, vec!["agent-digest-mismatch".to_owned()]));
    assert!(detail.contains("left alone"), "{detail}");
    assert_eq!(fs::read(folder.join("verify")).unwrap(), b"mine");
}

#[test]
fn programs_for_other_machines_are_not_sent() {
    let c = Cluster::new();
    let (mut bytes, _) = own();
    let other = if cfg!(target_arch = "x86_64") {
        183
    } else {
        62
    };
    bytes[18..20].copy_from_slice(&[other, 0]);
    let sha = Sha256Digest::of(&bytes).hex();
    fs::write(c.at("alien"), bytes).unwrap();
    let (code, codes, detail) = c.one("missing", &["--push-agent=alien"]);
    assert_eq!((code, codes), (1, vec!["agent-exec-format".to_owned()]));
    assert!(detail.contains("is built for"), "{detail}");
    assert!(!cache(&c, "missing", &sha).exists());
    // And what is no program at all is refused before anything starts.
    for file in ["ssh", "nowhere"] {
        c.inventory(&["missing"]);
        let answer = c.verify(&[&format!("--push-agent={file}")]);
        assert_eq!(answer.code, 2, "{file}");
    }
}

#[test]
fn a_copy_that_arrives_damaged_is_not_installed() {
    let c = Cluster::new();
    let (_, sha) = own();
    // On this node the shell's `cat` flips what passes through it, or cuts it.
    for (name, cat, says) in [
        ("flips", "tr 'a' 'b'", "the copy is"),
        ("cuts", "head -c 1000", "1000 of"),
    ] {
        let home = format!("bin-{name}/cat");
        c.script(&home, format!("#!/bin/sh\nexec {cat}\n"));
        let (code, codes, detail) = c.one(name, &["--push-agent"]);
        assert_eq!((code, codes), (1, vec!["push-failed".to_owned()]));
        assert!(detail.contains(says), "{detail}");
        assert!(is_dir_empty(&cache(&c, name, &sha)), "{name}");
    }
}

#[test]
fn the_running_program_must_be_the_pushed_one() {
    let c = Cluster::new();
    let (bytes, sha) = own();
    // A node without sha256sum, with another program in the cache.
    c.script("bin-nosum/sha256sum", "#!/bin/sh\nexit 1\n");
    let folder = cache(&c, "nosum", &sha);
    fs::create_dir_all(&folder).unwrap();
    let other = [bytes, vec![0]].concat();
    fs::write(folder.join("verify"), other).unwrap();
    fs::set_permissions(folder.join("verify"), fs::Permissions::from_mode(0o755)).unwrap();
    let (_, codes, _) = c.one("nosum", &["--push-agent"]);
    assert_eq!(codes, ["agent-digest-mismatch"]);
}

#[test]
fn a_full_or_closed_home_is_named() {
    let c = Cluster::new();
    fs::write(
        c.at("home-missing"),
        "a file where the home folder should be",
    )
    .unwrap();
    let (code, codes, _) = c.one("missing", &["--push-agent"]);
    assert_eq!((code, codes), (1, vec!["push-failed".to_owned()]));
    let (_, codes, _) = c.one("refused", &["--push-agent"]);
    assert_eq!(codes, ["node-unreachable"]);
}
