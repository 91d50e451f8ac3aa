//! The offline half stays offline: nothing in its dependency tree can talk to a
//! network, and the program asks for no socket whatever it is asked to do.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Crates that bring an async runtime, HTTP or TLS.
const FORBIDDEN: &[&str] = &[
    "tokio",
    "async-std",
    "smol",
    "async-executor",
    "futures-executor",
    "mio",
    "hyper",
    "h2",
    "h3",
    "http",
    "reqwest",
    "ureq",
    "isahc",
    "curl",
    "surf",
    "attohttpc",
    "minreq",
    "quinn",
    "socket2",
    "rustls",
    "native-tls",
    "openssl",
    "openssl-sys",
    "boring",
    "aws-lc-sys",
    "schannel",
    "security-framework",
    "webpki",
    "trust-dns-resolver",
    "hickory-resolver",
];

/// The tree on this machine's target: crates for other systems need not have been
/// downloaded.
fn tree(package: &str) -> Vec<String> {
    let out = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "--edges",
            "normal,build",
            "--prefix",
            "none",
        ])
        .args(["--format", "{p}", "--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines()
        .filter_map(|l| l.split(' ').next().map(str::to_owned))
        .collect()
}

#[test]
fn no_runtime_http_or_tls_crate_is_in_the_offline_tree() {
    let ours = tree("runseal");
    assert!(ours.iter().any(|c| c == "sha2"), "the tree was read");
    let bad: Vec<&String> = ours
        .iter()
        .filter(|c| FORBIDDEN.contains(&c.as_str()))
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
    // The same look at the live half finds some, so the look can find.
    let live = tree("runseal-runner");
    assert!(live.iter().any(|c| FORBIDDEN.contains(&c.as_str())));
}

fn without_sockets(args: &[&str]) -> Output {
    let verify = Path::new(env!("CARGO_BIN_EXE_verify"));
    let helper: PathBuf = verify.with_file_name("examples").join("without-sockets");
    Command::new(helper)
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

const SIGSYS: i32 = 31;

#[test]
fn asking_for_a_socket_is_deadly_under_the_filter() {
    let out = without_sockets(&["--self-test"]);
    assert_eq!(out.status.signal(), Some(SIGSYS), "{out:?}");
}

#[test]
fn verify_asks_for_no_socket() {
    let verify = env!("CARGO_BIN_EXE_verify");
    let committed = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("evidence/committed.txt"),
    )
    .unwrap();
    let bundle = committed
        .lines()
        .find(|l| !l.starts_with('#') && !l.is_empty())
        .unwrap();
    let bundle = format!("evidence/{bundle}");
    let manifest = format!("{bundle}/checkpoints/target.manifest.json");
    for (args, code) in [
        (vec![verify, "record", &bundle], 1),
        (vec![verify, "explain", "digest-mismatch"], 0),
        (
            vec![
                verify,
                "weights",
                "runner/reference-model/checkpoint",
                "--manifest",
                &manifest,
            ],
            0,
        ),
        (vec![verify, "record", "/nonexistent"], 2),
        // Threads, a policy's keys, other kinds, comparisons and exports.
        (vec![verify, "record", "evidence"], 1),
        (vec![verify, "compare", &bundle, &bundle], 1),
        (vec![verify, "export", &bundle, "--to", "csv"], 0),
        (vec![verify, "weights", "--agent"], 0),
    ] {
        let out = without_sockets(&args);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {out:?}");
    }
}
