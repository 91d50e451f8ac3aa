//! `model.safetensors.index.json`: which tensor lies in which file.
//!
//! The map and the headers must say the same: every tensor of the map is in the
//! file it names, and every tensor of such a file is in the map. A file that
//! holds exactly the tensors of another one was swapped with it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::safetensors::{Header, shard_name};
use super::{Fault, StructureKind, StructureProblem, Unique};
use crate::relpath::{RelPath, escape};
use crate::weights::report::{FileReport, Kind};

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

/// What an index is compared with.
pub(super) struct Beside<'a> {
    /// The safetensors files; without a header where none could be read, which was
    /// reported already.
    pub shards: &'a BTreeMap<RelPath, Option<Header>>,
    /// Everything in the folder.
    pub files: &'a [&'a FileReport],
}

impl Beside<'_> {
    /// Why a file that the index names is not among the shards; none when nobody
    /// could look.
    fn absence(&self, place: Option<&RelPath>) -> Option<&'static str> {
        let Some(place) = place else {
            return Some("which is not there");
        };
        let closed =
            |f: &&&FileReport| f.kind == Kind::Folder && f.problem.is_some() && f.path.holds(place);
        if self.files.iter().any(|f| f.path == *place) {
            Some("which is no safetensors file")
        } else if self.files.iter().find(closed).is_some() {
            None
        } else {
            Some("which is not there")
        }
    }
}

impl Index {
    /// Compares the map with the headers of the files beside the index.
    pub(super) fn compare(&self, path: &RelPath, beside_it: &Beside) -> Vec<StructureProblem> {
        let shards = beside_it.shards;
        let mut out = Vec::new();
        if self.files.is_empty() {
            let detail = "its weight_map is empty, so a loader finds no tensor";
            out.push(Fault::new(StructureKind::IndexMismatch, detail).at(path));
            return out;
        }
        let mut total = Some(0u64);
        let mut named_sets: BTreeMap<_, usize> = BTreeMap::new();
        let mut named_files = BTreeSet::new();
        for (name, named) in &self.files {
            let place = beside(path, name);
            let shard = place.as_ref().and_then(|p| shards.get_key_value(p));
            if let Some(set) = place.as_ref().and_then(|p| shard_name(p.as_bytes())) {
                *named_sets.entry(set).or_default() += 1;
            }
            named_files.extend(shard.map(|(place, _)| place));
            let Some((place, header)) = shard else {
                if let Some(why) = beside_it.absence(place.as_ref()) {
                    let detail = format!("it names the file {name:?}, {why}");
                    out.push(Fault::new(StructureKind::IndexMismatch, detail).at(path));
                }
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
        // A further part of a set that the index names, and does not name: a loader
        // never opens it. Other files are none of its business.
        for (place, header) in shards {
            let set = shard_name(place.as_bytes());
            let one_of_them = set.is_some_and(|s| named_sets.contains_key(&s));
            if one_of_them && !named_files.contains(place) && header.is_some() {
                let detail = "the index names other parts of this set and not this one, so a loader passes over its tensors";
                out.push(Fault::new(StructureKind::IndexMismatch, detail).at(place));
            }
        }
        // Neither named nor there: the names say that there were more.
        for ((prefix, count), named) in named_sets {
            let count = String::from_utf8_lossy(&count).into_owned();
            if out.is_empty() && count.parse() != Ok(named) {
                let prefix = escape(&prefix);
                let detail = format!(
                    "it names {named} parts of {prefix}-…-of-{count}, so others are missing"
                );
                out.push(Fault::new(StructureKind::IndexMismatch, detail).at(path));
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
        let beside = Beside {
            shards: &shards,
            files: &[],
        };
        let problems = parse(index.as_bytes()).unwrap().compare(&path, &beside);
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
    fn an_index_of_nothing_or_of_a_part_is_found() {
        use StructureKind::IndexMismatch;
        let index = "m/model.safetensors.index.json";
        let empty = r#"{"weight_map":{}}"#;
        let found = compare(empty, &[("m/1", &["a"])]);
        assert_eq!(found, [(index.to_owned(), IndexMismatch)]);
        assert_eq!(compare(empty, &[]).len(), 1);
        let map = r#"{"weight_map":{"a":"x-00001-of-00003.safetensors","b":"x-00002-of-00003.safetensors"}}"#;
        let [one, two, three] = [1, 2, 3].map(|n| format!("m/x-0000{n}-of-00003.safetensors"));
        let shards = [(&*one, &["a"][..]), (&*two, &["b"]), (&*three, &["c"])];
        // The third is neither named nor there; of two there is no more.
        let lacking = [(index.to_owned(), IndexMismatch)];
        assert_eq!(compare(map, &shards[..2]), lacking);
        assert_eq!(compare(map, &shards), [(three.clone(), IndexMismatch)]);
        let [one, two] = [1, 2].map(|n| format!("m/x-0000{n}-of-00002.safetensors"));
        let both = [(&*one, &["a"][..]), (&*two, &["b"])];
        assert_eq!(compare(&map.replace("-00003", "-00002"), &both), []);
        // Another set, or no set, may lie beside it.
        let others = [
            shards[0],
            shards[1],
            ("m/x-00003-of-00004.safetensors", &["c"]),
            ("m/whole.safetensors", &["a", "b"]),
        ];
        assert_eq!(compare(map, &others), lacking);
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
