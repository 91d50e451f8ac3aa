//! A bundle read as a manifest: what `verify weights --manifest` makes of one.
//!
//! The replicas are then compared as with any other manifest: in every layout, with
//! each other, and without following links of a flat folder, whatever the signer
//! allowed. A signature is only checked when there is a key.

use super::bundle::{Bundle, PAYLOAD_TYPE, SignatureState};
use super::listing::{Expected, Listing};
use super::statement::{Method, Statement};
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::ecdsa_keys::EcdsaPublicKey;
use crate::finding::Finding;
use crate::json;
use crate::weights::{self, Blake3Digest, Entry, ListFormat, PieceDigests, PieceHash};

/// A bundle that could be read, as a manifest.
#[derive(Debug, Clone)]
pub struct BundleManifest {
    /// What it lists.
    pub listing: weights::Listing,
    /// Fingerprint of the key that the signature verifies with; without one the
    /// signature was not checked.
    pub signer: Option<String>,
}

/// True for JSON that has the outer fields of a bundle, in whatever state.
pub fn is_bundle(bytes: &[u8]) -> bool {
    const FIELDS: [&str; 2] = ["dsseEnvelope", "verificationMaterial"];
    // A look at the text first: parsing a manifest of thousands of files only to learn
    // that it is none takes longer.
    let named = std::str::from_utf8(bytes).is_ok_and(|t| FIELDS.iter().any(|f| t.contains(f)));
    named && json::parse(bytes).is_ok_and(|v| FIELDS.iter().any(|f| v.get(f).is_some()))
}

/// Reads a bundle as a manifest. What makes it unusable are findings, the same as
/// those of [`super::check_folder`]; a signature that does not verify is one.
pub fn read_manifest(
    bytes: &[u8],
    key: Option<&EcdsaPublicKey>,
) -> Result<BundleManifest, Vec<Finding>> {
    let one = |finding| vec![finding];
    let bundle = Bundle::parse(bytes).map_err(one)?;
    let (signature, findings) = bundle.check_signature(key);
    if signature == SignatureState::Invalid {
        return Err(findings);
    }
    let statement = read_statement(&bundle).map_err(one)?;
    let listing = Listing::of(&statement)?;
    let entries = listing.files.iter();
    let entries = entries.map(|(path, expected)| entry(path, expected, &statement));
    let refused = |e: weights::ManifestError| {
        vec![Finding::new(Code::OmsMalformed, "statement", e.to_string())]
    };
    let ignored = listing.ignored().iter();
    // A listed file is never left out, so neither is a folder that holds one.
    let ignored = ignored.filter(|top| !listing.files.keys().any(|path| top.holds(path)));
    Ok(BundleManifest {
        listing: weights::Listing::new(ListFormat::Oms, entries)
            .and_then(|l| l.with_ignore(ignored.cloned()))
            .map_err(refused)?,
        signer: key.map(EcdsaPublicKey::fingerprint),
    })
}

/// The statement in a bundle.
pub(super) fn read_statement(bundle: &Bundle) -> Result<Statement, Finding> {
    if bundle.payload_type() != PAYLOAD_TYPE {
        let finding = Finding::new(Code::OmsUnsupported, "bundle", "another payload type");
        return Err(finding.values(PAYLOAD_TYPE, bundle.payload_type()));
    }
    Statement::parse(bundle.payload())
}

fn entry(path: &crate::relpath::RelPath, expected: &Expected, statement: &Statement) -> Entry {
    let parameters = &statement.serialization;
    let mut entry = Entry::of(path.clone());
    entry.size = expected.size;
    match (parameters.method, expected.digests.as_slice()) {
        (Method::Files, [digest]) if parameters.hash == PieceHash::Sha256 => {
            entry.sha256 = Some(Sha256Digest(*digest));
        }
        (Method::Files, [digest]) => entry.blake3 = Some(Blake3Digest(*digest)),
        // Without a digest, which the listing refuses; there is always one.
        (Method::Files, _) => {}
        (Method::Shards(length), digests) => {
            entry.pieces = Some(PieceDigests::new(parameters.hash, length, digests));
        }
    }
    entry
}
