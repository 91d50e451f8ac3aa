//! From the arguments of `verify weights` to replicas, manifests and what is known
//! of the revision. What goes wrong here is "could not run".

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use runseal::relpath::escape;
use runseal::weights::git::{Bound, ObjectDir, Revision};
use runseal::weights::{
    Binding, GitId, Inventory, ListFormat, Listing, MAX_MANIFEST, Replica, Role, Source, Survey,
    pointer_tree,
};

use super::remote::Replicas;
use super::{Args, ManifestFormat, oms};
use crate::cli::read_input;

const MAX_INVENTORY: u64 = 1 << 24;

/// What the arguments come to.
pub struct Resolved {
    /// What is looked at, and what it should hold.
    pub replicas: Replicas,
    /// Where each manifest was read from.
    pub manifest_paths: BTreeMap<Role, PathBuf>,
    /// What is known of the revision.
    pub binding: AskedBinding,
    /// Who signed the target's manifest, where its format is a signed one.
    pub signed: Option<oms::Signed>,
}

/// A manifest that cannot be relied on, and the answer to it.
pub struct Refused {
    /// Where it was read from.
    pub path: PathBuf,
    /// What is wrong with it.
    pub survey: Survey,
}

/// What is known of the link to a revision before any replica was looked at.
pub enum AskedBinding {
    /// Nobody asked.
    NotAsked,
    /// The objects do not give the revision.
    Unreadable(String),
    /// They do, and this is what it holds.
    Read(Bound),
}

/// Reads inventory, manifests and git objects.
pub fn resolve(args: &Args) -> anyhow::Result<Result<Resolved, Refused>> {
    let judging = !args.remote.reports.is_empty();
    let target = |path: &PathBuf| BTreeMap::from([(Role::Target, path.clone())]);
    let (mut replicas, manifest_paths) = match (&args.path, &args.manifest) {
        (Some(path), manifest) => (
            one_replica(name_of(path), Some(path.clone())),
            manifest.as_ref().map(target).unwrap_or_default(),
        ),
        (None, Some(manifest)) if judging && args.inventory.is_none() => {
            (one_replica(String::new(), None), target(manifest))
        }
        _ => from_inventory(args)?,
    };
    replicas.revision.clone_from(&args.revision);
    let mut signed = None;
    for (role, path) in &manifest_paths {
        let (told, key) = match role {
            Role::Target => (args.manifest_format, args.oms.key.as_deref()),
            _ => (None, None),
        };
        let read = read_manifest(path, told, key).with_context(|| path.display().to_string())?;
        let (listing, by) = match read {
            Ok(read) => read,
            Err(survey) => {
                let path = path.clone();
                return Ok(Err(Refused { path, survey }));
            }
        };
        if *role == Role::Target {
            signed = by;
        } else if by.is_some() {
            bail!(
                "{}: an OMS bundle can be the target's manifest, not the {role}'s (hint: `attest pin weights` writes one for it)",
                path.display()
            );
        }
        replicas.manifests.insert(*role, listing);
    }
    if args.oms.key.is_some() && signed.is_none() {
        bail!(
            "--key is for OMS bundles, and the manifest is none (hint: --manifest BUNDLE or --oms BUNDLE)"
        );
    }
    let listing = replicas.manifests.remove(&Role::Target);
    let listing = with_arguments(listing.unwrap_or_else(Listing::absent), args)?;
    let binding = bind(args, &listing)?;
    let listing = match &binding {
        AskedBinding::Read(bound) => bound.listing.clone(),
        _ => listing,
    };
    replicas.manifests.insert(Role::Target, listing);
    Ok(Ok(Resolved {
        replicas,
        manifest_paths,
        binding,
        signed,
    }))
}

/// --revision and --ignore are about the target.
fn with_arguments(mut listing: Listing, args: &Args) -> anyhow::Result<Listing> {
    let commit = args.revision.as_deref();
    let commit = commit.filter(|r| r.parse::<GitId>().is_ok());
    if let (Some(named), Some(asked)) = (listing.revision(), commit)
        && named != asked
    {
        bail!(
            "--revision {asked}, but the manifest is of {named} (hint: leave --revision out, or give the manifest of that revision)"
        );
    }
    if listing.revision().is_none() && commit.is_some() {
        listing = listing.with_source(Some(Source {
            repository: None,
            revision: commit.map(str::to_owned),
            binding: Binding::Asserted,
        }));
    }
    Ok(listing.with_ignore(args.ignore.iter().cloned())?)
}

fn one_replica(name: String, only: Option<PathBuf>) -> Replicas {
    Replicas {
        replicas: vec![Replica::local(name, "")],
        folder: PathBuf::new(),
        only,
        manifests: BTreeMap::new(),
        revision: None,
        ssh: None,
        explicit: true,
    }
}

/// A listing, and who signed it where the format is a signed one; or the answer to
/// one that cannot be relied on.
pub type ReadManifest = Result<(Listing, Option<oms::Signed>), Survey>;

fn read_manifest(
    path: &Path,
    told: Option<ManifestFormat>,
    key: Option<&Path>,
) -> anyhow::Result<ReadManifest> {
    if path.is_dir() {
        return Ok(Ok((pointer_tree(path)?, None)));
    }
    let bytes = read_input(path, "the manifest", MAX_MANIFEST)?;
    if oms::is_manifest(&bytes, told) {
        return oms::read_manifest(&bytes, key);
    }
    // The only pair of formats that the bytes do not tell apart.
    let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase());
    let blake3 =
        name.is_some_and(|n| n.contains("b3sum") || n.contains("blake3") || n.ends_with(".b3"));
    let told = told.map(ListFormat::from);
    let listing = Listing::read(&bytes, told)?;
    if blake3 && told.is_none() && listing.format() == ListFormat::Sha256sum {
        return Ok(Ok((Listing::read(&bytes, Some(ListFormat::B3sum))?, None)));
    }
    Ok(Ok((listing, None)))
}

fn bind(args: &Args, manifest: &Listing) -> anyhow::Result<AskedBinding> {
    let Some(dir) = &args.git_objects else {
        return Ok(AskedBinding::NotAsked);
    };
    let Some(revision) = manifest.revision() else {
        bail!("the manifest names no revision to bind to (hint: give the commit with --revision)");
    };
    if manifest.is_absent() {
        bail!(
            "--git-objects binds a manifest to its revision, and there is none (hint: --manifest)"
        );
    }
    if !dir.is_dir() {
        bail!("--git-objects {} is not a folder", dir.display());
    }
    let commit: GitId = match revision.parse() {
        Ok(commit) => commit,
        Err(_) => bail!("the revision {revision:?} is not a full commit id"),
    };
    Ok(match Revision::read(&ObjectDir::new(dir), commit) {
        Ok(revision) => AskedBinding::Read(revision.bind(manifest.clone())),
        Err(e) => AskedBinding::Unreadable(e.to_string()),
    })
}

fn from_inventory(args: &Args) -> anyhow::Result<(Replicas, BTreeMap<Role, PathBuf>)> {
    let path = match &args.inventory {
        Some(path) => path.clone(),
        None if Path::new("cluster.toml").exists() => PathBuf::from("cluster.toml"),
        None => bail!(
            "there is no cluster.toml here (hint: `attest run` writes one; or name an inventory with \
             --inventory, or give one folder and its --manifest)"
        ),
    };
    let bytes = read_input(&path, "the inventory", MAX_INVENTORY)?;
    let text = String::from_utf8(bytes)
        .ok()
        .with_context(|| format!("{} is not UTF-8 text", path.display()))?;
    let inventory = Inventory::parse(&text).with_context(|| format!("{}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut manifest_paths = inventory.manifest_paths(folder);
    if let Some(manifest) = &args.manifest {
        manifest_paths.insert(Role::Target, manifest.clone());
    }
    let replicas = Replicas {
        replicas: inventory.replicas().to_vec(),
        folder: folder.to_owned(),
        only: None,
        manifests: BTreeMap::new(),
        revision: None,
        ssh: inventory.ssh().map(PathBuf::from),
        explicit: args.inventory.is_some(),
    };
    Ok((replicas, manifest_paths))
}

/// A folder's own name stands for a replica that no inventory names.
pub fn name_of(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match absolute.file_name() {
        Some(name) => escape(name.as_bytes()),
        None => "replica".to_owned(),
    }
}
