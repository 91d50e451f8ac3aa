//! A relative path that cannot leave the folder it belongs to.
//!
//! File names on Linux are bytes; JSON is text. A [`RelPath`] keeps the bytes
//! and writes them in one canonical escaped form: `\\` for a backslash, `\n`
//! for a newline, `\xNN` for any other control byte and for bytes that are not
//! valid UTF-8. Every other character stands for itself, so ordinary names look
//! ordinary, and two different names never look the same.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A non-empty relative path of ordinary components: never absolute, never
/// `.` or `..`, no empty component, no NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(Vec<u8>);

/// Why a path was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("path {path:?} refused: {why} (hint: paths are relative to the checked folder)")]
pub struct BadPath {
    /// The offending path, as text.
    pub path: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl RelPath {
    /// Takes raw bytes as found on disk or in a foreign manifest.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadPath> {
        let bad = |why| BadPath {
            path: escape(bytes),
            why,
        };
        if bytes.is_empty() {
            return Err(bad("it is empty"));
        }
        if bytes.contains(&0) {
            return Err(bad("it holds a NUL byte"));
        }
        if bytes[0] == b'/' {
            return Err(bad("it is absolute"));
        }
        for part in bytes.split(|b| *b == b'/') {
            match part {
                b"" => return Err(bad("it has an empty component")),
                b"." => return Err(bad("it has a '.' component")),
                b".." => return Err(bad("it has a '..' component")),
                _ => {}
            }
        }
        Ok(Self(bytes.to_vec()))
    }

    /// Takes what somebody typed: `./a//b/` is `a/b`.
    pub fn typed(text: &str) -> Result<Self, BadPath> {
        let bad = |why| BadPath {
            path: escape(text.as_bytes()),
            why,
        };
        if text.starts_with('/') {
            return Err(bad("it is absolute"));
        }
        let parts = text.split('/').filter(|part| !matches!(*part, "" | "."));
        let plain = parts.collect::<Vec<_>>().join("/");
        if plain.is_empty() && !text.is_empty() {
            return Err(bad("it is the folder itself"));
        }
        Self::from_bytes(plain.as_bytes())
    }

    /// Parses the canonical escaped form; a non-canonical spelling is refused,
    /// so that one file has one name.
    pub fn parse(text: &str) -> Result<Self, BadPath> {
        let bytes = unescape(text).ok_or_else(|| BadPath {
            path: text.to_owned(),
            why: "it has a malformed escape",
        })?;
        let path = Self::from_bytes(&bytes)?;
        if escape(&path.0) != text {
            return Err(BadPath {
                path: text.to_owned(),
                why: "it is not in canonical escaped form",
            });
        }
        Ok(path)
    }

    /// The raw bytes, components separated by `/`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// True when `path` is this one or lies below it.
    pub fn holds(&self, path: &Self) -> bool {
        let rest = path.0.strip_prefix(self.0.as_slice());
        rest.is_some_and(|r| r.is_empty() || r.starts_with(b"/"))
    }

    /// The native path, still relative.
    pub fn to_path(&self) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        PathBuf::from(std::ffi::OsStr::from_bytes(&self.0))
    }
}

/// Escapes arbitrary bytes for one line of human or JSON text.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
                c => out.push(c),
            }
        }
        for b in chunk.invalid() {
            out.push_str(&format!("\\x{b:02x}"));
        }
    }
    out
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&b, tail)) = rest.split_first() {
        rest = tail;
        if b != b'\\' {
            out.push(b);
            continue;
        }
        let (&kind, tail) = rest.split_first()?;
        rest = tail;
        match kind {
            b'\\' => out.push(b'\\'),
            b'n' => out.push(b'\n'),
            b'x' => {
                let mut byte = [0u8];
                hex::decode_to_slice(rest.get(..2)?, &mut byte).ok()?;
                out.push(byte[0]);
                rest = &rest[2..];
            }
            _ => return None,
        }
    }
    Some(out)
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(&self.0))
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for RelPath {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for RelPath {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RelPath".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "minLength": 1, "pattern": "^[^/]"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_people_type_is_put_in_order() {
        for (typed, path) in [
            ("./sub", "sub"),
            ("sub/", "sub"),
            (".//sub/./x//", "sub/x"),
            ("a\\b", "a\\\\b"),
            (".hidden", ".hidden"),
        ] {
            assert_eq!(RelPath::typed(typed).unwrap().to_string(), path, "{typed}");
        }
        for (bad, why) in [
            ("", "empty"),
            (".", "the folder itself"),
            ("./", "the folder itself"),
            ("/sub", "absolute"),
            ("a/../b", "'..'"),
            ("./..", "'..'"),
        ] {
            let e = RelPath::typed(bad).unwrap_err().to_string();
            assert!(e.contains(why), "{bad}: {e}");
        }
    }

    #[test]
    fn paths_that_leave_the_folder_are_refused() {
        for bad in [
            "", "/a", "../a", "a/../b", "a//b", "a/", "./a", "a/.", "a\\q", "\\x41",
        ] {
            assert!(RelPath::parse(bad).is_err(), "{bad:?}");
        }
        assert!(RelPath::from_bytes(b"a\0b").is_err());
    }

    proptest! {
        #[test]
        fn every_name_on_disk_round_trips(bytes in prop::collection::vec(1u8..=255, 1..40)) {
            if let Ok(p) = RelPath::from_bytes(&bytes) {
                let text = p.to_string();
                prop_assert_eq!(RelPath::parse(&text).unwrap(), p);
                prop_assert!(!text.contains('\n'));
            }
        }
    }
}
