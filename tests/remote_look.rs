//! Asking a node what it is, with the real agent at the other end of a pipe.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use runseal::codes::Code;
use runseal::digest::Sha256Digest;
use runseal::node_facts::Facts;
use runseal::node_facts::clock::offset;
use runseal::node_facts::collect::Wanted;
use runseal::weights::Inventory;
use runseal::weights::remote::{Failure, LockRequest, Node, NodeLook, Reach, look};

fn verify() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_verify"))
}

/// Looks at a node whose agent is this program.
fn ask(
    agent: &Path,
    wanted: &Wanted,
    lock: Option<&LockRequest>,
    pin: Option<&str>,
) -> Result<NodeLook, Failure> {
    let private = tempfile::tempdir().unwrap();
    let pin = pin.map_or(String::new(), |d| format!("agent_sha256 = \"{d}\"\n"));
    let inventory = Inventory::parse(&format!(
        "format = \"runseal.cluster/v1\"\nmanifest = \"m\"\n[[replica]]\nname = \"r\"\npath = \"/m\"\n\
         transport = \"command\"\ncommand = [\"env\", \"{{agent}}\"]\nagent = {:?}\n{pin}",
        agent.to_str().unwrap()
    ))
    .unwrap();
    let reach = Reach {
        ssh: "ssh".into(),
        own: verify(),
        private: private.path().to_owned(),
        folder: private.path().to_owned(),
        connect_timeout: 5,
    };
    let node = Node {
        replica: &inventory.replicas()[0],
        reach: &reach,
        version: env!("CARGO_PKG_VERSION"),
        own_sha256: Sha256Digest::of(&std::fs::read(verify()).unwrap()),
        push: None,
        silence: Duration::from_secs(60),
    };
    look(&node, wanted, lock)
}

fn wanted() -> Wanted {
    Wanted {
        folders: vec!["/".to_owned()],
        limit_ms: 20_000,
        ..Wanted::default()
    }
}

#[test]
fn the_agent_says_what_its_machine_is_and_what_its_clock_shows() {
    let looked = ask(&verify(), &wanted(), None, None).unwrap();
    let facts = Facts::read(&looked.raw);
    assert_eq!(facts.boot_id.as_deref(), Some(looked.boot_id.as_str()));
    assert!(facts.memory.total > Some(0) && facts.disk_free["/"] > 0);
    assert_eq!(looked.exchanges.len(), 8);
    // One clock at both ends.
    let clock = offset(&looked.exchanges).unwrap();
    assert_eq!(clock.at_least_us(), 0, "{clock:?}");
    assert!(looked.notes.is_empty() && looked.busy.is_none());
}

#[test]
fn one_cluster_has_one_owner_at_a_time() {
    let request = LockRequest {
        cluster: format!("test-{}", std::process::id()),
        owner: "the test".to_owned(),
    };
    let folder = Path::new("/run/lock");
    let folder = if folder.is_dir() {
        folder
    } else {
        Path::new("/tmp")
    };
    let path = folder.join(format!("runseal-{}.lock", request.cluster));
    assert_eq!(
        ask(&verify(), &wanted(), Some(&request), None)
            .unwrap()
            .busy,
        None
    );
    let file = std::fs::File::open(&path).unwrap();
    // It went with the session.
    file.lock().unwrap();
    let busy = ask(&verify(), &wanted(), Some(&request), None)
        .unwrap()
        .busy
        .unwrap();
    assert_eq!(busy.owner.as_deref(), Some("the test"));
    assert!(busy.age_s.unwrap() < 600);
    drop(file);
    assert_eq!(
        ask(&verify(), &wanted(), Some(&request), None)
            .unwrap()
            .busy,
        None
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn agents_that_are_none_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let code = |agent: &Path| ask(agent, &wanted(), None, None).unwrap_err().code;
    assert_eq!(code(&script("ends", "exit 3")), Code::AgentFailed);
    assert_eq!(code(&script("talks", "echo hello")), Code::AgentProtocol);
    assert_eq!(code(Path::new("/no/such/verify")), Code::AgentMissing);
    let zeros = "0".repeat(64);
    let pinned = ask(&verify(), &wanted(), None, Some(&zeros)).unwrap_err();
    assert_eq!(pinned.code, Code::AgentDigestMismatch);
    let hello = |version: &str| {
        format!(
            "echo '{{\"is\":{{\"arch\":\"x\",\"binary_sha256\":\"{}\",\"boot_id\":\"b\",\"protocol\":1,\"version\":\"{version}\"}},\
             \"message\":\"hello\"}}'",
            "0".repeat(64)
        )
    };
    assert_eq!(
        code(&script("old", &hello("0.0.0"))),
        Code::AgentWrongVersion
    );
    // It introduces itself well and then does not know the question.
    let deaf = format!(
        "{}\nread line\necho '{{\"message\":\"refused\",\"is\":{{\"reason\":\"what?\"}}}}'",
        hello(env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(code(&script("deaf", &deaf)), Code::AgentProtocol);
}
