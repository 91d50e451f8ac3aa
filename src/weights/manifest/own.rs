//! `runseal.manifest/v1`, our own JSON.
//!
//! On disk it is the canonical JSON of [`crate::json`] and one newline, so equal
//! manifests are equal files. The reader takes any strict JSON (a hand-edited
//! manifest may be indented, its digests in upper case) because the identity is
//! the root and not the file's bytes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Manifest, ManifestError, ManifestFile, Source};
use crate::digest::Sha256Digest;
use crate::json;
use crate::relpath::RelPath;

/// The value of the `format` field.
pub const MANIFEST_FORMAT: &str = "runseal.manifest/v1";

/// The file's fields, before any rule has looked at them.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Manifest")]
pub struct Raw {
    /// Always `runseal.manifest/v1`.
    #[schemars(extend("const" = MANIFEST_FORMAT))]
    format: String,
    /// `runseal-tree/v1` over path, size and SHA-256 of the files.
    root: Sha256Digest,
    /// At least one file.
    #[schemars(length(min = 1))]
    files: Vec<ManifestFile>,
    /// Paths that are not part of the checkpoint, each for itself and all below it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ignore: Vec<RelPath>,
    /// Folders that held nothing when the manifest was made. One that is gone is a
    /// note; the root does not commit to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    empty_folders: Vec<RelPath>,
    /// Where the files are said to come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Source>,
}

impl TryFrom<Raw> for Manifest {
    type Error = ManifestError;

    fn try_from(raw: Raw) -> Result<Self, ManifestError> {
        if raw.format != MANIFEST_FORMAT {
            return Err(ManifestError::Format {
                found: format!("{:?}", raw.format),
            });
        }
        let manifest = Manifest::new(raw.files, raw.source)?
            .with_ignore(raw.ignore)?
            .with_empty_folders(raw.empty_folders)?;
        if manifest.root != raw.root {
            return Err(ManifestError::Root {
                stated: raw.root,
                computed: manifest.root,
            });
        }
        Ok(manifest)
    }
}

impl From<Manifest> for Raw {
    fn from(manifest: Manifest) -> Self {
        Self {
            format: MANIFEST_FORMAT.to_owned(),
            root: manifest.root,
            files: manifest.files.into_values().collect(),
            ignore: manifest.listing.ignore().iter().cloned().collect(),
            empty_folders: manifest.listing.empty_folders().iter().cloned().collect(),
            source: manifest.listing.source().cloned(),
        }
    }
}

impl Manifest {
    /// Reads a `runseal.manifest/v1` file.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let value = json::parse(bytes)?;
        // Looked at first, so that a file of another format is called that and
        // not blamed for the fields it lacks.
        match value.get("format") {
            Some(Value::String(format)) if format == MANIFEST_FORMAT => {}
            Some(other) => {
                return Err(ManifestError::Format {
                    found: other.to_string(),
                });
            }
            None => {
                return Err(ManifestError::Format {
                    found: "not given".to_owned(),
                });
            }
        }
        let raw: Raw = serde_json::from_value(value).map_err(ManifestError::Shape)?;
        raw.try_into()
    }

    /// The file's bytes: canonical JSON and a newline.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = json::canonical(self);
        bytes.push(b'\n');
        bytes
    }
}
