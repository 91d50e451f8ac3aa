//! What a reader trusts and requires: keys with roles, thresholds, validity windows,
//! evidence levels, suites. Trust comes from the reader's side, never from a record.

mod apply;
pub mod file;
pub mod keys;

use jiff::Timestamp;

pub use apply::{to_audit, to_published};
pub use file::{Policy, PolicyError};
pub use keys::AnyKey;

/// Who a key speaks for.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Ran the benchmark and sealed the record.
    Operator,
    /// A machine's own key, for what was hashed there.
    Replica,
    /// Looked at a record afterwards.
    Auditor,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Operator, Self::Replica, Self::Auditor];

    /// As written in a policy.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Replica => "replica",
            Self::Auditor => "auditor",
        }
    }
}

/// A key that the reader trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKey {
    /// What the reader calls it.
    pub name: String,
    /// The key.
    pub key: AnyKey,
    /// What it may speak for; `None` (given by `--trusted-key`) for anything.
    pub role: Option<Role>,
    /// First moment at which it is good.
    pub not_before: Option<Timestamp>,
    /// Last moment at which it is good.
    pub not_after: Option<Timestamp>,
}

impl TrustedKey {
    /// A key given on the command line.
    pub fn plain(name: String, key: AnyKey) -> Self {
        Self {
            name,
            key,
            role: None,
            not_before: None,
            not_after: None,
        }
    }

    /// True when it may speak for that role.
    pub fn speaks_for(&self, role: Role) -> bool {
        self.role.is_none_or(|r| r == role)
    }

    /// True when it has a validity window.
    pub fn has_window(&self) -> bool {
        self.not_before.is_some() || self.not_after.is_some()
    }

    /// True when it is good at that moment.
    pub fn good_at(&self, at: Timestamp) -> bool {
        self.not_before.is_none_or(|t| t <= at) && self.not_after.is_none_or(|t| at <= t)
    }
}

/// Everything that the reader brings.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// Keys from the command line and from the policy; no key twice.
    pub keys: Vec<TrustedKey>,
    /// What is required, when there is a policy.
    pub policy: Option<Policy>,
    /// The moment that the reader vouches for, from `--at`.
    pub at: Option<Timestamp>,
}

impl Trust {
    /// Adds a key unless it is there already.
    pub fn add(&mut self, key: TrustedKey) {
        if !self.keys.iter().any(|k| k.key == key.key) {
            self.keys.push(key);
        }
    }

    /// Ed25519 keys that may speak for a role, for our own records.
    pub fn ed25519(&self, role: Role) -> Vec<crate::keys::PublicKey> {
        self.keys
            .iter()
            .filter(|k| k.speaks_for(role))
            .filter_map(|k| k.key.ed25519())
            .collect()
    }
}
