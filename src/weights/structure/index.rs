//! `model.safetensors.index.json`: which tensor lies in which file.
//!
//! The map and the headers must say the same: every tensor of the map is in the
//! file it names, and every tensor of such a file is in the map. A file that
//! holds exactly the tensors of another one was swapped with it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::safetensors::Header;
use super::{Fault, StructureKind, StructureProblem, Unique};
use crate::relpath::RelPath;

/// Longest index read; those of the largest models have ten megabytes.
pub(super) const MAX_LEN: u64 = 1 << 28;

/// An index that was read.
#[derive(Debug)]
pub(super) struct Index {
    /// Names of the tensors by file name, as written.
    files: BTreeMap<String, BTreeSet<String>>,
    /// `metadata.total_size`.
    total_size: Option<f64>,
}

#[derive(Deserialize)]
struct Raw {
    weight_map: Unique<String>,
    #[serde(default)]
    metadata: Option<Unique<Value>>,
}

/// Reads an index.
pub(super) fn parse(bytes: &[u8]) -> Result<Index, Fault> {
    let raw: Raw = serde_json::from_slice(bytes).map_err(|e| {
        Fault::new(
            StructureKind::IndexMismatch,
            format!("it is not a safetensors index: {e}"),
        )
    })?;
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in raw.weight_map.0 {
        files.entry(file).or_default().insert(tensor);
    }
    let total_size = raw.metadata.and_then(|m| m.0.get("total_size")?.as_f64());
    Ok(Index { files, total_size })
}

impl Index {
    /// Compares the map with the headers of the files beside the index. A file
    /// without a header was found broken already.
    pub(super) fn compare(
        &self,
        path: &RelPath,
        shards: &BTreeMap<RelPath, Option<Header>>,
    ) -> Vec<StructureProblem> {
        let mut out = Vec::new();
        let mut total = Some(0u64);
        for (name, named) in &self.files {
            let place = beside(path, name);
            let shard = place.as_ref().and_then(|p| shards.get_key_value(p));
            let Some((place, header)) = shard else {
                let detail = format!("it names the file {name:?}, which is not there");
                out.push(Fault::new(StructureKind::IndexMismatch, detail).at(path));
                total = None;
                continue;
            };
            let Some(header) = header else {
                total = None;
                continue;
            };
            total = total.and_then(|t| t.checked_add(header.data));
            if let Some(fault) = self.fault_of(name, named, header) {
                out.push(fault.at(place));
            }
        }
        // Compared as the number that JSON readers see.
        if let (Some(said), Some(found)) = (self.total_size, total)
            && said != found as f64
            && out.is_empty()
        {
            let detail = "the total size that the index states is not that of its tensors";
            let mut problem = Fault::new(StructureKind::IndexTotalSize, detail).at(path);
            problem.expected = Some(format!("{said} bytes"));
            problem.found = Some(format!("{found} bytes"));
            out.push(problem);
        }
        out
    }

    fn fault_of(&self, name: &str, named: &BTreeSet<String>, header: &Header) -> Option<Fault> {
        let held: BTreeSet<&String> = header.tensors.iter().collect();
        let missing: Vec<_> = named.iter().filter(|t| !held.contains(t)).collect();
        let extra: Vec<_> = held.iter().filter(|t| !named.contains(**t)).collect();
        if missing.is_empty() && extra.is_empty() {
            return None;
        }
        let other = self.files.iter().find(|(other, theirs)| {
            *other != name && theirs.len() == held.len() && theirs.iter().all(|t| held.contains(t))
        });
        if let Some((other, _)) = other {
            let detail = format!("it holds exactly the tensors that the index gives to {other}");
            return Some(Fault::new(StructureKind::ShardSwapped, detail));
        }
        let elsewhere = extra
            .iter()
            .any(|t| self.files.values().any(|f| f.contains(**t)));
        if missing.is_empty() && !elsewhere {
            let detail = format!(
                "it holds {} tensor(s) that the index does not name, for example {:?}",
                extra.len(),
                extra[0]
            );
            return Some(Fault::new(StructureKind::IndexUnlisted, detail));
        }
        let detail = match (missing.first(), extra.first()) {
            (Some(first), _) => format!(
                "{} tensor(s) that the index gives to it are not in it, for example {first:?}",
                missing.len()
            ),
            (None, first) => format!(
                "it holds tensors that the index gives to another file, for example {:?}",
                first.copied().copied().map_or("", String::as_str)
            ),
        };
        Some(Fault::new(StructureKind::IndexMismatch, detail))
    }
}

/// The path of a file that lies beside another one. None for names that would
/// lead elsewhere.
fn beside(path: &RelPath, name: &str) -> Option<RelPath> {
    let bytes = path.as_bytes();
    let folder = bytes.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    RelPath::from_bytes(&[&bytes[..folder], name.as_bytes()].concat()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn compare(index: &str, shards: &[(&str, &[&str])]) -> Vec<(String, StructureKind)> {
        let shards = shards
            .iter()
            .map(|(path, tensors)| {
                let header = Header {
                    tensors: tensors.iter().map(|t| (*t).to_owned()).collect(),
                    data: 4 * tensors.len() as u64,
                };
                (RelPath::parse(path).unwrap(), Some(header))
            })
            .collect();
        let path = RelPath::parse("m/model.safetensors.index.json").unwrap();
        let problems = parse(index.as_bytes()).unwrap().compare(&path, &shards);
        problems
            .into_iter()
            .map(|p| (p.path.to_string(), p.kind))
            .collect()
    }

    const INDEX: &str = r#"{"metadata":{"total_size":12},"weight_map":{"a":"1","b":"1","c":"2"}}"#;

    #[test]
    fn map_and_headers_must_say_the_same() {
        use StructureKind::*;
        let at = |p: &str, kind| vec![(p.to_owned(), kind)];
        let index = "m/model.safetensors.index.json";
        assert_eq!(compare(INDEX, &[("m/1", &["a", "b"]), ("m/2", &["c"])]), []);
        // A file that the index does not name is none of its business.
        let more = [("m/1", &["a", "b"][..]), ("m/2", &["c"]), ("m/3", &["a"])];
        assert_eq!(compare(INDEX, &more), []);
        assert_eq!(
            compare(INDEX, &[("m/1", &["c"]), ("m/2", &["a", "b"])]),
            [at("m/1", ShardSwapped), at("m/2", ShardSwapped)].concat()
        );
        assert_eq!(
            compare(INDEX, &[("m/1", &["a", "b"])]),
            at(index, IndexMismatch)
        );
        assert_eq!(
            compare(INDEX, &[("m/1", &["a"]), ("m/2", &["c"])]),
            at("m/1", IndexMismatch)
        );
        assert_eq!(
            compare(INDEX, &[("m/1", &["a", "b", "x"]), ("m/2", &["c"])]),
            at("m/1", IndexUnlisted)
        );
        assert_eq!(
            compare(INDEX, &[("m/1", &["a", "b"]), ("m/2", &["b", "c"])]),
            at("m/2", IndexMismatch)
        );
        let other = INDEX.replace("12", "13");
        assert_eq!(
            compare(&other, &[("m/1", &["a", "b"]), ("m/2", &["c"])]),
            at(index, IndexTotalSize)
        );
        let outside = INDEX.replace("\"2\"", "\"../2\"");
        assert_eq!(
            compare(&outside, &[("m/1", &["a", "b"]), ("2", &["c"])]),
            at(index, IndexMismatch)
        );
    }

    #[test]
    fn broken_indexes_are_refused() {
        for bad in [
            "",
            "{}",
            "[]",
            r#"{"weight_map":{"a":1}}"#,
            r#"{"weight_map":{"a":"1","a":"2"}}"#,
            r#"{"weight_map":{}} x"#,
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(parse(br#"{"weight_map":{"a":"1"},"metadata":null,"more":[]}"#).is_ok());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&bytes);
        }
    }
}
