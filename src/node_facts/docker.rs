//! What the container engine says of itself and of an image.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use crate::digest::Sha256Digest;
use crate::json;
use crate::weights::Image;

/// A container engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ContainerEngine {
    /// Version of its server.
    pub version: Option<String>,
    /// Storage driver.
    pub storage: Option<String>,
    /// Images lie in containerd's store, where `.Id` is the digest of the manifest
    /// and not of the configuration.
    pub containerd_store: bool,
}

/// By what an image is known on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImageIdentity {
    /// `.Id`: digest of the configuration on the classic store, of the manifest on
    /// containerd's.
    pub id: Option<Sha256Digest>,
    /// Digests in `.RepoDigests`; none after `docker load`.
    pub manifests: BTreeSet<Sha256Digest>,
    /// Digests of the unpacked layers in order.
    pub diff_ids: Vec<Sha256Digest>,
}

/// How an image on a node relates to the pins of an inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pinned {
    /// It is the pinned one; by which digest.
    Yes(&'static str),
    /// It is another one.
    No(String),
    /// The inventory pins nothing that this node shows.
    Unknown,
}

/// `docker info --format '{{json .}}'`. Without a server there is none.
pub(super) fn info(text: &str) -> Option<ContainerEngine> {
    let value: Value = json::from_slice(text.trim().as_bytes()).ok()?;
    let word = |key: &str| {
        let text = value.get(key)?.as_str()?;
        (!text.is_empty()).then(|| text.to_owned())
    };
    let status = value.get("DriverStatus").and_then(Value::as_array);
    let mut pairs = status.into_iter().flatten();
    let containerd_store = pairs.any(|pair| {
        let kind = pair.get(1).and_then(Value::as_str);
        kind.is_some_and(|k| k.starts_with("io.containerd.snapshotter"))
    });
    let version = word("ServerVersion")?;
    Some(ContainerEngine {
        version: Some(version),
        storage: word("Driver"),
        containerd_store,
    })
}

/// `docker image inspect REFERENCE`.
pub(super) fn image(text: &str) -> Option<ImageIdentity> {
    let value: Value = json::from_slice(text.trim().as_bytes()).ok()?;
    let image = value.as_array()?.first()?;
    let digests = |value: Option<&Value>| -> Vec<Sha256Digest> {
        let items = value.and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|v| digest(v.as_str()?)).collect()
    };
    Some(ImageIdentity {
        id: image.get("Id").and_then(Value::as_str).and_then(digest),
        manifests: digests(image.get("RepoDigests")).into_iter().collect(),
        diff_ids: digests(image.get("RootFS").and_then(|r| r.get("Layers"))),
    })
}

/// `sha256:…`, also after `NAME@`.
fn digest(text: &str) -> Option<Sha256Digest> {
    let text = text.rsplit('@').next()?;
    text.strip_prefix("sha256:")?.parse().ok()
}

impl ImageIdentity {
    /// Compares with an inventory's pins. Layers decide when both sides have them:
    /// they are the same on every storage driver and after save and load.
    pub fn is(&self, pins: &Image, containerd_store: bool) -> Pinned {
        let pinned_layers: Vec<_> = pins.diff_ids.iter().filter_map(|d| digest(d)).collect();
        if !pinned_layers.is_empty() && !self.diff_ids.is_empty() {
            return match pinned_layers == self.diff_ids {
                true => Pinned::Yes("layers"),
                false => Pinned::No("other layers".to_owned()),
            };
        }
        let config = pins.config.as_deref().and_then(digest);
        if let (Some(config), Some(id), false) = (config, self.id, containerd_store) {
            return match config == id {
                true => Pinned::Yes("configuration"),
                false => Pinned::No(format!("configuration sha256:{id}")),
            };
        }
        let of_reference = pins.reference.split_once('@').and_then(|(_, d)| digest(d));
        let wanted = pins
            .manifests
            .iter()
            .filter_map(|d| digest(d))
            .chain(of_reference);
        let wanted: BTreeSet<Sha256Digest> = wanted.collect();
        let mut here = self.manifests.clone();
        here.extend(self.id.filter(|_| containerd_store));
        if wanted.is_empty() || here.is_empty() {
            return Pinned::Unknown;
        }
        match wanted.is_disjoint(&here) {
            false => Pinned::Yes("manifest"),
            true => {
                let here: Vec<String> = here.iter().map(|d| format!("sha256:{d}")).collect();
                Pinned::No(format!("manifest {}", here.join(", ")))
            }
        }
    }
}
