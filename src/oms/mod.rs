//! OpenSSF Model Signing (OMS) v1.0 with keys: reading, checking, writing.
//!
//! A bundle is a sigstore bundle (v0.3, JSON) around a DSSE envelope with one
//! ECDSA signature. Its payload is an in-toto statement that lists *resources*:
//! files, or ranges of files, each with a digest.
//!
//! The check follows the bytes from the outside in, and what fails outside is not
//! relied on inside:
//!
//! 1. [`Bundle`]: the JSON, and the signature over exactly the payload's bytes.
//! 2. [`Statement`]: those same bytes, parsed. The subject's digest is computed
//!    again from the resources in the order in which they stand.
//! 3. [`Listing`]: what the resources say about files. Names that lead out of the
//!    folder, names with two readings and ranges with gaps are findings, and then
//!    nothing is opened.
//! 4. [`check_folder`]: every listed file is read again through
//!    [`crate::weights`], which follows no link and opens regular files only, and
//!    everything else in the folder is looked at too.
//!
//! The format has a weakness that no check can mend: its root hashes digests and
//! no names, so files that trade names keep the root. The names are signed all the
//! same, as part of the statement. A model's identity in this project is therefore
//! always the root of its own file tree (`runseal-tree/v1`).

mod bundle;
mod check;
mod folder;
mod listing;
mod manifest;
mod sign;
mod statement;

pub use bundle::{Bundle, MAX_BUNDLE, MEDIA_TYPE, PAYLOAD_TYPE, SignatureState};
pub use check::{OmsReport, Where, check_folder};
pub use listing::{Expected, Listing};
pub use manifest::{BundleManifest, is_bundle, read_manifest};
pub use sign::{SignError, SignOptions, Signed, sign_folder};
pub use statement::{
    DEFAULT_IGNORES, DEFAULT_SHARD_SIZE, Method, PREDICATE_TYPE, Resource, Serialization,
    Statement, oms_root,
};
