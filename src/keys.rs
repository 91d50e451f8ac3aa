//! Ed25519 keys: making, storing, reading and naming them.
//!
//! A secret key is stored as PKCS#8 PEM (the plain version 1 form, which every
//! tool reads), a public key as SPKI PEM. A key is named by its *key id*:
//! standard base64, with padding, of the SHA-256 of the SPKI DER. People see
//! the same value as a *fingerprint*, `SHA256:<key id>`.
//!
//! Verification is strict. RFC 8032 leaves room for keys of small order, under
//! which one signature is good for many messages, and for two spellings of one
//! point; such keys are refused when they are read, and signatures with such an
//! `R` when they are checked. Ed25519ph is another scheme and never verifies here.
//!
//! Whether a key is *trusted* is not a property of the key; that question is
//! answered with the reader's own list, in [`crate::envelope`].

use std::fmt;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{
    DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey, KeypairBytes,
    PublicKeyBytes,
};
use ed25519_dalek::{Signature, Signer, VerifyingKey};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use crate::durable::{self, WriteError, WriteOptions};

/// Length of a signature in bytes.
pub const SIGNATURE_LENGTH: usize = 64;

/// No key file is longer; reading stops there.
const MAX_KEY_FILE: u64 = 16 * 1024;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file could not be read.
    #[error("could not read key {path}: {source} (hint: is the path right, and is it readable?)")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A folder, pipe or device, or far too long for a key.
    #[error(
        "{0} is not a key file (hint: give the path of a PEM file of at most {MAX_KEY_FILE} bytes)"
    )]
    NotAKeyFile(PathBuf),
    /// Others on this machine can read the secret.
    #[error(
        "secret key {path} has mode {mode:04o}: others can read it (hint: chmod 600 {path}, \
         and make a new key when someone may have)"
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A public key where the secret one is needed.
    #[error(
        "{0} is a public key, and the secret one is needed here (hint: the file that starts with \
         '-----BEGIN PRIVATE KEY-----')"
    )]
    IsPublic(PathBuf),
    /// A secret key where the public one is needed.
    #[error(
        "{0} is a secret key, and the public one is needed here (hint: the file that starts with \
         '-----BEGIN PUBLIC KEY-----'; a secret key never leaves the machine of its owner)"
    )]
    IsSecret(PathBuf),
    /// The text is not a secret key.
    #[error(
        "not an Ed25519 secret key in PKCS#8 PEM (hint: the file starts with \
         '-----BEGIN PRIVATE KEY-----'; encrypted and P-256 keys are not read)"
    )]
    NotSecret,
    /// The text is not a public key.
    #[error(
        "not an Ed25519 public key in SPKI PEM (hint: the file starts with \
         '-----BEGIN PUBLIC KEY-----')"
    )]
    NotPublic,
    /// A key that cannot hold anyone to anything.
    #[error(
        "the public key is weak or not in its one canonical form (hint: nobody makes such a key \
         by accident; ask for another)"
    )]
    Weak,
    /// The system has no randomness to give.
    #[error("the system gave no random bytes: {0} (hint: is /dev/urandom there?)")]
    Random(getrandom::Error),
    /// A key file was not written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// A secret key. Its bytes are wiped when it is dropped and never printed.
pub struct SigningKey(ed25519_dalek::SigningKey);

/// A public key that passed the checks of this module.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(VerifyingKey);

impl SigningKey {
    /// A new key from the system's randomness.
    pub fn generate() -> Result<Self, KeyError> {
        let mut seed = Zeroizing::new([0u8; 32]);
        getrandom::fill(seed.as_mut_slice()).map_err(KeyError::Random)?;
        Ok(Self::from_seed(&seed))
    }

    /// The key of a 32-byte seed.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// Reads PKCS#8 PEM. When the file also holds a public key, it must be the
    /// right one.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let mut pair = KeypairBytes::from_pkcs8_pem(text).map_err(|_| KeyError::NotSecret)?;
        let key = ed25519_dalek::SigningKey::try_from(&pair);
        pair.secret_key.zeroize();
        key.map(Self).map_err(|_| KeyError::NotSecret)
    }

    /// PKCS#8 PEM, version 1: OpenSSL 3 does not read the version 2 form that
    /// carries the public key along.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let mut pair = KeypairBytes {
            secret_key: self.0.to_bytes(),
            public_key: None,
        };
        let pem = pair.to_pkcs8_pem(LineEnding::LF);
        pair.secret_key.zeroize();
        // Encoding fails only on lengths past 2^28; this one is 48 bytes.
        pem.expect("an Ed25519 key always encodes")
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// The key id of the public half.
    pub fn keyid(&self) -> String {
        self.public().keyid()
    }

    /// Signs a message (plain Ed25519, deterministic).
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LENGTH] {
        self.0.sign(message).to_bytes()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public().fingerprint())
    }
}

impl PublicKey {
    /// Takes the 32 bytes of RFC 8032.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, KeyError> {
        let key = VerifyingKey::from_bytes(bytes).map_err(|_| KeyError::NotPublic)?;
        // A point has one canonical encoding; with a second one, one key would
        // have two key ids.
        if key.is_weak() || key.to_edwards().compress().to_bytes() != *bytes {
            return Err(KeyError::Weak);
        }
        Ok(Self(key))
    }

    /// Reads SPKI PEM.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let key = PublicKeyBytes::from_public_key_pem(text).map_err(|_| KeyError::NotPublic)?;
        Self::from_bytes(&key.0)
    }

    /// Reads SPKI DER.
    pub fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        let key = PublicKeyBytes::from_public_key_der(der).map_err(|_| KeyError::NotPublic)?;
        Self::from_bytes(&key.0)
    }

    /// The 32 bytes of RFC 8032.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// SPKI DER, what the key id hashes.
    pub fn to_der(&self) -> Vec<u8> {
        PublicKeyBytes(self.to_bytes())
            .to_public_key_der()
            // Encoding fails only on lengths past 2^28; this one is 44 bytes.
            .expect("an Ed25519 key always encodes")
            .into_vec()
    }

    /// SPKI PEM, with `\n` line ends.
    pub fn to_pem(&self) -> String {
        PublicKeyBytes(self.to_bytes())
            .to_public_key_pem(LineEnding::LF)
            // As above.
            .expect("an Ed25519 key always encodes")
    }

    /// Standard base64 of the SHA-256 of the SPKI DER: 44 characters.
    pub fn keyid(&self) -> String {
        STANDARD.encode(Sha256::digest(self.to_der()))
    }

    /// What people compare: `SHA256:` and the key id.
    pub fn fingerprint(&self) -> String {
        format!("SHA256:{}", self.keyid())
    }

    /// True when `signature` is a strict Ed25519 signature of `message`.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature).is_ok_and(|s| self.0.verify_strict(message, &s).is_ok())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.fingerprint())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fingerprint())
    }
}

/// Reads a secret key file; refuses one that group or world can read.
///
/// The mode is that of the opened file, so a link is judged by what it leads
/// to, and nothing can change in between.
pub fn load_secret(path: &Path) -> Result<SigningKey, KeyError> {
    SigningKey::from_pem(&read_key_file(path, true)?)
}

/// Reads a public key file.
pub fn load_public(path: &Path) -> Result<PublicKey, KeyError> {
    PublicKey::from_pem(&read_key_file(path, false)?)
}

pub(crate) fn read_key_file(path: &Path, secret: bool) -> Result<Zeroizing<String>, KeyError> {
    let read = |source| KeyError::Read {
        path: path.to_owned(),
        source,
    };
    // Asked before opening as well: opening a pipe would wait for a writer.
    if !fs::metadata(path).map_err(read)?.is_file() {
        return Err(KeyError::NotAKeyFile(path.to_owned()));
    }
    let file = fs::File::open(path).map_err(read)?;
    let meta = file.metadata().map_err(read)?;
    if !meta.is_file() || meta.len() > MAX_KEY_FILE {
        return Err(KeyError::NotAKeyFile(path.to_owned()));
    }
    let mode = meta.mode() & 0o7777;
    // Room for all of it at once: a growing buffer would leave copies behind.
    let mut text = Zeroizing::new(String::with_capacity(MAX_KEY_FILE as usize));
    file.take(MAX_KEY_FILE)
        .read_to_string(&mut text)
        .map_err(read)?;
    let is_public = text.contains("-----BEGIN PUBLIC KEY-----");
    let is_secret = text.contains("PRIVATE KEY-----");
    // Before the mode: that of a public key says nothing.
    if secret && is_public && !is_secret {
        return Err(KeyError::IsPublic(path.to_owned()));
    }
    if !secret && is_secret && !is_public {
        return Err(KeyError::IsSecret(path.to_owned()));
    }
    if secret && mode & 0o077 != 0 {
        return Err(KeyError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(text)
}

/// Writes both halves of a key: the secret with mode 0600, the public key
/// beside it. Nothing is ever overwritten, and a secret whose public half could
/// not be written does not stay behind.
pub fn save_pair(key: &SigningKey, secret_path: &Path, public_path: &Path) -> Result<(), KeyError> {
    let public = key.public().to_pem();
    save_pem_pair(&key.to_pem(), &public, secret_path, public_path)
}

pub(crate) fn save_pem_pair(
    secret: &str,
    public: &str,
    secret_path: &Path,
    public_path: &Path,
) -> Result<(), KeyError> {
    if public_path.symlink_metadata().is_ok() {
        return Err(WriteError::Exists(public_path.to_owned()).into());
    }
    let private = WriteOptions {
        private: true,
        ..Default::default()
    };
    durable::write(secret_path, secret.as_bytes(), private)?;
    if let Err(e) = durable::write(public_path, public.as_bytes(), WriteOptions::default()) {
        // We made this file a moment ago; the first error is the one to report.
        let _ = fs::remove_file(secret_path);
        return Err(e.into());
    }
    Ok(())
}
