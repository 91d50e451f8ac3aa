//! One safetensors file: eight bytes of little-endian header length, a JSON header, data.
//!
//! The format is strict so that no two readers can see different tensors in the same bytes,
//! and so is this reader: names are unique, every tensor's byte range has exactly the size
//! that shape and type imply, the ranges follow one another without gap or overlap from
//! zero to the end of the file.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::EngineError;

/// Longest header accepted, the limit of the format's own implementation.
const HEADER_LIMIT: u64 = 100_000_000;

/// A file in memory whose header has been checked.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    bytes: Vec<u8>,
    tensors: BTreeMap<String, TensorInfo>,
}

/// Where and what a tensor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Byte range in the file.
    range: Range<usize>,
}

/// The element types the engine reads; all become `f32`, exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
}

impl SafetensorsFile {
    /// Reads a file whole and checks its header.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let bytes = std::fs::read(path).map_err(|source| EngineError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, bytes)
    }

    /// Checks the header of `bytes`; `path` is for messages only.
    pub fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self, EngineError> {
        let tensors = read_header(&bytes).map_err(|cause| EngineError::Safetensors {
            path: path.to_owned(),
            cause,
        })?;
        Ok(Self {
            path: path.to_owned(),
            bytes,
            tensors,
        })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// The elements of a tensor of this file, widened to `f32`; none may be infinite or NaN.
    pub fn values(&self, name: &str, info: &TensorInfo) -> Result<Vec<f32>, EngineError> {
        let raw = &self.bytes[info.range.clone()];
        let values: Vec<f32> = match info.dtype {
            Dtype::F32 => raw
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
            Dtype::F16 => raw
                .as_chunks()
                .0
                .iter()
                .map(|b| f16::from_le_bytes(*b).to_f32())
                .collect(),
            Dtype::Bf16 => raw
                .as_chunks()
                .0
                .iter()
                .map(|b| bf16::from_le_bytes(*b).to_f32())
                .collect(),
        };
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(index) => Err(EngineError::NotFinite {
                path: self.path.clone(),
                name: name.to_owned(),
                index,
                value: values[index],
            }),
        }
    }
}

impl Dtype {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "F32" => Some(Self::F32),
            "F16" => Some(Self::F16),
            "BF16" => Some(Self::Bf16),
            _ => None,
        }
    }

    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

fn read_header(bytes: &[u8]) -> Result<BTreeMap<String, TensorInfo>, String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(format!(
            "{} bytes, shorter than the 8-byte header length",
            bytes.len()
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > HEADER_LIMIT {
        return Err(format!(
            "header length {length} is over the format's limit of {HEADER_LIMIT}"
        ));
    }
    let length = length as usize;
    let Some((header, data)) = rest.split_at_checked(length) else {
        return Err(format!(
            "header length {length}, but only {} bytes follow",
            rest.len()
        ));
    };
    if header.first() != Some(&b'{') {
        return Err("the header does not begin with '{'".into());
    }
    let UniqueMap(raw) = serde_json::from_slice::<UniqueMap<serde_json::Value>>(header)
        .map_err(|error| format!("header: {error}"))?;

    let mut tensors = BTreeMap::new();
    for (name, value) in raw {
        if name == "__metadata__" {
            serde_json::from_value::<BTreeMap<String, String>>(value)
                .map_err(|error| format!("__metadata__: {error}"))?;
            continue;
        }
        let entry: RawTensor =
            serde_json::from_value(value).map_err(|error| format!("tensor {name}: {error}"))?;
        let dtype = Dtype::parse(&entry.dtype).ok_or_else(|| {
            format!(
                "tensor {name}: type {:?} is none of F32, F16, BF16",
                entry.dtype
            )
        })?;
        let (begin, end) = entry.data_offsets;
        if begin > end || end > data.len() {
            return Err(format!(
                "tensor {name}: offsets {begin}..{end} do not fit {} data bytes",
                data.len()
            ));
        }
        let implied = entry
            .shape
            .iter()
            .try_fold(dtype.size(), |size, dimension| size.checked_mul(*dimension));
        if implied != Some(end - begin) {
            return Err(format!(
                "tensor {name}: {} bytes, but {} {:?} implies {}",
                end - begin,
                entry.dtype,
                entry.shape,
                implied.map_or("more than fits in memory".into(), |size| size.to_string()),
            ));
        }
        let start = 8 + length;
        let range = start + begin..start + end;
        tensors.insert(
            name,
            TensorInfo {
                dtype,
                shape: entry.shape,
                range,
            },
        );
    }

    let mut order: Vec<_> = tensors.iter().collect();
    order.sort_by_key(|(_, info)| (info.range.start, info.range.end));
    let mut expected = 8 + length;
    for (name, info) in order {
        if info.range.start != expected {
            return Err(format!(
                "tensor {name}: data begins at byte {}, the one before it ends at {expected} (gap or overlap)",
                info.range.start
            ));
        }
        expected = info.range.end;
    }
    if expected != bytes.len() {
        return Err(format!(
            "the file has {} bytes, its header accounts for {expected}",
            bytes.len()
        ));
    }
    Ok(tensors)
}

/// A JSON object in which a repeated key is an error. `serde_json` keeps the last of two
/// equal keys; another reader may keep the first and see other weights.
pub(super) struct UniqueMap<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Keys<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    if entries.contains_key(&key) {
                        return Err(A::Error::custom(format!("{key:?} appears twice")));
                    }
                    entries.insert(key, value);
                }
                Ok(UniqueMap(entries))
            }
        }
        deserializer.deserialize_map(Keys(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn parse(header: &str, data: &[u8]) -> Result<SafetensorsFile, String> {
        SafetensorsFile::parse(Path::new("x.safetensors"), file(header, data))
            .map_err(|e| e.to_string())
    }

    fn refused(header: &str, data: &[u8], because: &str) {
        let message = parse(header, data).unwrap_err();
        assert!(
            message.contains(because),
            "{message:?} does not say {because:?}"
        );
    }

    #[test]
    fn each_type_widens_exactly() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
            "b":{"dtype":"F16","shape":[1,1],"data_offsets":[8,10]},
            "c":{"dtype":"BF16","shape":[1],"data_offsets":[10,12]}}   "#;
        let mut data = Vec::new();
        data.extend_from_slice(&0.1f32.to_le_bytes());
        data.extend_from_slice(&(-2.0f32).to_le_bytes());
        data.extend_from_slice(&f16::from_f32(0.5).to_le_bytes());
        data.extend_from_slice(&0xBF80u16.to_le_bytes());
        let file = parse(header, &data).unwrap();
        let read = |name: &str| file.values(name, &file.tensors()[name]).unwrap();
        assert_eq!(read("a"), [0.1, -2.0]);
        assert_eq!(read("b"), [0.5]);
        assert_eq!(read("c"), [-1.0]);
        assert_eq!(file.tensors()["b"].shape, [1, 1]);
    }

    #[test]
    fn every_broken_file_is_refused_for_its_own_reason() {
        let one = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        refused(one, &[0; 5], "accounts for");
        refused(one, &[0; 3], "do not fit");
        refused("[]", &[], "begin with '{'");
        refused("{", &[], "header:");
        refused(
            r#"{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#,
            &[0; 8],
            "I64",
        );
        refused(
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
            &[0; 4],
            "implies 8",
        );
        refused(
            r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
            &[],
            "more than fits",
        );
        refused(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
            &[0; 4],
            "do not fit",
        );
        refused(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            &[0; 8],
            "gap or overlap",
        );
        refused(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            &[0; 4],
            "gap or overlap",
        );
        refused(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            &[0; 4],
            "appears twice",
        );
        refused(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}"#,
            &[0; 4],
            "unknown field",
        );
        refused(r#"{"__metadata__":{"n":1}}"#, &[], "__metadata__");
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let open = |bytes: Vec<u8>| {
            SafetensorsFile::parse(Path::new("x"), bytes)
                .unwrap_err()
                .to_string()
        };
        assert!(open(vec![0; 7]).contains("shorter than"));
        assert!(open([&u64::MAX.to_le_bytes()[..], b"{}"].concat()).contains("limit"));
        assert!(open([&3u64.to_le_bytes()[..], b"{}"].concat()).contains("only 2 bytes"));
    }

    #[test]
    fn a_weight_that_is_not_a_number_is_refused() {
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let data = [1.0f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat();
        let file = parse(header, &data).unwrap();
        let message = file
            .values("a", &file.tensors()["a"])
            .unwrap_err()
            .to_string();
        assert!(message.contains("element 1 is NaN"), "{message}");
    }
}
