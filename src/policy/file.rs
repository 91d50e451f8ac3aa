//! `policy.toml`: what a reader trusts and requires, written down (docs/policy.md).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::keys::TrustedKeyError;
use super::{AnyKey, Role, TrustedKey, keys};
use crate::digest::Sha256Digest;
use crate::published::report::Derivation;

/// Value of [`PolicyToml::format`].
pub const FORMAT: &str = "runseal.policy/v1";

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Not TOML, or of another shape.
    #[error("not a policy: {0} (hint: docs/policy.md has examples)")]
    Form(String),
    /// A key could not be read.
    #[error("key {name:?} of the policy: {source}")]
    Key {
        /// Its name in the policy.
        name: String,
        /// Why.
        source: TrustedKeyError,
    },
    /// It contradicts itself, or asks for what cannot be met.
    #[error("the policy makes no sense: {0} (hint: docs/policy.md says what each entry means)")]
    Sense(String),
}

/// The file as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyToml {
    /// Always [`FORMAT`].
    pub format: String,
    /// Trusted keys.
    #[serde(default, rename = "key")]
    pub keys: Vec<KeyToml>,
    /// How many different keys of a role must have signed.
    #[serde(default)]
    pub threshold: BTreeMap<Role, u32>,
    /// What a record must be.
    #[serde(default)]
    pub require: Require,
}

/// A trusted key as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyToml {
    /// What to call it.
    pub name: String,
    /// What it may speak for.
    pub role: Role,
    /// Public key file, beside the policy.
    #[serde(default)]
    pub file: Option<String>,
    /// Or the key itself, PEM or one OpenSSH line.
    #[serde(default)]
    pub public_key: Option<String>,
    /// Its fingerprint, `SHA256:…`, when you want the file held to it.
    #[serde(default)]
    pub fingerprint: Option<String>,
    /// First moment at which it is good, RFC 3339.
    #[serde(default)]
    pub not_before: Option<String>,
    /// Last moment at which it is good, RFC 3339.
    #[serde(default)]
    pub not_after: Option<String>,
}

/// What a record must be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Require {
    /// Least label of every figure that has a value.
    pub derivation: Option<Derivation>,
    /// Least label of single figures, by id.
    pub figures: BTreeMap<String, Derivation>,
    /// Grades must have been recomputed.
    pub grades: bool,
    /// The run must have ended this way.
    pub status: Option<String>,
    /// Only these suites, by name, each with its digest or `any`.
    pub suites: BTreeMap<String, String>,
    /// A validity window that cannot be looked at counts as not met.
    pub validity: bool,
    /// Records without a signature are accepted when they do not contradict themselves.
    pub accept_unsigned: bool,
}

/// A policy that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Digest of the file, which a verdict names.
    pub sha256: Sha256Digest,
    /// How many different keys of a role must have signed.
    pub threshold: BTreeMap<Role, u32>,
    /// What a record must be.
    pub require: Require,
}

/// Reads a policy's text. `dir` is the folder that key files are looked for in.
pub fn parse(bytes: &[u8], dir: &Path) -> Result<(Policy, Vec<TrustedKey>), PolicyError> {
    let text = std::str::from_utf8(bytes).map_err(|e| PolicyError::Form(e.to_string()))?;
    let toml: PolicyToml = toml::from_str(text).map_err(|e| PolicyError::Form(e.to_string()))?;
    if toml.format != FORMAT {
        return Err(PolicyError::Form(format!(
            "its format is {:?}, not {FORMAT:?}",
            toml.format
        )));
    }
    let mut trusted: Vec<TrustedKey> = Vec::new();
    let mut names = BTreeSet::new();
    for entry in &toml.keys {
        if !names.insert(entry.name.clone()) {
            return sense(format!("two keys are called {:?}", entry.name));
        }
        let key = read_key(entry, dir)?;
        if let Some(twin) = trusted.iter().find(|t| t.key == key.key) {
            // One key under two names would count twice, or audit itself.
            return sense(format!("{:?} and {:?} are one key", twin.name, key.name));
        }
        trusted.push(key);
    }
    for (role, least) in &toml.threshold {
        let have = trusted.iter().filter(|k| k.role == Some(*role)).count();
        if *least as usize > have {
            return sense(format!(
                "it wants {least} {} keys and names {have}",
                role.name()
            ));
        }
    }
    for (name, digest) in &toml.require.suites {
        if digest != "any" && digest.parse::<Sha256Digest>().is_err() {
            return sense(format!(
                "suite {name:?} wants a SHA-256 or \"any\", not {digest:?}"
            ));
        }
    }
    const STATUSES: [&str; 4] = ["completed", "failed", "aborted", "refused"];
    if let Some(status) = &toml.require.status
        && !STATUSES.contains(&status.as_str())
    {
        return sense(format!("no run has the status {status:?}"));
    }
    let policy = Policy {
        sha256: Sha256Digest::of(bytes),
        threshold: toml.threshold,
        require: toml.require,
    };
    Ok((policy, trusted))
}

fn sense<T>(why: String) -> Result<T, PolicyError> {
    Err(PolicyError::Sense(why))
}

fn read_key(entry: &KeyToml, dir: &Path) -> Result<TrustedKey, PolicyError> {
    let bad = |source| PolicyError::Key {
        name: entry.name.clone(),
        source,
    };
    let key = match (&entry.file, &entry.public_key) {
        (Some(file), None) => keys::load(&dir.join(file)).map_err(bad)?,
        (None, Some(text)) => AnyKey::from_text(text).map_err(bad)?,
        _ => {
            return sense(format!(
                "key {:?} has to have one of file and public_key",
                entry.name
            ));
        }
    };
    if let Some(want) = &entry.fingerprint
        && *want != key.fingerprint()
    {
        return sense(format!(
            "key {:?} is {} and not {want}",
            entry.name,
            key.fingerprint()
        ));
    }
    let time = |text: &Option<String>| -> Result<Option<Timestamp>, PolicyError> {
        let Some(text) = text else {
            return Ok(None);
        };
        let read: Result<Timestamp, _> = text.parse();
        match read {
            Ok(t) => Ok(Some(t)),
            Err(_) => sense(format!(
                "key {:?}: {text:?} is not an RFC 3339 time",
                entry.name
            )),
        }
    };
    let (not_before, not_after) = (time(&entry.not_before)?, time(&entry.not_after)?);
    if let (Some(from), Some(to)) = (not_before, not_after)
        && from > to
    {
        return sense(format!("key {:?} is good at no moment", entry.name));
    }
    Ok(TrustedKey {
        name: entry.name.clone(),
        key,
        role: Some(entry.role),
        not_before,
        not_after,
    })
}
