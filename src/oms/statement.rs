//! The signed payload: an in-toto statement with the OMS predicate.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::finding::Finding;
use crate::json::{self, MAX_INTEGER};
use crate::weights::PieceHash;

/// The predicate type of OMS v1.0.
pub const PREDICATE_TYPE: &str = "https://model_signing/signature/v1.0";
/// The predicate type of the time before v1.0: file digests as subjects.
const EARLY_PREDICATE_TYPE: &str = "https://model_signing/Digests/v0.1";
const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// Top-level names that OMS signers leave out unless told otherwise.
pub const DEFAULT_IGNORES: [&str; 4] = [".git", ".gitattributes", ".github", ".gitignore"];
/// Bytes per shard where nobody says otherwise.
pub const DEFAULT_SHARD_SIZE: u64 = 1_000_000_000;

/// How the folder was cut into resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// One resource per file.
    Files,
    /// One resource per range of so many bytes of a file.
    Shards(u64),
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files => f.write_str("files"),
            Self::Shards(size) => write!(f, "shards of {size} bytes"),
        }
    }
}

/// The parameters that the signer used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serialization {
    /// Files or shards.
    pub method: Method,
    /// Which digest.
    pub hash: PieceHash,
    /// Links to files inside the folder stand for those files.
    pub allow_symlinks: bool,
    /// Files and folders that the signature does not cover, as written;
    /// [`DEFAULT_IGNORES`] where nothing is written.
    pub ignore_paths: Vec<String>,
}

/// One digest of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// A path, in shard mode with `:start:end`.
    pub name: String,
    /// Its digest.
    pub digest: [u8; 32],
}

/// What a bundle says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The model's name: informative.
    pub name: String,
    /// The subject's digest, see [`oms_root`].
    pub root: Sha256Digest,
    /// The signer's parameters.
    pub serialization: Serialization,
    /// Everything that is signed, in the order of the statement.
    pub resources: Vec<Resource>,
}

/// SHA-256 over the raw digests of the resources, in their order. Names are not
/// part of it.
pub fn oms_root<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> Sha256Digest {
    let mut hash = Sha256::new();
    for resource in resources {
        hash.update(resource.digest);
    }
    Sha256Digest(hash.finalize().into())
}

#[derive(Serialize, Deserialize)]
struct WireStatement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<WireSubject>,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    predicate: WirePredicate,
}

#[derive(Serialize, Deserialize)]
struct WireSubject {
    #[serde(default)]
    name: String,
    digest: WireDigest,
}

#[derive(Serialize, Deserialize)]
struct WireDigest {
    sha256: Sha256Digest,
}

// Unknown fields of the predicate are to be ignored by readers of v1.0, and the
// signature covers them anyway.
#[derive(Serialize, Deserialize)]
struct WirePredicate {
    serialization: WireSerialization,
    resources: Vec<WireResource>,
}

#[derive(Serialize, Deserialize)]
struct WireSerialization {
    method: String,
    hash_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shard_size: Option<serde_json::Number>,
    #[serde(default)]
    allow_symlinks: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ignore_paths: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize)]
struct WireResource {
    name: String,
    algorithm: String,
    digest: String,
}

impl Statement {
    /// A statement about these resources; its root is computed from them.
    pub fn new(name: String, serialization: Serialization, resources: Vec<Resource>) -> Self {
        Self {
            name,
            root: oms_root(&resources),
            serialization,
            resources,
        }
    }

    /// Reads a payload. What is wrong with it is a finding about `statement`.
    pub fn parse(payload: &[u8]) -> Result<Self, Finding> {
        let malformed = |why: String| Finding::new(Code::OmsMalformed, "statement", why);
        let unsupported = |why: &str| Finding::new(Code::OmsUnsupported, "statement", why);
        let value = json::parse(payload).map_err(|e| malformed(e.to_string()))?;
        match value.get("predicateType").and_then(Value::as_str) {
            Some(PREDICATE_TYPE) => {}
            Some(EARLY_PREDICATE_TYPE) => {
                return Err(unsupported(
                    "it has the predicate of the time before OMS v1.0; ask for a new signature",
                ));
            }
            other => {
                let found = other.unwrap_or("nothing");
                return Err(unsupported("another predicate type").values(PREDICATE_TYPE, found));
            }
        }
        let wire: WireStatement =
            serde_json::from_value(value).map_err(|e| malformed(e.to_string()))?;
        if wire.kind != STATEMENT_TYPE {
            return Err(unsupported("another type of statement").values(STATEMENT_TYPE, wire.kind));
        }
        let subject = match <[_; 1]>::try_from(wire.subject) {
            Ok([subject]) => subject,
            Err(all) => {
                return Err(malformed(format!(
                    "it has {} subjects and not one",
                    all.len()
                )));
            }
        };
        let serialization = serialization(&wire.predicate.serialization)?;
        let resources: Result<Vec<_>, Finding> = wire
            .predicate
            .resources
            .into_iter()
            .map(|r| resource(r, &serialization))
            .collect();
        let statement = Self {
            name: subject.name,
            root: subject.digest.sha256,
            serialization,
            resources: resources?,
        };
        let computed = oms_root(&statement.resources);
        if computed != statement.root {
            let detail = "the subject is not the digest of the resources in their order";
            return Err(Finding::new(Code::OmsRootMismatch, "statement", detail)
                .values(statement.root, computed));
        }
        Ok(statement)
    }

    /// The payload's bytes: canonical JSON.
    pub fn to_payload(&self) -> Vec<u8> {
        let hash = self.serialization.hash.name();
        let (method, shard_size, algorithm) = match self.serialization.method {
            Method::Files => ("files", None, hash.to_owned()),
            // An integer: the reference implementation writes 7.0 and cannot use
            // that itself when it reads it back.
            Method::Shards(n) => ("shards", Some(n.into()), format!("{hash}-sharded-{n}")),
        };
        json::canonical(&WireStatement {
            kind: STATEMENT_TYPE.to_owned(),
            subject: vec![WireSubject {
                name: self.name.clone(),
                digest: WireDigest { sha256: self.root },
            }],
            predicate_type: PREDICATE_TYPE.to_owned(),
            predicate: WirePredicate {
                serialization: WireSerialization {
                    method: method.to_owned(),
                    hash_type: hash.to_owned(),
                    shard_size,
                    allow_symlinks: self.serialization.allow_symlinks,
                    ignore_paths: Some(self.serialization.ignore_paths.clone()),
                },
                resources: self
                    .resources
                    .iter()
                    .map(|r| WireResource {
                        name: r.name.clone(),
                        algorithm: algorithm.clone(),
                        digest: hex::encode(r.digest),
                    })
                    .collect(),
            },
        })
    }
}

fn serialization(wire: &WireSerialization) -> Result<Serialization, Finding> {
    let unsupported = |why: String| Finding::new(Code::OmsUnsupported, "statement", why);
    let malformed = |why: &str| Finding::new(Code::OmsMalformed, "statement", why);
    let hash = match wire.hash_type.as_str() {
        "sha256" => PieceHash::Sha256,
        "blake3" => PieceHash::Blake3,
        other => {
            return Err(unsupported(format!(
                "its hash type is {other:?}; sha256 and blake3 are checked here"
            )));
        }
    };
    let method = match wire.method.as_str() {
        "files" => Method::Files,
        "shards" => Method::Shards(
            wire.shard_size
                .as_ref()
                .and_then(whole_number)
                .ok_or_else(|| malformed("shard_size is not a positive whole number"))?,
        ),
        other => return Err(unsupported(format!("its method is {other:?}"))),
    };
    Ok(Serialization {
        method,
        hash,
        allow_symlinks: wire.allow_symlinks,
        // Before version 1.1 the reference implementation left out the default
        // names without saying so, as the format allows.
        ignore_paths: wire
            .ignore_paths
            .clone()
            .unwrap_or_else(|| DEFAULT_IGNORES.map(str::to_owned).to_vec()),
    })
}

/// Protobuf's JSON knows only floating-point numbers, so 7 is often written 7.0.
fn whole_number(n: &serde_json::Number) -> Option<u64> {
    let value = match (n.as_u64(), n.as_f64()) {
        (Some(value), _) => value,
        // Below 2^53, where every whole number is exact.
        (None, Some(f)) if f.fract() == 0.0 && (1.0..=MAX_INTEGER as f64).contains(&f) => f as u64,
        _ => return None,
    };
    (1..=MAX_INTEGER).contains(&value).then_some(value)
}

fn resource(wire: WireResource, serialization: &Serialization) -> Result<Resource, Finding> {
    let malformed = |why: String| Finding::new(Code::OmsMalformed, wire.name.clone(), why);
    if !fits(&wire.algorithm, serialization) {
        let found = format!(
            "its algorithm {:?} is not that of the statement",
            wire.algorithm
        );
        return Err(malformed(found));
    }
    let mut digest = [0u8; 32];
    hex::decode_to_slice(&wire.digest, &mut digest)
        .map_err(|_| malformed("its digest is not 64 hexadecimal digits".to_owned()))?;
    Ok(Resource {
        name: wire.name,
        digest,
    })
}

/// `sha256`, and in shard mode also `sha256-sharded-N` with the statement's N.
fn fits(algorithm: &str, serialization: &Serialization) -> bool {
    let Some(rest) = algorithm.strip_prefix(serialization.hash.name()) else {
        return false;
    };
    match serialization.method {
        _ if rest.is_empty() => true,
        Method::Files => false,
        Method::Shards(n) => {
            let size = rest.strip_prefix("-sharded-");
            size.is_some_and(|s| s == n.to_string() || s == format!("{n}.0"))
        }
    }
}
