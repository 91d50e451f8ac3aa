//! `verify weights --agent`: the node's side of a rehash, for a caller at the
//! other end of stdin and stdout.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail};
use runseal::digest::Sha256Digest;
use runseal::keys::load_secret;
use runseal::weights::boot_id;
use runseal::weights::remote::protocol::{Hello, PROTOCOL};
use runseal::weights::remote::serve;
use sha2::{Digest, Sha256};

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
    let mut file = match File::open("/proc/self/exe") {
        Ok(file) => file,
        Err(_) => File::open(std::env::current_exe()?)?,
    };
    // In pieces: a program with its symbols is larger than all else in memory.
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Sha256Digest(hasher.finalize().into())),
            n => hasher.update(&buffer[..n]),
        }
    }
}
