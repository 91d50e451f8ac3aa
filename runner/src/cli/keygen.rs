//! `attest keygen`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use runseal::durable;
use runseal::ecdsa_keys::{self, Curve, EcdsaSigningKey};

use super::{keys, print};

/// Default place of an ECDSA key.
const ECDSA_SECRET: &str = "keys/oms.key.pem";

/// Make a key pair (PKCS#8 and SPKI PEM); nothing is overwritten
///
/// Records are signed with Ed25519. OpenSSF Model Signing bundles need ECDSA.
#[derive(clap::Args)]
pub struct Args {
    /// File for the secret key; the public one goes beside it as *.pub.pem [default:
    /// keys/attest.key.pem, for ECDSA keys/oms.key.pem]
    secret: Option<PathBuf>,
    /// The kind of key
    #[arg(long = "type", value_enum, default_value = "ed25519")]
    kind: Kind,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Ed25519,
    P256,
    P384,
    P521,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let default = match args.kind {
        Kind::Ed25519 => keys::SECRET,
        _ => ECDSA_SECRET,
    };
    let secret = args.secret.unwrap_or_else(|| default.into());
    let public = keys::public_path(&secret);
    let fingerprint = match args.kind {
        Kind::Ed25519 => keys::make(&secret, &public)?.public().fingerprint(),
        Kind::P256 => make_ecdsa(Curve::P256, &secret, &public)?,
        Kind::P384 => make_ecdsa(Curve::P384, &secret, &public)?,
        Kind::P521 => make_ecdsa(Curve::P521, &secret, &public)?,
    };
    print(&format!(
        "secret key   {} (mode 0600; keep it off every repository)\npublic key   {}\nfingerprint  {}\n\
         Give the fingerprint to readers by a channel other than the records themselves.\n",
        secret.display(),
        public.display(),
        fingerprint
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn make_ecdsa(curve: Curve, secret: &Path, public: &Path) -> anyhow::Result<String> {
    let key = EcdsaSigningKey::generate(curve)?;
    if let Some(dir) = secret.parent().filter(|p| !p.as_os_str().is_empty()) {
        durable::create_dir_all(dir)?;
    }
    ecdsa_keys::save_pair(&key, secret, public)?;
    Ok(key.public().fingerprint())
}
