//! Public keys of any form that a reader may have: Ed25519 and ECDSA P-256, as SPKI PEM
//! or as the one line of an OpenSSH `.pub` file.
//!
//! Our own records are signed with Ed25519; a P-256 key can vouch for envelopes that
//! other tools made. One key has one key id, whatever file it came from.

use std::fmt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::ecdsa_keys::{Curve, EcdsaPublicKey};
use crate::keys::{KeyError, PublicKey, read_key_file};

/// Why a file is no key that can be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustedKeyError {
    /// The file could not be read.
    #[error(transparent)]
    File(KeyError),
    /// An Ed25519 key that cannot hold anyone to anything.
    #[error(transparent)]
    Key(KeyError),
    /// Neither PEM nor OpenSSH.
    #[error(
        "not a public key in SPKI PEM or OpenSSH form (hint: Ed25519 and ECDSA P-256 are read; the file starts with \
         '-----BEGIN PUBLIC KEY-----', 'ssh-ed25519' or 'ecdsa-sha2-nistp256')"
    )]
    Form,
    /// A secret key was given.
    #[error("this is a secret key (hint: trust needs the public half only; give the .pub file)")]
    Secret,
    /// A kind of key that is not used for records.
    #[error("keys of kind {0} are not used for records (hint: Ed25519 or ECDSA P-256)")]
    Kind(String),
}

/// A public key of either scheme.
#[derive(Clone, PartialEq, Eq)]
pub enum AnyKey {
    /// Ed25519.
    Ed25519(PublicKey),
    /// ECDSA P-256 with SHA-256, signatures in ASN.1 DER.
    P256(EcdsaPublicKey),
}

impl AnyKey {
    /// Reads the text of a key file.
    pub fn from_text(text: &str) -> Result<Self, TrustedKeyError> {
        let text = text.trim_start_matches('\u{feff}').trim();
        if text.contains("PRIVATE KEY-----") {
            return Err(TrustedKeyError::Secret);
        }
        if text.starts_with("-----BEGIN") {
            return Self::from_pem(text);
        }
        Self::from_openssh(text)
    }

    fn from_pem(text: &str) -> Result<Self, TrustedKeyError> {
        // The PEM readers want the text as it is written to files.
        let text = format!("{text}\n");
        match PublicKey::from_pem(&text) {
            Ok(key) => return Ok(Self::Ed25519(key)),
            Err(e @ KeyError::Weak) => return Err(TrustedKeyError::Key(e)),
            Err(_) => {}
        }
        let key = EcdsaPublicKey::from_pem(&text).map_err(|_| TrustedKeyError::Form)?;
        match key.curve() {
            Curve::P256 => Ok(Self::P256(key)),
            other => Err(TrustedKeyError::Kind(format!("ECDSA {other}"))),
        }
    }

    /// One line: kind, base64 of the wire form, a comment (RFC 4253, 6.6; RFC 8709;
    /// RFC 5656, 3.1).
    fn from_openssh(text: &str) -> Result<Self, TrustedKeyError> {
        let mut lines = text
            .lines()
            .filter(|l| !l.trim().is_empty() && !l.starts_with('#'));
        let (Some(line), None) = (lines.next(), lines.next()) else {
            return Err(TrustedKeyError::Form);
        };
        let mut fields = line.split_whitespace();
        let (Some(kind), Some(blob)) = (fields.next(), fields.next()) else {
            return Err(TrustedKeyError::Form);
        };
        let blob = STANDARD.decode(blob).map_err(|_| TrustedKeyError::Form)?;
        let mut rest = blob.as_slice();
        let inner = wire(&mut rest).ok_or(TrustedKeyError::Form)?;
        if inner != kind.as_bytes() {
            return Err(TrustedKeyError::Form);
        }
        let key = match kind {
            "ssh-ed25519" => {
                let point = wire(&mut rest).and_then(|p| <[u8; 32]>::try_from(p).ok());
                let point = point.ok_or(TrustedKeyError::Form)?;
                Self::Ed25519(PublicKey::from_bytes(&point).map_err(TrustedKeyError::Key)?)
            }
            "ecdsa-sha2-nistp256" => {
                let curve = wire(&mut rest).ok_or(TrustedKeyError::Form)?;
                let point = wire(&mut rest).ok_or(TrustedKeyError::Form)?;
                if curve != b"nistp256" || point.len() != 65 {
                    return Err(TrustedKeyError::Form);
                }
                let der = [SPKI_P256, point].concat();
                Self::P256(EcdsaPublicKey::from_der(&der).map_err(|_| TrustedKeyError::Form)?)
            }
            "ssh-rsa" | "ssh-dss" | "ecdsa-sha2-nistp384" | "ecdsa-sha2-nistp521" => {
                return Err(TrustedKeyError::Kind(kind.to_owned()));
            }
            k if k.starts_with("sk-") => return Err(TrustedKeyError::Kind(kind.to_owned())),
            _ => return Err(TrustedKeyError::Form),
        };
        if !rest.is_empty() {
            return Err(TrustedKeyError::Form);
        }
        Ok(key)
    }

    /// Standard base64 of the SHA-256 of the SPKI DER.
    pub fn keyid(&self) -> String {
        match self {
            Self::Ed25519(key) => key.keyid(),
            Self::P256(key) => key.keyid(),
        }
    }

    /// What people compare.
    pub fn fingerprint(&self) -> String {
        format!("SHA256:{}", self.keyid())
    }

    /// True when `signature` is one of `message` by this key.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Ed25519(key) => key.verify(message, signature),
            Self::P256(key) => key.verify(message, signature),
        }
    }

    /// The Ed25519 key, where it is one.
    pub fn ed25519(&self) -> Option<PublicKey> {
        match self {
            Self::Ed25519(key) => Some(*key),
            Self::P256(_) => None,
        }
    }
}

/// SPKI DER of a P-256 key up to its uncompressed point (RFC 5480).
const SPKI_P256: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Takes one length-prefixed string off SSH's wire form.
fn wire<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, tail) = rest.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    let (field, tail) = tail.split_at_checked(len)?;
    *rest = tail;
    Some(field)
}

impl fmt::Debug for AnyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyKey({})", self.fingerprint())
    }
}

/// Reads a public key file.
pub fn load(path: &Path) -> Result<AnyKey, TrustedKeyError> {
    let text = read_key_file(path, false).map_err(TrustedKeyError::File)?;
    AnyKey::from_text(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ecdsa_keys::EcdsaSigningKey;
    use crate::keys::SigningKey;

    fn ssh(kind: &str, fields: &[&[u8]]) -> String {
        let mut blob = Vec::new();
        for f in fields {
            blob.extend((f.len() as u32).to_be_bytes());
            blob.extend_from_slice(f);
        }
        format!("{kind} {} somebody@somewhere\n", STANDARD.encode(blob))
    }

    #[test]
    fn one_key_has_one_id_in_every_form() {
        let ed = SigningKey::from_seed(&[7; 32]).public();
        let pem = AnyKey::from_text(&ed.to_pem()).unwrap();
        let line = ssh("ssh-ed25519", &[b"ssh-ed25519", &ed.to_bytes()]);
        let openssh = AnyKey::from_text(&line).unwrap();
        assert_eq!(pem, openssh);
        assert_eq!(openssh.keyid(), ed.keyid());

        let p256 = EcdsaSigningKey::generate(Curve::P256).unwrap();
        let pem = AnyKey::from_text(&p256.public().to_pem()).unwrap();
        assert_eq!(pem.keyid(), p256.public().keyid());
        assert!(pem.verify(b"m", &p256.sign(b"m")));
        assert!(!pem.verify(b"n", &p256.sign(b"m")));
        assert!(pem.ed25519().is_none());
    }

    /// A key made by OpenSSH (`ssh-keygen -t ecdsa -b 256`), and the id that
    /// `openssl pkey -pubin -outform DER | openssl dgst -sha256 -binary | base64` gives.
    #[test]
    fn keys_of_openssh_are_read() {
        for (line, keyid) in include!("../../tests/vectors/openssh-keys.in") {
            assert_eq!(AnyKey::from_text(line).unwrap().keyid(), keyid, "{line}");
        }
    }

    #[test]
    fn what_is_no_trustworthy_key_is_refused() {
        let ed = SigningKey::from_seed(&[7; 32]);
        let point = ed.public().to_bytes();
        for (bad, hint) in [
            (ed.to_pem().to_string(), "secret"),
            (String::new(), "SPKI PEM"),
            ("ssh-ed25519".to_owned(), "SPKI PEM"),
            (ssh("ssh-ed25519", &[b"ssh-rsa", &point]), "SPKI PEM"),
            (
                ssh("ssh-ed25519", &[b"ssh-ed25519", &point[..31]]),
                "SPKI PEM",
            ),
            (
                ssh("ssh-ed25519", &[b"ssh-ed25519", &point, b"x"]),
                "SPKI PEM",
            ),
            (ssh("ssh-ed25519", &[b"ssh-ed25519", &[0; 32]]), "weak"),
            (ssh("ssh-rsa", &[b"ssh-rsa", b"\x01", b"\x02"]), "ssh-rsa"),
            (
                ssh(
                    "ecdsa-sha2-nistp256",
                    &[b"ecdsa-sha2-nistp256", b"nistp256", &[4; 65]],
                ),
                "SPKI PEM",
            ),
        ] {
            let why = AnyKey::from_text(&bad).unwrap_err().to_string();
            assert!(why.contains(hint), "{bad:?}: {why}");
        }
        let two = [ed.public().to_pem(), ed.public().to_pem()].concat();
        let read = AnyKey::from_text(&two);
        assert!(read.is_err() || read.unwrap().keyid() == ed.keyid());
    }
}
