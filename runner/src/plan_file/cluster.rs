//! A plan that runs on a cluster: replicas, manifests and engine come from its
//! inventory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use runseal::plan::{EndpointPlan, EnginePlan, Pin, ReplicaPlan};
use runseal::server_facts;
use runseal::weights::{Engine, Inventory, Launch, Role};

use super::PlanFile;
use super::hints::nearest;
use crate::engine_recipe::{self, Recipe, layout};

/// A cluster and how an engine is started on it.
#[derive(Debug, Clone)]
pub struct ClusterPlan {
    /// The inventory.
    pub inventory: Inventory,
    /// Its folder: local paths start here.
    pub folder: PathBuf,
    /// The engine's recipe.
    pub recipe: Recipe,
}

/// Reads the inventory that a plan names, and looks whether the two go together.
pub(super) fn read(path: &Path, file: &PlanFile) -> anyhow::Result<ClusterPlan> {
    if !file.replica.is_empty() || !file.endpoint.is_empty() || file.engine.is_some() {
        bail!(
            "plan: with `inventory`, replicas, endpoints and engine stand there (hint: remove [[replica]], [[endpoint]] and [engine] here)"
        );
    }
    if let Some(c) = file.checkpoint.iter().find(|c| c.manifest.is_some()) {
        bail!(
            "plan: with `inventory`, the manifest of the {} stands there (hint: remove `manifest` here)",
            c.role
        );
    }
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("could not read inventory {}", path.display()))?;
    let inventory = Inventory::parse(&text).with_context(|| path.display().to_string())?;
    let Some(engine) = &inventory.extra.engine else {
        bail!(
            "{}: it has no [engine] (hint: docs/runner.md)",
            path.display()
        );
    };
    if engine.served_name != file.requests.model {
        bail!(
            "plan: requests.model is {:?}, and the inventory serves {:?}",
            file.requests.model,
            engine.served_name
        );
    }
    let known = engine_recipe::NAMES.iter().copied();
    let Some(recipe) = engine_recipe::recipe(&engine.recipe) else {
        let hint = nearest(&engine.recipe, known.clone());
        bail!(
            "{}: there is no engine recipe {:?}{}",
            path.display(),
            engine.recipe,
            hint.unwrap_or_else(|| format!(
                " (hint: one of {})",
                known.collect::<Vec<_>>().join(", ")
            ))
        );
    };
    for role in inventory.manifests().keys() {
        if !file.checkpoint.iter().any(|c| c.role == role.name()) {
            bail!("plan: the inventory has a {role}, and the plan no checkpoint of that role");
        }
    }
    Ok(ClusterPlan {
        inventory,
        folder: path.parent().unwrap_or(Path::new("")).to_owned(),
        recipe,
    })
}

impl ClusterPlan {
    fn engine_entry(&self) -> anyhow::Result<&Engine> {
        let engine = self.inventory.extra.engine.as_ref();
        engine.context("the inventory has no [engine]")
    }

    /// File of a checkpoint's manifest.
    pub(super) fn manifest(&self, role: &str) -> anyhow::Result<PathBuf> {
        let paths = self.inventory.manifest_paths(&self.folder);
        let found = paths.into_iter().find(|(r, _)| r.name() == role);
        let (_, path) = found.with_context(|| {
            format!("plan: the inventory has no manifest for the checkpoint {role:?}")
        })?;
        Ok(path)
    }

    /// A replica per node. Their aliases are the nodes' names.
    pub(super) fn replicas(&self) -> Vec<ReplicaPlan> {
        let each = self.inventory.replicas().iter();
        each.map(|r| ReplicaPlan {
            name: r.name.clone(),
            node: r.name.clone(),
            transport: r.transport.name().to_owned(),
            paths: by_name(&r.paths),
        })
        .collect()
    }

    /// What serves: all ranks together.
    pub(super) fn endpoint(&self) -> EndpointPlan {
        let cluster = self.inventory.extra.cluster.as_ref();
        EndpointPlan {
            name: cluster.map_or("cluster".to_owned(), |c| c.name.clone()),
            replicas: self
                .inventory
                .replicas()
                .iter()
                .map(|r| r.name.clone())
                .collect(),
            remote: None,
        }
    }

    pub(super) fn engine(&self) -> anyhow::Result<EnginePlan> {
        let entry = self.engine_entry()?;
        let layout = layout(&self.recipe, &self.inventory)?;
        let unpinned = |reason: &str| Pin::Unpinned {
            reason: reason.to_owned(),
        };
        let executable = match (entry.launch, entry.program_sha256, &layout.image) {
            (Launch::Process, Some(digest), _) => Pin::Sha256(digest),
            (Launch::Process, None, _) => unpinned("the inventory has no program_sha256"),
            (_, _, Some(image)) => match (&image.manifests[..], image.config) {
                ([one], _) => Pin::Sha256(*one),
                ([], Some(_)) => unpinned("the image is pinned by its configuration"),
                ([], None) if !image.diff_ids.is_empty() => {
                    unpinned("the image is pinned by its layers")
                }
                ([], None) => unpinned("the inventory has no digest of the image"),
                _ => unpinned("the image is pinned by any of several manifests"),
            },
            (_, _, None) => unpinned("nothing is launched"),
        };
        let documents = server_facts::family(&self.recipe.name).map_or(&[][..], |f| f.documents);
        Ok(EnginePlan {
            recipe: self.recipe.name.clone(),
            launch: entry.launch.name().to_owned(),
            executable,
            argv: Vec::new(),
            env: BTreeMap::new(),
            path: self.recipe.ready.path.clone(),
            documents: documents.iter().map(|d| (*d).to_owned()).collect(),
            layout: Some(layout),
        })
    }
}

fn by_name(paths: &BTreeMap<Role, String>) -> BTreeMap<String, String> {
    let each = paths.iter();
    each.map(|(role, path)| (role.name().to_owned(), path.clone()))
        .collect()
}
