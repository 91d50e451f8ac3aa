//! The operator's key: made on first use, refused where it should not be.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::bail;
use runseal::durable;
use runseal::keys::{SigningKey, load_public, load_secret, save_pair};

use super::complain;

/// Default place of the secret key.
pub const SECRET: &str = "keys/attest.key.pem";
/// Default place of the public key.
pub const PUBLIC: &str = "keys/attest.pub.pem";

/// A key at hand.
pub struct Loaded {
    /// The key.
    pub key: SigningKey,
    /// Its public half's file.
    pub public_path: PathBuf,
    /// It was made just now.
    pub made: bool,
}

/// The public key's path that belongs to a secret key's.
pub fn public_path(secret: &Path) -> PathBuf {
    let name = secret
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or("attest.key.pem");
    let stem = name
        .strip_suffix(".key.pem")
        .or_else(|| name.strip_suffix(".pem"));
    secret.with_file_name(format!("{}.pub.pem", stem.unwrap_or(name)))
}

/// Loads the key, or makes it at the default place.
pub fn load_or_make(named: Option<&Path>) -> anyhow::Result<Loaded> {
    let secret = named.unwrap_or(Path::new(SECRET));
    let public = public_path(secret);
    refuse_tracked(secret)?;
    if secret.symlink_metadata().is_ok() {
        let key = load_secret(secret)?;
        check_public(&key, secret, &public)?;
        return Ok(Loaded {
            key,
            public_path: public,
            made: false,
        });
    }
    if named.is_some() {
        bail!(
            "there is no key {} (hint: name the right --key; `attest keygen` makes a new pair)",
            secret.display()
        );
    }
    let key = make(secret, &public)?;
    Ok(Loaded {
        key,
        public_path: public,
        made: true,
    })
}

/// Readers are pointed at the public key's file, so it must belong to the secret.
fn check_public(key: &SigningKey, secret: &Path, public: &Path) -> anyhow::Result<()> {
    if public.symlink_metadata().is_err() {
        let options = durable::WriteOptions::default();
        durable::write(public, key.public().to_pem().as_bytes(), options)?;
        complain(&format!(
            "note: the public key {} was missing and was written again from the secret one",
            public.display()
        ));
        return Ok(());
    }
    if load_public(public)? != key.public() {
        bail!(
            "{} is not the public half of {} (hint: move it away, or name the right --key)",
            public.display(),
            secret.display()
        );
    }
    Ok(())
}

/// Makes a pair of files; nothing is overwritten.
pub fn make(secret: &Path, public: &Path) -> anyhow::Result<SigningKey> {
    let key = SigningKey::generate()?;
    if let Some(dir) = secret.parent().filter(|p| !p.as_os_str().is_empty()) {
        durable::create_dir_all(dir)?;
    }
    save_pair(&key, secret, public)?;
    Ok(key)
}

/// A secret that git tracks is everybody's secret.
pub fn refuse_tracked(secret: &Path) -> anyhow::Result<()> {
    let folder = secret
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let Some(name) = secret.file_name() else {
        return Ok(());
    };
    // Variables of a surrounding git command would point at another checkout.
    let asked = Command::new("git")
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE")
        .arg("-C")
        .arg(folder)
        .args(["ls-files", "--error-unmatch", "--"])
        .arg(name)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match asked.ok().and_then(|s| s.code()) {
        Some(0) => bail!(
            "the secret key {} is tracked by git and may be public (hint: git rm --cached it, and make a new one)",
            secret.display()
        ),
        Some(1) => {}
        // Outside a checkout there is nothing to ask; inside one, say so.
        _ if in_checkout(folder) => complain(&format!(
            "note: git could not be asked whether it tracks {}",
            secret.display()
        )),
        _ => {}
    }
    Ok(())
}

fn in_checkout(folder: &Path) -> bool {
    folder
        .canonicalize()
        .is_ok_and(|f| f.ancestors().any(|a| a.join(".git").exists()))
}
