//! `attest sign weights`: an OpenSSF Model Signing bundle.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Subcommand, ValueEnum};
use runseal::durable::{self, WriteOptions};
use runseal::ecdsa_keys;
use runseal::oms::{DEFAULT_IGNORES, DEFAULT_SHARD_SIZE, Method, SignOptions, Signed, sign_folder};
use runseal::relpath::{RelPath, escape};
use runseal::weights::{NoProgress, PieceHash};

use super::{keys, print};

/// Sign something for readers with other tools
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Weights(Weights),
}

/// Read a checkpoint and write an OpenSSF Model Signing (OMS v1.0) bundle
///
/// The key is ECDSA on P-256, P-384 or P-521 (`attest keygen --type p256`). Readers
/// check the bundle with `verify weights PATH --oms BUNDLE --key PUB` or with any
/// other OMS tool.
#[derive(clap::Args)]
struct Weights {
    /// The checkpoint: a folder, a hub cache (models--ORG--NAME) or one of its
    /// snapshots, or a .gguf file
    path: PathBuf,
    /// The secret key, PKCS#8 or SEC 1 PEM
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    /// Where the bundle goes; inside PATH it is left out of the signature
    #[arg(short, long, value_name = "BUNDLE", default_value = "model.sig")]
    output: PathBuf,
    /// One digest per file, or one per shard of a file
    #[arg(long, value_enum, default_value = "files")]
    method: MethodArg,
    /// Bytes per shard, with --method shards [default: 1000000000]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=1 << 53))]
    shard_size: Option<u64>,
    /// Which digest
    #[arg(long, value_enum, default_value = "sha256")]
    hash: HashArg,
    /// Leave out this file or folder below PATH; the bundle says so
    #[arg(long, value_name = "NAME", value_parser = typed)]
    ignore: Vec<String>,
    /// Sign .git, .gitattributes, .github and .gitignore too (other tools may leave them out)
    #[arg(long)]
    no_default_ignores: bool,
    /// The revision to sign in a hub cache, a commit or a ref
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// Replace an existing bundle
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum MethodArg {
    Files,
    Shards,
}

#[derive(Clone, Copy, ValueEnum)]
enum HashArg {
    Sha256,
    Blake3,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let What::Weights(args) = args.what;
    keys::refuse_tracked(&args.key)?;
    let key = ecdsa_keys::load_secret(&args.key)
        .with_context(|| format!("the key {}", args.key.display()))?;
    // Looked at before hundreds of gigabytes are read.
    if !args.force && args.output.symlink_metadata().is_ok() {
        bail!(
            "{} already exists and was left alone (hint: choose another path with -o, or --force)",
            args.output.display()
        );
    }
    refuse_to_replace(&args.output)?;
    let inside = inside(&args.path, &args.output)?;
    let defaults = DEFAULT_IGNORES
        .into_iter()
        .filter(|_| !args.no_default_ignores);
    let ignore_paths = defaults
        .map(str::to_owned)
        .chain(args.ignore.iter().cloned())
        .chain(inside);
    let signed = sign_folder(
        &args.path,
        &key,
        SignOptions {
            method: method(&args)?,
            hash: match args.hash {
                HashArg::Sha256 => PieceHash::Sha256,
                HashArg::Blake3 => PieceHash::Blake3,
            },
            ignore_paths: ignore_paths.collect::<BTreeSet<_>>().into_iter().collect(),
            name: name_of(&args.path),
            revision: args.revision.clone(),
        },
        &NoProgress,
    )
    .with_context(|| format!("{} was not signed", args.path.display()))?;
    let options = WriteOptions {
        replace: args.force,
        ..Default::default()
    };
    durable::write(&args.output, &signed.bundle.to_bytes(), options)?;
    print(&said(&args, &signed, &key.public().fingerprint()))?;
    Ok(ExitCode::SUCCESS)
}

/// What --force replaces is a bundle: not the key, nor a file of the model.
fn refuse_to_replace(output: &Path) -> anyhow::Result<()> {
    const LARGEST: u64 = 256 << 20;
    let Ok(meta) = output.metadata() else {
        return Ok(());
    };
    let readable = meta.is_file() && meta.len() <= LARGEST;
    let old = readable.then(|| std::fs::read(output)).transpose();
    let old = old.with_context(|| format!("could not read {}", output.display()))?;
    if !old.is_some_and(|bytes| bytes.is_empty() || runseal::oms::is_bundle(&bytes)) {
        bail!(
            "{} is no bundle and was left alone, also with --force (hint: choose another path with -o)",
            output.display()
        );
    }
    Ok(())
}

/// A path to leave out, as the bundle will name it.
fn typed(text: &str) -> Result<String, String> {
    let path = RelPath::typed(text).map_err(|e| e.to_string())?;
    String::from_utf8(path.as_bytes().to_vec()).map_err(|e| e.to_string())
}

fn method(args: &Weights) -> anyhow::Result<Method> {
    match (args.method, args.shard_size) {
        (MethodArg::Files, None) => Ok(Method::Files),
        (MethodArg::Files, Some(_)) => {
            bail!("--shard-size says nothing about whole files (hint: --method shards)")
        }
        (MethodArg::Shards, size) => Ok(Method::Shards(size.unwrap_or(DEFAULT_SHARD_SIZE))),
    }
}

/// The bundle's path below the folder, when it goes there.
fn inside(folder: &Path, output: &Path) -> anyhow::Result<Option<String>> {
    let unreadable = |p: &Path| format!("could not look at {}", p.display());
    let mut root = folder.canonicalize().with_context(|| unreadable(folder))?;
    if root.is_file() {
        root.pop();
    }
    let parent = match output.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().with_context(|| unreadable(parent))?;
    let Some(name) = output.file_name() else {
        bail!("{} is not a file name", output.display());
    };
    let Ok(below) = parent.strip_prefix(&root) else {
        return Ok(None);
    };
    // In a hub cache the model begins below snapshots/<commit>.
    let below: PathBuf = match below.strip_prefix("snapshots") {
        Ok(rest) if root.join("blobs").is_dir() => rest.components().skip(1).collect(),
        _ => below.to_owned(),
    };
    match below.join(name).to_str() {
        Some(path) => Ok(Some(path.to_owned())),
        None => bail!("the bundle's name below the folder is not UTF-8 (hint: choose another)"),
    }
}

fn name_of(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    match absolute.file_name() {
        Some(name) => escape(name.as_bytes()),
        None => "model".to_owned(),
    }
}

fn said(args: &Weights, signed: &Signed, fingerprint: &str) -> String {
    let statement = &signed.statement;
    let mut out = format!(
        "bundle    {}\nfiles     {} ({} bytes), {}, {}\noms root  {} (does not depend on names)\n",
        args.output.display(),
        signed.files,
        signed.bytes,
        statement.serialization.method,
        statement.serialization.hash.name(),
        statement.root,
    );
    if let Some(root) = signed.tree_root {
        out.push_str(&format!(
            "root      {root} (as in a manifest of the signed files)\n"
        ));
    }
    out.push_str(&format!("signer    {fingerprint}\n"));
    for path in &signed.left_out {
        out.push_str(&format!("not signed: {path}\n"));
    }
    out
}
