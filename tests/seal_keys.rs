//! Key files, key ids, and signatures that must not verify.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use runseal::keys::{KeyError, PublicKey, SigningKey, load_public, load_secret, save_pair};
use serde_json::Value;

fn vector() -> Value {
    serde_json::from_str(include_str!("vectors/dsse/hello-world.json")).unwrap()
}

const PUBLIC_PEM: &str = include_str!("vectors/dsse/hello-world.pub.pem");

fn text(v: &Value, key: &str) -> String {
    v[key].as_str().unwrap().to_owned()
}

#[test]
fn keys_have_the_forms_that_other_tools_write() {
    let v = vector();
    let key = SigningKey::from_pem(&text(&v, "secret_pem")).unwrap();
    assert_eq!(*key.to_pem(), text(&v, "secret_pem"));
    assert_eq!(key.public().to_pem(), PUBLIC_PEM);
    assert_eq!(key.keyid(), text(&v, "keyid"));
    assert_eq!(
        key.public().fingerprint(),
        format!("SHA256:{}", text(&v, "keyid"))
    );
    assert_eq!(PublicKey::from_pem(PUBLIC_PEM).unwrap(), key.public());
    assert_eq!(
        PublicKey::from_der(&key.public().to_der()).unwrap(),
        key.public()
    );
    let sig = key.sign(text(&v, "pae").as_bytes());
    assert_eq!(STANDARD.encode(sig), text(&v, "signature"));
}

#[test]
fn other_schemes_and_lax_signatures_do_not_verify() {
    let v = vector();
    let key = PublicKey::from_pem(PUBLIC_PEM).unwrap();
    let pae = text(&v, "pae");
    let decode = |k: &str| STANDARD.decode(text(&v, k)).unwrap();
    assert!(key.verify(pae.as_bytes(), &decode("signature")));
    assert!(!key.verify(pae.as_bytes(), &decode("ed25519ph_signature")));
    // R is the neutral element: RFC 8032 lets it pass, although such an R can
    // serve for a second message under another key.
    assert!(!key.verify(pae.as_bytes(), &decode("small_order_r_signature")));
}

#[test]
fn weak_and_ambiguous_keys_are_refused() {
    let refused = |hex_key: &str| {
        let bytes: [u8; 32] = hex::decode(hex_key).unwrap().try_into().unwrap();
        // The same through SPKI, the way keys really come in.
        let mut der = hex::decode("302a300506032b6570032100").unwrap();
        der.extend(bytes);
        (PublicKey::from_bytes(&bytes), PublicKey::from_der(&der))
    };
    let ff = "ff".repeat(30);
    for (what, key) in [
        ("neutral element", format!("01{}", "00".repeat(31))),
        ("order four", "00".repeat(32)),
        ("order two", format!("ec{ff}7f")),
        ("neutral element, other spelling", format!("ee{ff}7f")),
        ("a strong point, y written as y + p", format!("f0{ff}7f")),
    ] {
        let (raw, der) = refused(&key);
        assert!(matches!(raw, Err(KeyError::Weak)), "{what}: {raw:?}");
        assert!(matches!(der, Err(KeyError::Weak)), "{what}: {der:?}");
    }
    let (raw, _) = refused(&format!("02{}", "00".repeat(31)));
    assert!(
        matches!(raw, Err(KeyError::NotPublic)),
        "not on the curve: {raw:?}"
    );
}

#[test]
fn a_signature_is_64_bytes_of_one_message_by_one_key() {
    let (a, b) = (
        SigningKey::from_seed(&[1; 32]),
        SigningKey::from_seed(&[2; 32]),
    );
    let sig = a.sign(b"m");
    assert!(a.public().verify(b"m", &sig));
    assert!(!b.public().verify(b"m", &sig));
    assert!(!a.public().verify(b"n", &sig));
    assert!(!a.public().verify(b"m", &sig[..63]));
    assert!(!a.public().verify(b"m", &[&sig[..], &[0]].concat()));
    assert!(!a.public().verify(b"m", &[]));
    // S + L: the second spelling of the same number.
    let order =
        hex::decode("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010").unwrap();
    let mut high = sig;
    let mut carry = 0u16;
    for (byte, add) in high[32..].iter_mut().zip(order) {
        carry += u16::from(*byte) + u16::from(add);
        *byte = carry.to_le_bytes()[0];
        carry >>= 8;
    }
    assert!(!a.public().verify(b"m", &high));
}

#[test]
fn other_files_are_not_keys() {
    let v = vector();
    let secret = text(&v, "secret_pem");
    for bad in [
        "",
        "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n",
        PUBLIC_PEM,
        &secret.replace("PRIVATE", "EC PRIVATE"),
        &secret.replace("MC4C", "MC4D"),
    ] {
        assert!(
            matches!(SigningKey::from_pem(bad), Err(KeyError::NotSecret)),
            "{bad}"
        );
    }
    for bad in ["", &secret, &PUBLIC_PEM.replace("K2Vw", "K2Vu")] {
        assert!(
            matches!(PublicKey::from_pem(bad), Err(KeyError::NotPublic)),
            "{bad}"
        );
    }
}

#[test]
fn a_pair_is_saved_once_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, public) = (dir.path().join("k.pem"), dir.path().join("k.pub.pem"));
    let key = SigningKey::generate().unwrap();
    save_pair(&key, &secret, &public).unwrap();
    let mode = |p| fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&secret), 0o600);
    assert_eq!(load_secret(&secret).unwrap().public(), key.public());
    assert_eq!(load_public(&public).unwrap(), key.public());

    let other = SigningKey::generate().unwrap();
    assert_ne!(other.public(), key.public());
    assert!(matches!(
        save_pair(&other, &secret, &public),
        Err(KeyError::Write(_))
    ));
    // One half in the way is enough, and leaves no other half behind.
    let elsewhere = dir.path().join("new.pem");
    assert!(matches!(
        save_pair(&other, &elsewhere, &public),
        Err(KeyError::Write(_))
    ));
    assert!(!elsewhere.exists());
    assert!(matches!(
        save_pair(&other, &secret, &elsewhere),
        Err(KeyError::Write(_))
    ));
    assert!(!elsewhere.exists());
    let nowhere = dir.path().join("no/such/folder");
    assert!(save_pair(&other, &elsewhere, &nowhere).is_err());
    assert!(!elsewhere.exists());
    assert_eq!(load_secret(&secret).unwrap().public(), key.public());
}

#[test]
fn a_secret_that_others_can_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k.pem");
    save_pair(
        &SigningKey::generate().unwrap(),
        &path,
        &dir.path().join("k.pub"),
    )
    .unwrap();
    let link = dir.path().join("link.pem");
    symlink(&path, &link).unwrap();
    for bad in [0o640, 0o604, 0o660, 0o601, 0o620, 0o644, 0o777] {
        fs::set_permissions(&path, Permissions::from_mode(bad)).unwrap();
        for p in [&path, &link] {
            let error = load_secret(p).unwrap_err();
            assert!(
                matches!(error, KeyError::Exposed { mode, .. } if mode == bad),
                "{error}"
            );
            let said = error.to_string();
            assert!(
                said.contains(&format!("{bad:04o}")) && said.contains("chmod 600"),
                "{said}"
            );
        }
    }
    for good in [0o600, 0o400] {
        fs::set_permissions(&path, Permissions::from_mode(good)).unwrap();
        assert!(load_secret(&path).is_ok() && load_secret(&link).is_ok());
    }
}

#[test]
fn what_is_no_key_file_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        load_secret(dir.path()),
        Err(KeyError::NotAKeyFile(_))
    ));
    assert!(matches!(
        load_public(&dir.path().join("none")),
        Err(KeyError::Read { .. })
    ));
    let long = dir.path().join("long");
    fs::write(&long, vec![b'x'; 20_000]).unwrap();
    assert!(matches!(load_public(&long), Err(KeyError::NotAKeyFile(_))));
}

#[test]
fn a_secret_key_is_not_printed() {
    let key = SigningKey::from_seed(&[7; 32]);
    let shown = format!("{key:?}");
    assert_eq!(shown, format!("SigningKey({})", key.public().fingerprint()));
}

proptest! {
    #[test]
    fn every_key_survives_its_files(seed: [u8; 32], message: Vec<u8>, flip in 0usize..64) {
        let key = SigningKey::from_seed(&seed);
        let again = SigningKey::from_pem(&key.to_pem()).unwrap();
        let public = PublicKey::from_pem(&key.public().to_pem()).unwrap();
        prop_assert_eq!(again.public(), public);
        let mut sig = again.sign(&message);
        prop_assert!(public.verify(&message, &sig));
        sig[flip] ^= 1;
        prop_assert!(!public.verify(&message, &sig));
    }

    #[test]
    fn the_readers_take_any_text(text in ".{0,200}", bytes: Vec<u8>) {
        let _ = SigningKey::from_pem(&text);
        let _ = PublicKey::from_pem(&text);
        let _ = PublicKey::from_der(&bytes);
    }
}
