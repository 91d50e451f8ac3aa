//! Nodes that are played by a shell script in ssh's place: it says what ssh says,
//! and runs the remote command on this machine.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::weights_support::*;

/// What the script does for a host, by its name up to the first dash.
const SSH: &str = r##"#!/bin/sh
echo "$*" >>"$FAKE/calls"
log=/dev/stderr
while [ $# -gt 0 ]; do
  case "$1" in
    -E) log=$2; shift 2 ;;
    -o|-i|-l|-p) shift 2 ;;
    -O) exit 0 ;;
    --) shift; break ;;
    *) shift ;;
  esac
done
host=$1
command=$2
fail() { printf '%s\n' "$1" >>"$log"; exit 255; }
on_node() { HOME="$FAKE/home-$host" PATH="$FAKE/bin-$1:/usr/bin:/bin" sh -c "$command"; }
case "${host%%-*}" in
  refused) fail "ssh: connect to host $host port 22: Connection refused" ;;
  noroute) fail "ssh: connect to host $host port 22: No route to host" ;;
  timeout) fail "ssh: connect to host $host port 22: Connection timed out" ;;
  banner) fail "Connection timed out during banner exchange" ;;
  key) fail "u@$host: Permission denied (publickey)." ;;
  changed) fail "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
Host key verification failed." ;;
  unknown) fail "No ED25519 host key is known for $host and you have requested strict checking.
Host key verification failed." ;;
  lost) on_node good | head -n 1; fail "client_loop: send disconnect: Broken pipe" ;;
  gone) on_node good | head -n 1; fail "Timeout, server $host not responding." ;;
  silent) exec sleep 600 ;;
  mute) on_node good | head -n 1; exec sleep 600 ;;
  motd) echo "Welcome to $host"; on_node good ;;
  endless) exec cat /dev/zero ;;
  chatty) on_node good | head -n 1
    while echo '{"message":"progress","is":{"bytes":1}}'; do sleep 0.1; done ;;
  liar) on_node good | sed -u "s/\\(size.*sha256.*:.\"\\)[0-9a-f]\\{4\\}/\\1dead/" ;;
  otherboot) on_node good | sed -u '1!s/boot_id.":."[^,]*/boot_id\\":\\"feed\\"/' ;;
  otherreplica) on_node good | sed -u 's/"replica.":."[^,]*/"replica\\":\\"r9\\"/' ;;
  *) on_node "${host%%-*}" ;;
esac
"##;

pub struct Cluster {
    pub f: Fixture,
}

impl Cluster {
    /// Four copies of a checkpoint, and the fake ssh.
    pub fn new() -> Self {
        let f = Fixture::new();
        for i in 0..4 {
            checkpoint(&f.dir.path().join(format!("m{i}")));
        }
        let this = Self { f };
        this.script("ssh", SSH);
        for host in ["good", "missing", "sudo"] {
            fs::create_dir(this.at(&format!("bin-{host}"))).unwrap();
        }
        let verify = assert_cmd::cargo::cargo_bin!("verify");
        for host in ["good", "sudo"] {
            let link = this.at(&format!("bin-{host}/verify"));
            std::os::unix::fs::symlink(verify, link).unwrap();
        }
        this
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.f.dir.path().join(name)
    }

    /// An executable file.
    pub fn script(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// An inventory of ssh replicas `r0`, `r1`, … on these hosts. A host may be
    /// followed by more lines for its replica.
    pub fn inventory(&self, hosts: &[&str]) -> PathBuf {
        let mut text = "format = \"runseal.cluster/v1\"\nmanifest = \"manifest.json\"\n".to_owned();
        for (i, host) in hosts.iter().enumerate() {
            let (host, more) = host.split_once('\n').unwrap_or((host, ""));
            let path = self.at(&format!("m{i}"));
            text.push_str(&format!(
                "[[replica]]\nname = \"r{i}\"\ntransport = \"ssh\"\nhost = \"{host}\"\npath = {path:?}\n{more}\n"
            ));
        }
        self.write("nodes.toml", &text)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub fn flip(&self, file: &str) {
        let path = self.at(file);
        let mut bytes = fs::read(&path).unwrap();
        // The last byte is tensor data: no header is broken.
        *bytes.last_mut().unwrap() ^= 4;
        fs::write(&path, &bytes).unwrap();
    }

    /// `verify weights --inventory nodes.toml --ssh ./ssh` and more.
    pub fn verify(&self, more: &[&str]) -> Answer {
        let ssh = self.at("ssh");
        let base = ["weights", "--inventory", "nodes.toml", "--ssh"];
        let args = [&base[..], &[ssh.to_str().unwrap()], more].concat();
        self.run(&args)
    }

    pub fn json(&self, more: &[&str]) -> Answer {
        self.verify(&[&["--format", "json"], more].concat())
    }

    pub fn run(&self, args: &[&str]) -> Answer {
        let output = assert_cmd::Command::cargo_bin("verify")
            .unwrap()
            .current_dir(self.f.dir.path())
            .env("FAKE", self.f.dir.path())
            .timeout(std::time::Duration::from_secs(120))
            .args(args)
            .output()
            .unwrap();
        answer(output)
    }

    /// Finding codes of a run over one node, with that finding's detail.
    pub fn one(&self, host: &str, more: &[&str]) -> (i32, Vec<String>, String) {
        self.inventory(&[host]);
        let answer = self.json(more);
        let detail = answer.json()["findings"][0]["detail"].clone();
        let codes = answer.findings().into_iter().map(|(c, _)| c).collect();
        (answer.code, codes, detail.as_str().unwrap_or("").to_owned())
    }
}

pub fn codes(answer: &Answer) -> Vec<String> {
    answer.findings().into_iter().map(|(c, _)| c).collect()
}

pub fn is_dir_empty(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut d| d.next().is_none())
}
