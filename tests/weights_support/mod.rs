//! Small checkpoints on a real file system, and the real binary run on them.
#![allow(dead_code)]

pub mod hub;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use runseal::weights::{
    Algorithm, Manifest, NoProgress, ReplicaReport, ReportContext, rehash, scan_folder,
};
use serde_json::Value;

pub const SHARDS: [&str; 3] = [
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
];

/// The content of the file with this name: deterministic, and all shards equally
/// long, so that two can be swapped without their sizes telling. A shard is a whole
/// safetensors file.
pub fn content(name: &str) -> Vec<u8> {
    let seed = name
        .bytes()
        .fold(7u32, |a, b| a.wrapping_mul(31).wrapping_add(b.into()));
    let noise = |len: usize| -> Vec<u8> {
        (0..len as u32)
            .map(|i| (i.wrapping_mul(seed) >> 7) as u8)
            .collect()
    };
    if !name.ends_with(".safetensors") {
        return noise(40);
    }
    const LEN: usize = 5000;
    let tensor = format!("tensor.{}", &name[name.len().saturating_sub(26)..]);
    safetensors(&[(&tensor, &noise(LEN - 8 - 150))], 150)
}

/// A safetensors file of byte tensors whose header is padded to `header` bytes.
pub fn safetensors(tensors: &[(&str, &[u8])], header: usize) -> Vec<u8> {
    let mut map = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, bytes) in tensors {
        let begin = data.len();
        data.extend_from_slice(bytes);
        let entry = serde_json::json!({
            "dtype": "U8", "shape": [bytes.len()], "data_offsets": [begin, data.len()],
        });
        map.insert((*name).to_owned(), entry);
    }
    let text = serde_json::to_string(&map).unwrap();
    let text = format!("{text:header$}");
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out.extend(data);
    out
}

/// Writes a checkpoint of three shards, a config and a file in a sub-folder.
pub fn checkpoint(folder: &Path) {
    std::fs::create_dir_all(folder.join("original")).unwrap();
    for name in SHARDS
        .iter()
        .chain(&["config.json", "original/params.json"])
    {
        std::fs::write(folder.join(name), content(name)).unwrap();
    }
}

/// The manifest of what lies in a folder.
pub fn pin(folder: &Path) -> Manifest {
    let scan = scan_folder(folder, Algorithm::Both, &NoProgress).unwrap();
    Manifest::from_scan(&scan, None).unwrap()
}

pub fn context(replica: &str) -> ReportContext {
    ReportContext {
        replica: replica.to_owned(),
        role: "target".to_owned(),
        run_id: None,
        nonce_hash: None,
        plan_digest: None,
        boot_id: "boot-a".to_owned(),
        started: "2026-01-02T03:04:05Z".to_owned(),
        finished: "2026-01-02T03:04:06Z".to_owned(),
    }
}

/// Rehashes a folder through the library.
pub fn report(folder: &Path, manifest: &Manifest, replica: &str) -> ReplicaReport {
    rehash(folder, manifest, Algorithm::Sha256, &NoProgress)
        .unwrap()
        .into_report(manifest, context(replica))
}

/// A checkpoint in `model/` and its manifest beside it.
pub struct Fixture {
    pub dir: tempfile::TempDir,
    pub manifest: Manifest,
}

impl Fixture {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        checkpoint(&dir.path().join("model"));
        let manifest = pin(&dir.path().join("model"));
        std::fs::write(dir.path().join("manifest.json"), manifest.to_bytes()).unwrap();
        Self { dir, manifest }
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("model")
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// `verify weights model --manifest manifest.json --format json` and more.
    pub fn verify(&self, more: &[&str]) -> Answer {
        let mut args = vec![
            "weights",
            "model",
            "--manifest",
            "manifest.json",
            "--format",
            "json",
        ];
        args.extend(more);
        verify_in(self.dir.path(), &args)
    }

    /// The only finding, as (code, subject).
    pub fn only_finding(&self) -> (String, String) {
        let answer = self.verify(&[]);
        let found = answer.findings();
        assert_eq!(answer.code, 1, "{answer:?}");
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap()
    }
}

/// What the binary said.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Codes and subjects of all findings, in order.
    pub fn findings(&self) -> Vec<(String, String)> {
        let json = self.json();
        let text = |f: &Value, key: &str| f[key].as_str().unwrap().to_owned();
        let findings = json["findings"].as_array().unwrap();
        findings
            .iter()
            .map(|f| (text(f, "code"), text(f, "subject")))
            .collect()
    }
}

/// Runs the real binary. A run that hangs is killed and fails the test.
pub fn verify_in(dir: &Path, args: &[&str]) -> Answer {
    let output = assert_cmd::Command::cargo_bin("verify")
        .unwrap()
        .current_dir(dir)
        .env_remove("NO_COLOR")
        .timeout(Duration::from_secs(120))
        .args(args)
        .output()
        .unwrap();
    answer(output)
}

pub fn answer(output: Output) -> Answer {
    Answer {
        code: output
            .status
            .code()
            .expect("ended by a signal (did it hang?)"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs the binary as an ordinary user, whoever runs the tests: root may read
/// everything, so permissions would prove nothing.
pub fn verify_unprivileged(dir: &Path, args: &[&str]) -> Answer {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let built = assert_cmd::cargo::cargo_bin!("verify");
    let mut command;
    if rustix::process::geteuid().is_root() {
        // The build folder may be closed to others; the test's folder is opened.
        let copy = dir.join("verify");
        std::fs::copy(built, &copy).unwrap();
        for path in [dir, &copy] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        command = Command::new(copy);
        command.uid(65534).gid(65534);
    } else {
        command = Command::new(built);
    }
    answer(command.current_dir(dir).args(args).output().unwrap())
}
