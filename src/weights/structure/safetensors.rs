//! One safetensors file: eight bytes of little-endian header length, a JSON
//! header, data. The tensors' byte ranges follow one another from zero without
//! gap or overlap, each exactly as long as shape and type imply, and the file ends
//! where the last one ends.

use std::fmt;
use std::io::Read;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Fault, StructureKind, Unique};

/// Longest header accepted, the limit of the format's own implementation.
const HEADER_LIMIT: u64 = 100_000_000;

/// What the header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// Names of the tensors, sorted.
    pub tensors: Vec<String>,
    /// Bytes of data.
    pub data: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header's object. Read by hand, so that no key can hide a second one of the
/// same name.
struct Tensors(Vec<(String, Tensor)>);

impl<'de> Deserialize<'de> for Tensors {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Tensors;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tensors, A::Error> {
                let mut tensors = Vec::new();
                let mut metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    let within = |e| A::Error::custom(format!("{name:?}: {e}"));
                    if name != "__metadata__" {
                        let tensor = map.next_value().map_err(within)?;
                        tensors.push((name, tensor));
                    } else if metadata {
                        return Err(A::Error::custom("\"__metadata__\" appears twice"));
                    } else {
                        map.next_value::<Unique<String>>().map_err(within)?;
                        metadata = true;
                    }
                }
                tensors.sort_by(|a: &(String, Tensor), b| a.0.cmp(&b.0));
                match tensors.windows(2).find(|w| w[0].0 == w[1].0) {
                    Some(w) => Err(A::Error::custom(format!("{:?} appears twice", w[0].0))),
                    None => Ok(Tensors(tensors)),
                }
            }
        }
        d.deserialize_map(Entries)
    }
}

/// Reads the header of a file of `size` bytes. A header that could be read comes
/// with the faults that do not keep it from being compared with an index.
pub(super) fn read(reader: &mut impl Read, size: u64) -> Result<(Header, Vec<Fault>), Fault> {
    let malformed = |why: String| Fault::new(StructureKind::SafetensorsMalformed, why);
    let truncated = |expected| {
        let detail = "it is cut short: its header accounts for more";
        Fault::sizes(StructureKind::ShardTruncated, detail, expected, size)
    };
    let unread = |e: std::io::Error| Fault::new(StructureKind::Unread, e.to_string());
    if size < 8 {
        return Err(truncated(8));
    }
    let mut length = [0; 8];
    reader.read_exact(&mut length).map_err(unread)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_LIMIT {
        return Err(malformed(format!(
            "its first eight bytes give a header of {length} bytes, over the format's limit"
        )));
    }
    let start = 8 + length;
    if start > size {
        return Err(truncated(start));
    }
    let mut header = Vec::new();
    let read = reader.take(length).read_to_end(&mut header);
    if read.map_err(unread)? as u64 != length {
        return Err(Fault::new(StructureKind::Unread, "it became shorter"));
    }
    if header.first() != Some(&b'{') {
        return Err(malformed("its header is no JSON object".to_owned()));
    }
    let Tensors(mut tensors) =
        serde_json::from_slice(&header).map_err(|e| malformed(format!("its header: {e}")))?;
    let mut faults = Vec::new();
    for (name, tensor) in &tensors {
        match check_length(name, tensor) {
            Ok(true) => {}
            Ok(false) => {
                let detail = format!("tensor {name:?} has the unknown type {:?}", tensor.dtype);
                faults.push(Fault::new(StructureKind::NotKnown, detail));
            }
            Err(why) => return Err(malformed(why)),
        }
    }
    // One is enough to say that the file was not checked whole.
    faults.truncate(1);
    tensors.sort_by(|a, b| (a.1.data_offsets, &a.0).cmp(&(b.1.data_offsets, &b.0)));
    let mut end = 0;
    for (name, tensor) in &tensors {
        if tensor.data_offsets.0 != end {
            return Err(malformed(format!(
                "tensor {name:?} begins at byte {} of the data, but the one before it ends at {end}",
                tensor.data_offsets.0
            )));
        }
        end = tensor.data_offsets.1;
    }
    let expected = start.saturating_add(end);
    if expected > size {
        faults.push(truncated(expected));
    } else if expected < size {
        let detail = "it goes on after the last tensor";
        faults.push(Fault::sizes(
            StructureKind::ShardOverlong,
            detail,
            expected,
            size,
        ));
    }
    let mut names: Vec<_> = tensors.into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    let header = Header {
        tensors: names,
        data: end,
    };
    Ok((header, faults))
}

/// Folder and prefix, and count, of a file named as a part of a set:
/// `model-00001-of-00003.safetensors`.
pub(super) fn shard_name(path: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    // -00001-of-00003
    const TAIL: usize = 15;
    let end = path.len().checked_sub(b".safetensors".len())?;
    let (stem, suffix) = path.split_at(end);
    let (prefix, tail) = stem.split_at_checked(stem.len().checked_sub(TAIL)?)?;
    let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    let set = tail[0] == b'-' && &tail[6..10] == b"-of-";
    let whole = suffix.eq_ignore_ascii_case(b".safetensors") && set;
    (whole && digits(&tail[1..6]) && digits(&tail[10..]))
        .then(|| (prefix.to_vec(), tail[10..].to_vec()))
}

/// Is the byte range as long as shape and type imply? False when the type is not
/// known.
fn check_length(name: &str, tensor: &Tensor) -> Result<bool, String> {
    let (begin, end) = tensor.data_offsets;
    let Some(length) = end.checked_sub(begin) else {
        return Err(format!("tensor {name:?} ends before it begins"));
    };
    let Some(bits) = bits(&tensor.dtype) else {
        return Ok(false);
    };
    let implied = tensor
        .shape
        .iter()
        .try_fold(bits, |n, dimension| n.checked_mul(*dimension));
    if implied.is_none_or(|bits| Some(bits) != length.checked_mul(8)) {
        return Err(format!(
            "tensor {name:?} has {length} bytes, which {} of shape {:?} does not fill",
            tensor.dtype, tensor.shape
        ));
    }
    Ok(true)
}

/// Bits of an element.
fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ"
        | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "C64" | "F64" | "I64" | "U64" => 64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(vec![0; data]);
        bytes
    }

    fn look(bytes: &[u8]) -> Result<(Header, Vec<Fault>), Fault> {
        read(&mut &bytes[..], bytes.len() as u64)
    }

    const TWO: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[2,10]},"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]},"e":{"dtype":"F64","shape":[0,9],"data_offsets":[10,10]}}"#;

    #[test]
    fn a_whole_file_has_no_faults() {
        let (header, faults) = look(&file(TWO, 10)).unwrap();
        assert_eq!(faults, []);
        assert_eq!(
            (header.tensors, header.data),
            (vec!["a".into(), "b".into(), "e".into()], 10)
        );
        // An empty header and padding are what the format allows.
        assert_eq!(look(&file("{}  ", 0)).unwrap().1, []);
    }

    #[test]
    fn every_cut_is_called_truncated_and_every_tail_overlong() {
        let whole = file(TWO, 10);
        for cut in 0..whole.len() {
            let fault = match look(&whole[..cut]) {
                Err(fault) => fault,
                Ok((_, mut faults)) => faults.remove(0),
            };
            assert_eq!(fault.kind, StructureKind::ShardTruncated, "{cut}");
        }
        let (_, faults) = look(&file(TWO, 11)).unwrap();
        assert_eq!(faults[0].kind, StructureKind::ShardOverlong);
        let size = whole.len() as u64;
        assert_eq!(faults[0].sizes, Some((size, size + 1)));
    }

    #[test]
    fn broken_headers_are_malformed_and_say_why() {
        let one = |inner: &str| format!("{{\"a\":{{{inner}}}}}");
        let good = r#""dtype":"F32","shape":[1],"data_offsets":[0,4]"#;
        assert!(look(&file(&one(good), 4)).is_ok());
        let twice = format!("{{\"a\":{{{good}}},\"a\":{{{good}}}}}");
        for (header, says) in [
            ("[]", "no JSON object"),
            ("{", "its header"),
            (twice.as_str(), "twice"),
            (&one(&good.replace("[0,4]", "[4,0]")), "ends before"),
            (&one(&good.replace("[0,4]", "[0,3]")), "does not fill"),
            (
                &one(&good.replace("[0,4]", "[1,5]")),
                "but the one before it ends at 0",
            ),
            (
                &one(&good.replace("[1]", "[4294967296,4294967296]")),
                "does not fill",
            ),
            (&one(&format!("{good},\"x\":1")), "unknown field"),
            (&one(&good.replace("[0,4]", "[0,-4]")), "its header"),
            (r#"{"__metadata__":{"n":1}}"#, "__metadata__"),
        ] {
            let fault = look(&file(header, 4)).unwrap_err();
            assert_eq!(fault.kind, StructureKind::SafetensorsMalformed, "{header}");
            assert!(fault.detail.contains(says), "{header}: {}", fault.detail);
        }
        let huge = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
        assert!(look(&huge).unwrap_err().detail.contains("limit"));
    }

    #[test]
    fn an_unknown_type_is_said_and_its_range_still_counts() {
        let header = r#"{"a":{"dtype":"F3","shape":[1],"data_offsets":[0,4]}}"#;
        let (_, faults) = look(&file(header, 4)).unwrap();
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].kind, StructureKind::NotKnown);
        assert_eq!(
            look(&file(header, 3)).unwrap().1[1].kind,
            StructureKind::ShardTruncated
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            header in prop::collection::vec(any::<u8>(), 0..200), n in any::<u64>(), honest in any::<bool>(),
        ) {
            let n = if honest { header.len() as u64 } else { n };
            let bytes = [&n.to_le_bytes()[..], &header].concat();
            let _ = look(&bytes);
        }

        #[test]
        fn edited_headers_are_read_without_a_panic(at in 0usize..TWO.len(), byte in 32u8..127) {
            let mut bytes = file(TWO, 10);
            bytes[8 + at] = byte;
            let _ = look(&bytes);
        }
    }
}
