//! Small values that appear in manifests and reports, each with one text form.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::json::MAX_INTEGER;

/// Which digests a rehash computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// SHA-256, which the manifest root commits to.
    Sha256,
    /// BLAKE3 only: faster, but the manifest root does not commit to it.
    Blake3,
    /// Both in one pass.
    Both,
}

impl Algorithm {
    /// SHA-256 is among them.
    pub fn sha256(self) -> bool {
        self != Self::Blake3
    }

    /// BLAKE3 is among them.
    pub fn blake3(self) -> bool {
        self != Self::Sha256
    }
}

/// A BLAKE3 digest, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blake3Digest(pub [u8; 32]);

impl fmt::Display for Blake3Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Blake3Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blake3:{self}")
    }
}

impl FromStr for Blake3Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut out = [0u8; 32];
        hex::decode_to_slice(text, &mut out)
            .map_err(|_| format!("{text:?} is not a BLAKE3 digest of 64 hexadecimal digits"))?;
        Ok(Self(out))
    }
}

/// The id of a git object: a SHA-1, written as 40 lower-case hex digits.
///
/// SHA-1 is no longer collision-resistant: whoever made both of two files can
/// have given them one id. It ties a file to a git tree, never more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GitId(pub [u8; 20]);

impl fmt::Display for GitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for GitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "git:{self}")
    }
}

impl FromStr for GitId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut out = [0u8; 20];
        hex::decode_to_slice(text, &mut out)
            .map_err(|_| format!("{text:?} is not a git object id of 40 hexadecimal digits"))?;
        Ok(Self(out))
    }
}

/// The permission bits of a file, written as four octal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mode(pub u32);

impl Mode {
    /// Somebody may execute the file.
    pub fn executable(self) -> bool {
        self.0 & 0o111 != 0
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0 & 0o7777)
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() == 4 && text.bytes().all(|b| (b'0'..=b'7').contains(&b)) {
            u32::from_str_radix(text, 8)
                .map(Self)
                .map_err(|e| e.to_string())
        } else {
            Err(format!("{text:?} is not a mode of four octal digits"))
        }
    }
}

macro_rules! as_text {
    ($type:ident, $pattern:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
                text.parse().map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "pattern": $pattern})
            }
        }
    };
}

as_text!(Blake3Digest, "^[0-9a-fA-F]{64}$");
as_text!(GitId, "^[0-9a-fA-F]{40}$");
as_text!(Mode, "^[0-7]{4}$");

/// An integer of any size a file system gives (times in nanoseconds, device and
/// inode numbers): a JSON number up to 2^53, a decimal string beyond. Each value
/// has exactly one of the two forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wide(pub i128);

impl Wide {
    fn fits_a_number(self) -> bool {
        self.0.unsigned_abs() <= u128::from(MAX_INTEGER)
    }
}

impl fmt::Display for Wide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Wide {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(self.0) {
            Ok(n) if self.fits_a_number() => s.serialize_i64(n),
            _ => s.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Wide {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Wide;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an integer, or a decimal string for one past 2^53")
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Wide, E> {
                number(n.into())
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Wide, E> {
                number(n.into())
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Wide, E> {
                let wide = text.parse().map(Wide).map_err(E::custom)?;
                if wide.fits_a_number() || wide.to_string() != text {
                    return Err(E::custom(format!(
                        "{text:?} is not the one form of this integer"
                    )));
                }
                Ok(wide)
            }
        }
        fn number<E: de::Error>(n: i128) -> Result<Wide, E> {
            let wide = Wide(n);
            if wide.fits_a_number() {
                Ok(wide)
            } else {
                Err(E::custom("an integer past 2^53 is written as a string"))
            }
        }
        d.deserialize_any(Either)
    }
}

impl JsonSchema for Wide {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Wide".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"oneOf": [
            {"type": "integer"},
            {"type": "string", "pattern": "^-?[1-9][0-9]{15,38}$"},
        ]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_form_per_value() {
        let edge = i128::from(MAX_INTEGER);
        assert_eq!(
            serde_json::to_string(&Wide(edge)).unwrap(),
            "9007199254740992"
        );
        assert_eq!(
            serde_json::to_string(&Wide(edge + 1)).unwrap(),
            "\"9007199254740993\""
        );
        for bad in [
            "\"5\"",
            "9007199254740993",
            "\"09007199254740993\"",
            "\"+9007199254740993\"",
            "1.5",
        ] {
            assert!(serde_json::from_str::<Wide>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn modes_are_four_octal_digits() {
        assert_eq!("0644".parse::<Mode>().unwrap(), Mode(0o644));
        assert_eq!(Mode(0o100755).to_string(), "0755");
        for bad in ["644", "0o644", "0689", "-644", "00644"] {
            assert!(bad.parse::<Mode>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn wide_round_trips(n in any::<i64>(), big in any::<u64>()) {
            for w in [Wide(n.into()), Wide(big.into())] {
                let text = serde_json::to_string(&w).unwrap();
                prop_assert_eq!(serde_json::from_str::<Wide>(&text).unwrap(), w);
                prop_assert!(crate::json::parse(text.as_bytes()).is_ok());
            }
        }
    }
}
