//! `attest keygen`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{keys, print};

/// Make an Ed25519 key pair (PKCS#8 and SPKI PEM); nothing is overwritten
#[derive(clap::Args)]
pub struct Args {
    /// File for the secret key; the public one goes beside it as *.pub.pem
    #[arg(default_value = keys::SECRET)]
    secret: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let public = keys::public_path(&args.secret);
    let key = keys::make(&args.secret, &public)?;
    print(&format!(
        "secret key   {} (mode 0600; keep it off every repository)\npublic key   {}\nfingerprint  {}\n\
         Give the fingerprint to readers by a channel other than the records themselves.\n",
        args.secret.display(),
        public.display(),
        key.public().fingerprint()
    ))?;
    Ok(ExitCode::SUCCESS)
}
