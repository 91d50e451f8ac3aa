//! The operator's key: made on first use, refused where it should not be.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::bail;
use runseal::durable;
use runseal::keys::{SigningKey, load_secret, save_pair};

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
        return Ok(Loaded {
            key,
            public_path: public,
            made: false,
        });
    }
    if named.is_some() {
        bail!("there is no key {} (hint: attest keygen)", secret.display());
    }
    let key = make(secret, &public)?;
    Ok(Loaded {
        key,
        public_path: public,
        made: true,
    })
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
    let tracked = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(["ls-files", "--error-unmatch", "--"])
        .arg(name)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    // Without git, or outside a checkout, nothing is tracked.
    if tracked.is_ok_and(|s| s.success()) {
        bail!(
            "the secret key {} is tracked by git and may be public (hint: git rm --cached it, and make a new one)",
            secret.display()
        );
    }
    Ok(())
}
