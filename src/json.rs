//! Strict JSON in, one canonical JSON out.
//!
//! Evidence is judged by its bytes, so the reader refuses what two parsers could
//! read in two ways: duplicate keys, nesting past [`MAX_DEPTH`], text after the
//! value, and integers past 2^53 (raw values that large are written as strings).
//! The writer gives compact JSON with keys sorted by their UTF-8 bytes.

use serde::de::{self, DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// Deepest nesting accepted.
pub const MAX_DEPTH: usize = 64;
/// Largest magnitude of an integer in our formats: 2^53.
pub const MAX_INTEGER: u64 = 1 << 53;

/// Why JSON was refused.
#[derive(Debug, thiserror::Error)]
#[error("not acceptable JSON: {0} (hint: evidence is strict JSON without duplicate keys)")]
pub struct JsonError(#[from] serde_json::Error);

/// Parses a whole buffer as one strict JSON value.
pub fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    refuse_long_integers(bytes)?;
    let mut de = serde_json::Deserializer::from_slice(bytes);
    let value = Strict(0).deserialize(&mut de)?;
    de.end()?;
    Ok(value)
}

/// serde_json reads an integer past 64 bits as the nearest double and does not
/// tell, so such tokens are looked for in the text. What is not JSON at all is
/// left to the parser.
fn refuse_long_integers(bytes: &[u8]) -> Result<(), JsonError> {
    // Shorter ones fit into 64 bits, and the visitor judges them.
    const FITS: usize = 19;
    let mut rest = bytes;
    while let Some(b) = rest.first() {
        let (token, quoted) = match b {
            b'"' => (string(rest), true),
            _ => (
                run(rest, |b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)),
                false,
            ),
        };
        let digits = token.strip_prefix(b"-").unwrap_or(token);
        if !quoted && digits.len() > FITS && digits.iter().all(u8::is_ascii_digit) {
            let past = <serde_json::Error as de::Error>::custom("integer past 2^53");
            return Err(past.into());
        }
        rest = &rest[token.len().max(1)..];
    }
    Ok(())
}

/// The bytes at the start of which `ok` holds for each.
fn run(bytes: &[u8], ok: impl Fn(u8) -> bool) -> &[u8] {
    let end = bytes.iter().position(|b| !ok(*b)).unwrap_or(bytes.len());
    &bytes[..end]
}

/// The string literal that `bytes` begin with, quotes included.
fn string(bytes: &[u8]) -> &[u8] {
    let mut at = 1;
    while let Some(b) = bytes.get(at) {
        match b {
            b'"' => return &bytes[..at + 1],
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes
}

/// Parses strictly, then into a type. The type sees only what the strict reader
/// accepted.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JsonError> {
    Ok(serde_json::from_value(parse(bytes)?)?)
}

/// The canonical bytes of a value: compact, keys sorted.
///
/// # Panics
/// Never for the types of this crate: all have string keys and finite numbers.
pub fn canonical<T: Serialize>(value: &T) -> Vec<u8> {
    let value = serde_json::to_value(value).unwrap_or(Value::Null);
    let mut out = Vec::new();
    write_sorted(&value, &mut out);
    out
}

/// True when `bytes` are exactly the canonical form of the value they hold.
pub fn is_canonical(bytes: &[u8]) -> bool {
    parse(bytes).is_ok_and(|v| canonical(&v) == bytes)
}

fn write_sorted(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            // Sorted here and not by trust in the map type: another crate in the
            // tree can switch serde_json's maps to insertion order.
            let mut keys: Vec<_> = map.keys().collect();
            keys.sort_unstable();
            out.push(b'{');
            for (i, key) in keys.into_iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_scalar(&Value::String(key.clone()), out);
                out.push(b':');
                write_sorted(&map[key.as_str()], out);
            }
            out.push(b'}');
        }
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_sorted(item, out);
            }
            out.push(b']');
        }
        scalar => write_scalar(scalar, out),
    }
}

fn write_scalar(value: &Value, out: &mut Vec<u8>) {
    // Writing a scalar into a Vec cannot fail.
    let _ = serde_json::to_writer(out, value);
}

struct Strict(usize);

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        if self.0 > MAX_DEPTH {
            return Err(de::Error::custom("nesting is too deep"));
        }
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Value, E> {
        if v.unsigned_abs() > MAX_INTEGER {
            return Err(E::custom("integer past 2^53"));
        }
        Ok(v.into())
    }
    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Value, E> {
        if v > MAX_INTEGER {
            return Err(E::custom("integer past 2^53"));
        }
        Ok(v.into())
    }
    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(v)
            .map(Value::Number)
            .ok_or_else(|| E::custom("number is not finite"))
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }
    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Strict(self.0 + 1))? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let value = access.next_value_seed(Strict(self.0 + 1))?;
            if map.contains_key(&key) {
                return Err(de::Error::custom(format!("duplicate key {key:?}")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_json_is_refused() {
        for bad in [
            &b"{\"a\":1,\"a\":1}"[..],
            b"{\"a\":{\"b\":1,\"b\":2}}",
            b"9007199254740993",
            b"-9007199254740993",
            b"18446744073709551615",
            b"18446744073709551616",
            b"[1, -123456789012345678901234567890]",
            b"{\"a\\\"\":18446744073709551616}",
            b"{} {}",
            b"",
            b"\xff",
            b"1e999",
        ] {
            assert!(parse(bad).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
        assert!(parse("[".repeat(100).as_bytes()).is_err());
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert!(parse(deep.as_bytes()).is_err());
        for good in [
            &b"9007199254740992"[..],
            b"\"18446744073709551616\"",
            b"\"\\\"18446744073709551616\"",
            b"[18446744073709551616.5,18446744073709551616e0]",
        ] {
            assert!(parse(good).is_ok(), "{:?}", String::from_utf8_lossy(good));
        }
    }

    #[test]
    fn canonical_sorts_every_level() {
        let v = parse(b"{ \"b\": [ {\"z\":1,\"a\":2} ], \"a\": \"\\u00e9\" }").unwrap();
        assert_eq!(
            canonical(&v),
            "{\"a\":\"é\",\"b\":[{\"a\":2,\"z\":1}]}".as_bytes()
        );
        assert!(is_canonical(&canonical(&v)));
        assert!(!is_canonical(b"{\"b\":1,\"a\":2}"));
    }
}
