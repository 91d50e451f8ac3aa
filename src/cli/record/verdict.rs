//! `--sign-verdict`: the auditor's own signed word on a record, beside it.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use runseal::bundle::index::RECORD_FILE;
use runseal::digest::Sha256Digest;
use runseal::durable::{self, WriteOptions};
use runseal::exports::svr::{self, About, VerdictKey};
use runseal::policy::Trust;
use runseal::{ecdsa_keys, keys};

use super::one::Report;
use crate::cli::{now, output};

/// Reads the secret key, of either scheme.
pub fn load(path: &Path) -> anyhow::Result<VerdictKey> {
    let shown = || path.display().to_string();
    match keys::load_secret(path) {
        Ok(key) => return Ok(VerdictKey::Ed25519(key)),
        Err(keys::KeyError::NotSecret) => {}
        Err(e) => return Err(e).with_context(shown),
    }
    let key = ecdsa_keys::load_secret(path).with_context(shown)?;
    if key.public().curve() != ecdsa_keys::Curve::P256 {
        bail!("{}: verdicts are signed with Ed25519 or P-256", shown());
    }
    Ok(VerdictKey::P256(key))
}

/// Signs and writes `<record>.svr.intoto.jsonl`. For a bundle it stands beside the folder
/// and is about the record file in it.
pub fn write(
    report: &Report,
    digest: Option<Sha256Digest>,
    key: &VerdictKey,
    trust: &Trust,
    force: bool,
) -> anyhow::Result<()> {
    let time = now();
    let Some(sha256) = digest else {
        let path = report.path();
        output::complain(&format!("{path}: no verdict signed, there is no record"));
        return Ok(());
    };
    let (name, properties) = match report {
        Report::Bundle(r) => (RECORD_FILE.to_owned(), svr::of_audit(r)),
        Report::Published(r) => {
            let name = Path::new(&r.path)
                .file_name()
                .context("a record has a name")?;
            (name.to_string_lossy().into_owned(), svr::of_published(r))
        }
    };
    let about = About {
        name: &name,
        sha256,
        time: &time,
        policy: trust.policy.as_ref(),
    };
    let line = svr::sign(&about, &properties, key);
    // Beside the record, also when that was given as `.`: a file in a bundle that its
    // index does not list would be a finding.
    let shown = || report.path().to_owned();
    let real = Path::new(report.path())
        .canonicalize()
        .with_context(shown)?;
    let mut path = real.into_os_string();
    path.push(".svr.intoto.jsonl");
    let path = PathBuf::from(path);
    let options = WriteOptions {
        replace: force,
        private: false,
    };
    durable::write(&path, &line, options)?;
    output::complain(&format!("signed verdict: {}", path.display()));
    Ok(())
}
