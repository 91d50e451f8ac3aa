//! ECDSA keys on P-256, P-384 and P-521, for formats of others.
//!
//! Our own records are signed with Ed25519 ([`crate::keys`]); OpenSSF Model
//! Signing knows only these three curves. Each goes with one hash: SHA-256,
//! SHA-384 and SHA-512. Signatures are ASN.1 DER, deterministic (RFC 6979). A
//! secret is stored as PKCS#8 PEM (SEC 1, what older OpenSSL commands write, is
//! read too), a public key as SPKI PEM.

use std::fmt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use p256::ecdsa::signature::{Signer, Verifier};
use p256::pkcs8::{
    DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey, LineEnding,
};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::digest::Sha256Digest;
use crate::keys::{self, KeyError};

/// Why there is no ECDSA key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EcdsaKeyError {
    /// The file could not be read, written, or is open to others.
    #[error(transparent)]
    File(#[from] KeyError),
    /// The text is not a secret key on one of the three curves.
    #[error(
        "not an unencrypted secret key on P-256, P-384 or P-521 in PKCS#8 or SEC 1 PEM (hint: \
         `attest keygen --type p256` makes one; OpenSSF Model Signing knows no Ed25519)"
    )]
    NotSecret,
    /// The text is not a public key on one of the three curves.
    #[error(
        "not a public key on P-256, P-384 or P-521 in SPKI PEM (hint: the file starts with \
         '-----BEGIN PUBLIC KEY-----'; OpenSSF Model Signing knows no Ed25519)"
    )]
    NotPublic,
}

/// The curves, and with them the hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// NIST P-256 with SHA-256.
    P256,
    /// NIST P-384 with SHA-384.
    P384,
    /// NIST P-521 with SHA-512.
    P521,
}

impl fmt::Display for Curve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::P256 => "P-256",
            Self::P384 => "P-384",
            Self::P521 => "P-521",
        })
    }
}

/// A secret key. The curve crates wipe its bytes when it is dropped.
pub struct EcdsaSigningKey(Secret);

enum Secret {
    P256(p256::ecdsa::SigningKey),
    P384(p384::ecdsa::SigningKey),
    P521(p521::ecdsa::SigningKey),
}

/// A public key: a point on its curve other than the neutral one.
#[derive(Clone, PartialEq, Eq)]
pub struct EcdsaPublicKey(Public);

#[derive(Clone, PartialEq, Eq)]
enum Public {
    P256(p256::ecdsa::VerifyingKey),
    P384(p384::ecdsa::VerifyingKey),
    P521(p521::ecdsa::VerifyingKey),
}

/// The same expression for the key of whichever curve.
macro_rules! each {
    ($type:ident, $value:expr, $key:ident => $body:expr) => {
        match $value {
            $type::P256($key) => $body,
            $type::P384($key) => $body,
            $type::P521($key) => $body,
        }
    };
}

impl EcdsaSigningKey {
    /// A new key from the system's randomness.
    pub fn generate(curve: Curve) -> Result<Self, EcdsaKeyError> {
        loop {
            let mut bytes = Zeroizing::new([0u8; 66]);
            getrandom::fill(bytes.as_mut_slice()).map_err(KeyError::Random)?;
            // The order of P-521 has one bit in its first byte.
            bytes[0] &= 1;
            let secret = match curve {
                Curve::P256 => p256::SecretKey::from_slice(&bytes[34..])
                    .map(|k| Secret::P256(k.into()))
                    .ok(),
                Curve::P384 => p384::SecretKey::from_slice(&bytes[18..])
                    .map(|k| Secret::P384(k.into()))
                    .ok(),
                Curve::P521 => p521::SecretKey::from_slice(&bytes[..])
                    .map(|k| Secret::P521(k.into()))
                    .ok(),
            };
            // Numbers at or above the order are no keys; they are drawn again.
            if let Some(secret) = secret {
                return Ok(Self(secret));
            }
        }
    }

    /// Reads PKCS#8 PEM or SEC 1 PEM.
    pub fn from_pem(text: &str) -> Result<Self, EcdsaKeyError> {
        // `openssl ecparam -genkey` writes the curve's name as a block before it.
        let text = match text.find("-----BEGIN EC PRIVATE KEY-----") {
            Some(start) => &text[start..],
            None => text,
        };
        let p256 = || {
            let key = p256::SecretKey::from_pkcs8_pem(text).ok();
            let key = key.or_else(|| p256::SecretKey::from_sec1_pem(text).ok())?;
            Some(Secret::P256(key.into()))
        };
        let p384 = || {
            let key = p384::SecretKey::from_pkcs8_pem(text).ok();
            let key = key.or_else(|| p384::SecretKey::from_sec1_pem(text).ok())?;
            Some(Secret::P384(key.into()))
        };
        let p521 = || {
            let key = p521::SecretKey::from_pkcs8_pem(text).ok();
            let key = key.or_else(|| p521::SecretKey::from_sec1_pem(text).ok())?;
            Some(Secret::P521(key.into()))
        };
        let secret = p256().or_else(p384).or_else(p521);
        secret.map(Self).ok_or(EcdsaKeyError::NotSecret)
    }

    /// PKCS#8 PEM.
    pub fn to_pem(&self) -> Zeroizing<String> {
        // Encoding fails only on lengths past 2^28; this one is under 300 bytes.
        each!(Secret, &self.0, key => key.to_pkcs8_pem(LineEnding::LF))
            .expect("an ECDSA key always encodes")
    }

    /// The public half.
    pub fn public(&self) -> EcdsaPublicKey {
        EcdsaPublicKey(match &self.0 {
            Secret::P256(key) => Public::P256(*key.verifying_key()),
            Secret::P384(key) => Public::P384(*key.verifying_key()),
            Secret::P521(key) => Public::P521(*key.verifying_key()),
        })
    }

    /// Signs a message; ASN.1 DER, the same bytes every time.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        match &self.0 {
            Secret::P256(key) => {
                let signature: p256::ecdsa::DerSignature = key.sign(message);
                signature.as_bytes().to_vec()
            }
            Secret::P384(key) => {
                let signature: p384::ecdsa::DerSignature = key.sign(message);
                signature.as_bytes().to_vec()
            }
            Secret::P521(key) => {
                let signature: p521::ecdsa::DerSignature = key.sign(message);
                signature.as_bytes().to_vec()
            }
        }
    }
}

impl fmt::Debug for EcdsaSigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EcdsaSigningKey({})", self.public().fingerprint())
    }
}

impl EcdsaPublicKey {
    /// Reads SPKI PEM.
    pub fn from_pem(text: &str) -> Result<Self, EcdsaKeyError> {
        let p256 = || p256::ecdsa::VerifyingKey::from_public_key_pem(text).map(Public::P256);
        let p384 = |_| p384::ecdsa::VerifyingKey::from_public_key_pem(text).map(Public::P384);
        let p521 = |_| p521::ecdsa::VerifyingKey::from_public_key_pem(text).map(Public::P521);
        let public = p256().or_else(p384).or_else(p521);
        public.map(Self).map_err(|_| EcdsaKeyError::NotPublic)
    }

    /// Reads SPKI DER.
    pub fn from_der(der: &[u8]) -> Result<Self, EcdsaKeyError> {
        let p256 = || p256::ecdsa::VerifyingKey::from_public_key_der(der).map(Public::P256);
        let p384 = |_| p384::ecdsa::VerifyingKey::from_public_key_der(der).map(Public::P384);
        let p521 = |_| p521::ecdsa::VerifyingKey::from_public_key_der(der).map(Public::P521);
        let public = p256().or_else(p384).or_else(p521);
        public.map(Self).map_err(|_| EcdsaKeyError::NotPublic)
    }

    /// The curve it lies on.
    pub fn curve(&self) -> Curve {
        match &self.0 {
            Public::P256(_) => Curve::P256,
            Public::P384(_) => Curve::P384,
            Public::P521(_) => Curve::P521,
        }
    }

    /// SPKI PEM, with `\n` line ends and an uncompressed point.
    pub fn to_pem(&self) -> String {
        // As in `to_pem` of the secret.
        each!(Public, &self.0, key => key.to_public_key_pem(LineEnding::LF))
            .expect("an ECDSA key always encodes")
    }

    /// Standard base64 of the SHA-256 of the SPKI DER, as for our other keys.
    pub fn keyid(&self) -> String {
        let der = each!(Public, &self.0, key => key.to_public_key_der());
        // As above.
        let der = der.expect("an ECDSA key always encodes");
        STANDARD.encode(Sha256::digest(der.as_bytes()))
    }

    /// What people compare: `SHA256:` and the key id.
    pub fn fingerprint(&self) -> String {
        format!("SHA256:{}", self.keyid())
    }

    /// SHA-256 of the SPKI PEM *text*, which is how OpenSSF Model Signing names a
    /// key.
    pub fn pem_digest(&self) -> Sha256Digest {
        Sha256Digest::of(self.to_pem().as_bytes())
    }

    /// True when `signature` (ASN.1 DER) is one of `message` by this key.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.0 {
            Public::P256(key) => p256::ecdsa::Signature::from_der(signature)
                .is_ok_and(|s| key.verify(message, &s).is_ok()),
            Public::P384(key) => p384::ecdsa::Signature::from_der(signature)
                .is_ok_and(|s| key.verify(message, &s).is_ok()),
            Public::P521(key) => p521::ecdsa::Signature::from_der(signature)
                .is_ok_and(|s| key.verify(message, &s).is_ok()),
        }
    }
}

impl fmt::Debug for EcdsaPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "EcdsaPublicKey({}, {})",
            self.curve(),
            self.fingerprint()
        )
    }
}

/// Reads a secret key file; refuses one that group or world can read.
pub fn load_secret(path: &Path) -> Result<EcdsaSigningKey, EcdsaKeyError> {
    EcdsaSigningKey::from_pem(&keys::read_key_file(path, true)?)
}

/// Reads a public key file.
pub fn load_public(path: &Path) -> Result<EcdsaPublicKey, EcdsaKeyError> {
    EcdsaPublicKey::from_pem(&keys::read_key_file(path, false)?)
}

/// Writes both halves as [`keys::save_pair`] does.
pub fn save_pair(
    key: &EcdsaSigningKey,
    secret_path: &Path,
    public_path: &Path,
) -> Result<(), EcdsaKeyError> {
    let (secret, public) = (key.to_pem(), key.public().to_pem());
    Ok(keys::save_pem_pair(
        &secret,
        &public,
        secret_path,
        public_path,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_signs_for_itself_only() {
        let curves = [Curve::P256, Curve::P384, Curve::P521];
        let keys = curves.map(|c| EcdsaSigningKey::generate(c).unwrap());
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(key.public().curve(), curves[i]);
            let again = EcdsaSigningKey::from_pem(&key.to_pem()).unwrap();
            let signature = again.sign(b"message");
            assert_eq!(signature, key.sign(b"message"), "deterministic");
            let public = EcdsaPublicKey::from_pem(&key.public().to_pem()).unwrap();
            assert_eq!(public, key.public());
            assert!(public.verify(b"message", &signature));
            assert!(!public.verify(b"massage", &signature));
            for (j, other) in keys.iter().enumerate() {
                assert_eq!(other.public().verify(b"message", &signature), i == j);
            }
            for byte in 0..signature.len() {
                let mut altered = signature.clone();
                altered[byte] ^= 1;
                assert!(!public.verify(b"message", &altered), "{byte}");
            }
        }
    }

    /// RFC 6979, A.2.5: P-256, SHA-256, message "sample".
    #[test]
    fn signatures_are_those_of_rfc_6979() {
        let secret =
            hex::decode("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721")
                .unwrap();
        let key = p256::SecretKey::from_slice(&secret).unwrap();
        let key = EcdsaSigningKey(Secret::P256(key.into()));
        assert_eq!(
            hex::encode_upper(key.sign(b"sample")),
            "3046022100EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716022100\
             F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8"
        );
    }

    #[test]
    fn other_keys_are_refused() {
        let ed = crate::keys::SigningKey::from_seed(&[7; 32]);
        assert!(EcdsaSigningKey::from_pem(&ed.to_pem()).is_err());
        assert!(EcdsaPublicKey::from_pem(&ed.public().to_pem()).is_err());
        let p256 = EcdsaSigningKey::generate(Curve::P256).unwrap();
        assert!(EcdsaPublicKey::from_pem(&p256.to_pem()).is_err());
        assert!(crate::keys::SigningKey::from_pem(&p256.to_pem()).is_err());
    }
}
