//! Endpoints that somebody else runs: what a plan says of them.
//!
//! The plan stands in every bundle for everybody to read, so it has neither the
//! address of such an endpoint nor a key: the address is in [`ADDRESSES`], which may
//! be withheld, and of a key only the name of the environment variable that held it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Pin, PlanError, RunPlan};
use crate::digest::Sha256Digest;

/// Engine recipe of a plan whose endpoints somebody else runs.
pub const RECIPE: &str = "endpoint";
/// [`super::EnginePlan::launch`] of such a plan.
pub const LAUNCH: &str = "none";
/// File with the addresses, which may be withheld.
pub const ADDRESSES: &str = "addresses.json";
/// Longest name of an environment variable.
const MAX_NAME: usize = 64;

/// How to reach an endpoint that somebody else runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemotePlan {
    /// Over TLS, to a server that proves its name.
    pub tls: bool,
    /// SHA-256 of the PEM file with the authorities that are trusted beside the public
    /// ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_sha256: Option<Sha256Digest>,
    /// Environment variable with the bearer key. The key itself is nowhere in a bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
}

impl RunPlan {
    /// True when somebody else runs the endpoints: nothing is launched, and no weights
    /// are looked at.
    pub fn is_remote(&self) -> bool {
        self.engine.recipe == RECIPE
    }

    /// All endpoints are of one sort, and a plan says nothing of weights or processes
    /// that it does not see.
    pub(super) fn check_remote(&self) -> Result<(), PlanError> {
        let bad = |why: String| Err(PlanError(why));
        for e in &self.endpoints {
            let Some(remote) = &e.remote else {
                if self.is_remote() {
                    return bad(format!("endpoint {} has no url", e.name));
                }
                continue;
            };
            if !self.is_remote() {
                return bad(format!(
                    "endpoint {} has a url, and the engine recipe is {:?}, not {RECIPE:?}",
                    e.name, self.engine.recipe
                ));
            }
            if !e.replicas.is_empty() {
                return bad(format!(
                    "endpoint {} is somebody else's and serves none of our replicas",
                    e.name
                ));
            }
            if remote.ca_sha256.is_some() && !remote.tls {
                return bad(format!(
                    "endpoint {} has authorities and no TLS to use them for",
                    e.name
                ));
            }
            if let Some(name) = &remote.api_key_env
                && !is_variable(name)
            {
                // The value may be a key that was written here by mistake.
                return bad(format!(
                    "endpoint {}: api_key_env is the name of an environment variable (A-Z, 0-9 and '_'), \
                     never a key",
                    e.name
                ));
            }
        }
        if !self.is_remote() {
            return Ok(());
        }
        let engine = &self.engine;
        if !self.replicas.is_empty() || !self.checkpoints.is_empty() {
            return bad(format!(
                "with recipe {RECIPE:?} nobody looks at weights: leave out [[checkpoint]] and [[replica]]"
            ));
        }
        let launches = engine.launch != LAUNCH
            || !engine.argv.is_empty()
            || !engine.env.is_empty()
            || !engine.documents.is_empty()
            || matches!(engine.executable, Pin::Sha256(_));
        if launches {
            return bad(format!("recipe {RECIPE:?} launches and pins nothing"));
        }
        if !self.withholdable.iter().any(|w| w == ADDRESSES) {
            return bad(format!("{ADDRESSES} must be withholdable"));
        }
        Ok(())
    }
}

/// Upper case only, as such names are: a key that someone writes here by mistake has
/// other characters, and is refused before it gets anywhere.
fn is_variable(name: &str) -> bool {
    let ok = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    name.len() <= MAX_NAME
        && name.chars().all(ok)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
}
