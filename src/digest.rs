//! SHA-256 digests and the two encodings that feed them.
//!
//! * [`Sha256Digest`] is 32 bytes, written as 64 lower-case hex digits.
//! * [`Enc`] is `runseal-enc/v1`: a domain string and then fields, each one
//!   preceded by its length as an unsigned 64-bit big-endian number. Two
//!   different field lists can never give the same bytes.
//! * [`tree_root`] is `runseal-tree/v1`: the identity of a set of files, over
//!   path, size and SHA-256 of each, in byte order of the paths.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::relpath::RelPath;

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256Digest(pub [u8; 32]);

/// The text was not 64 hexadecimal digits.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a SHA-256 digest (hint: 64 hexadecimal digits)")]
pub struct BadDigest(pub String);

impl Sha256Digest {
    /// Digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The 64 lower-case hexadecimal digits.
    pub fn hex(&self) -> String {
        self.digits(str::to_owned)
    }

    /// Hands the digits over without allocating: there are thousands in a report.
    fn digits<T>(&self, take: impl FnOnce(&str) -> T) -> T {
        let mut out = [0; 64];
        // 64 digits of 32 bytes, all ASCII: neither can fail.
        let _ = hex::encode_to_slice(self.0, &mut out);
        take(std::str::from_utf8(&out).unwrap_or_default())
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digits(|hex| f.write_str(hex))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl FromStr for Sha256Digest {
    type Err = BadDigest;

    /// Accepts upper-case digits, as some published manifests use them.
    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let mut out = [0u8; 32];
        hex::decode_to_slice(text, &mut out).map_err(|_| BadDigest(text.to_owned()))?;
        Ok(Self(out))
    }
}

impl Serialize for Sha256Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.digits(|hex| s.serialize_str(hex))
    }
}

impl<'de> Deserialize<'de> for Sha256Digest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Sha256Digest {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Sha256".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^[0-9a-f]{64}$"})
    }
}

/// An unambiguous byte encoding of a list of fields (`runseal-enc/v1`).
///
/// The bytes are: `runseal-enc/v1`, then the domain, then every field; each of
/// them preceded by its length in bytes as a big-endian `u64`.
#[derive(Clone)]
pub struct Enc(Sha256);

impl Enc {
    /// Starts an encoding in a domain, for example `delta/v1`. The domain keeps
    /// digests of different kinds of things apart.
    pub fn new(domain: &str) -> Self {
        let mut enc = Self(Sha256::new());
        enc.put(b"runseal-enc/v1");
        enc.put(domain.as_bytes());
        enc
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    /// Adds a byte-string field.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.put(bytes);
        self
    }

    /// Adds a number as eight big-endian bytes.
    pub fn u64(self, n: u64) -> Self {
        self.bytes(&n.to_be_bytes())
    }

    /// SHA-256 of the encoding.
    pub fn finish(self) -> Sha256Digest {
        Sha256Digest(self.0.finalize().into())
    }
}

/// Root digest over files (`runseal-tree/v1`): commits to every path, size and
/// SHA-256, so two trees with equal contents under other names differ.
///
/// Encoding: domain `runseal-tree/v1`, the number of entries, then path bytes,
/// size and digest of each entry, sorted by path bytes. Duplicate paths are the
/// caller's to refuse (manifests do at parse).
pub fn tree_root<'a>(
    entries: impl IntoIterator<Item = (&'a RelPath, u64, Sha256Digest)>,
) -> Sha256Digest {
    let mut sorted: Vec<_> = entries.into_iter().collect();
    sorted.sort_by(|a, b| a.0.cmp(b.0));
    let mut enc = Enc::new("runseal-tree/v1").u64(sorted.len() as u64);
    for (path, size, digest) in sorted {
        enc = enc.bytes(path.as_bytes()).u64(size).bytes(&digest.0);
    }
    enc.finish()
}

/// The salted commitment `SHA-256(0x00 ‖ salt ‖ bytes)` of a withheld part.
pub fn commitment(salt: &[u8; 32], bytes: &[u8]) -> Sha256Digest {
    let mut h = Sha256::new();
    h.update([0u8]);
    h.update(salt);
    h.update(bytes);
    Sha256Digest(h.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cannot_run_together() {
        let a = Enc::new("d").bytes(b"ab").bytes(b"c").finish();
        let b = Enc::new("d").bytes(b"a").bytes(b"bc").finish();
        assert_ne!(a, b);
    }

    #[test]
    fn tree_root_commits_to_names_and_not_to_order() {
        let d = Sha256Digest::of(b"x");
        let (a, b) = (RelPath::parse("a").unwrap(), RelPath::parse("b").unwrap());
        let ab = tree_root([(&a, 1, d), (&b, 1, d)]);
        assert_eq!(ab, tree_root([(&b, 1, d), (&a, 1, d)]));
        let c = RelPath::parse("c").unwrap();
        assert_ne!(ab, tree_root([(&a, 1, d), (&c, 1, d)]));
        assert_ne!(ab, tree_root([(&a, 2, d), (&b, 1, d)]));
    }

    #[test]
    fn digest_text_round_trips_and_upper_case_is_read() {
        let d = Sha256Digest::of(b"abc");
        assert_eq!(d.hex().to_uppercase().parse::<Sha256Digest>().unwrap(), d);
        assert!("abc".parse::<Sha256Digest>().is_err());
    }
}
