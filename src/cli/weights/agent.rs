//! `verify weights --agent`: the node's side of a rehash, for a caller at the
//! other end of stdin and stdout.

use std::io::{self, IsTerminal};
use std::path::Path;

use anyhow::{Context, bail};
use runseal::digest::Sha256Digest;
use runseal::keys::load_secret;
use runseal::weights::boot_id;
use runseal::weights::remote::protocol::{Hello, PROTOCOL};
use runseal::weights::remote::serve;

use crate::cli::{Answer, now};

/// Serves until the caller closes its end. `key` signs the reports.
pub fn run(key: Option<&Path>) -> anyhow::Result<Answer> {
    if io::stdin().is_terminal() {
        bail!(
            "--agent serves a program, not a terminal (hint: `verify weights --inventory FILE` starts it on the nodes)"
        );
    }
    let key = key
        .map(|path| load_secret(path).with_context(|| format!("node key {}", path.display())))
        .transpose()?;
    let hello = Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        binary_sha256: own_digest()?,
        boot_id: boot_id().context("could not read this machine's boot id")?,
        arch: std::env::consts::ARCH.to_owned(),
    };
    let mut input = io::BufReader::new(io::stdin());
    serve(&mut input, &mut io::stdout(), hello, key.as_ref(), &now)?;
    Ok(Answer::Passed)
}

/// Digest of the file this process was started from. Through /proc, so that it is
/// the file that runs even when another one took its name meanwhile.
pub fn own_digest() -> anyhow::Result<Sha256Digest> {
    let path = Path::new("/proc/self/exe");
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(_) => std::fs::read(std::env::current_exe()?)?,
    };
    Ok(Sha256Digest::of(&bytes))
}
