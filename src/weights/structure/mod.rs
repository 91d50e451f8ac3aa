//! What the weight files say about themselves.
//!
//! Digests tell that a file is another one, structure tells what became of it:
//! cut short, swapped with its neighbour, part of an incomplete set, a git-lfs
//! pointer that was never replaced by the weights. Only headers are read. The
//! problems found are facts of the report, like digests; the codes and the verdict
//! follow from them in [`super::judge`].
//!
//! Structure never verifies anything: a flipped bit in a weight leaves no trace
//! in it.

mod gguf;
mod index;
mod safetensors;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::beneath::file_stat;
use super::git::pointer::{self, Pointer};
use super::hashing::{Unkept, differences};
use super::report::{FileReport, Kind};
use crate::codes::Code;
use crate::finding::{Finding, Outcome, Severity};
use crate::relpath::RelPath;

pub(super) use gguf::split_name;

/// What the structural checks found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Structure {
    /// safetensors files whose header was read.
    pub safetensors: usize,
    /// GGUF files whose header was read.
    pub gguf: usize,
    /// safetensors indexes that were read.
    pub indexes: usize,
    /// What is wrong, in order of the paths.
    pub problems: Vec<StructureProblem>,
}

impl Structure {
    /// Did the headers hold? Notes do not count against it.
    pub(crate) fn outcome(&self) -> Outcome {
        let error = |p: &StructureProblem| p.kind.code().severity() == Severity::Error;
        if self.problems.iter().any(error) {
            Outcome::Failed
        } else if self.safetensors + self.gguf == 0 {
            Outcome::NotPerformed {
                reason: "there are no safetensors or GGUF files".to_owned(),
            }
        } else {
            Outcome::Passed
        }
    }

    /// Keeps what is wrong with a file, and hands on its header if it could be read.
    fn header<T>(&mut self, path: &RelPath, read: Result<(T, Vec<Fault>), Fault>) -> Option<T> {
        let (header, faults) = match read {
            Ok((header, faults)) => (Some(header), faults),
            Err(fault) => (None, vec![fault]),
        };
        self.problems.extend(faults.into_iter().map(|f| f.at(path)));
        header
    }
}

/// One thing that does not hold in the structure of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StructureProblem {
    /// The file.
    pub path: RelPath,
    /// What kind of problem.
    pub kind: StructureKind,
    /// What is wrong, in words.
    pub detail: String,
    /// What its header or index accounts for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// What is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

impl StructureProblem {
    /// What is wrong, about this subject.
    pub(super) fn finding(&self, subject: String) -> Finding {
        let mut finding = Finding::new(self.kind.code(), subject, &self.detail);
        finding.expected.clone_from(&self.expected);
        finding.found.clone_from(&self.found);
        finding
    }
}

/// The kinds of [`StructureProblem`].
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StructureKind {
    /// A safetensors file is shorter than its header accounts for.
    ShardTruncated,
    /// It is longer.
    ShardOverlong,
    /// Its header breaks the format.
    SafetensorsMalformed,
    /// It holds the tensors that the index gives to another file.
    ShardSwapped,
    /// The index names what is not there, or breaks its format.
    IndexMismatch,
    /// A file holds tensors that the index does not name.
    IndexUnlisted,
    /// The index states another total size.
    IndexTotalSize,
    /// A GGUF file is shorter than its tensor table accounts for.
    GgufTruncated,
    /// It breaks the format.
    GgufMalformed,
    /// A set of GGUF splits is incomplete or contradicts its numbering.
    GgufSplit,
    /// A git-lfs pointer stands where the content should be.
    LfsPointer,
    /// A type or version that this program does not know.
    NotKnown,
    /// It could not be read for this check.
    Unread,
}

impl StructureKind {
    pub(super) fn code(self) -> Code {
        match self {
            Self::ShardTruncated => Code::ShardTruncated,
            Self::ShardOverlong => Code::ShardOverlong,
            Self::SafetensorsMalformed => Code::SafetensorsMalformed,
            Self::ShardSwapped => Code::ShardSwapped,
            Self::IndexMismatch => Code::IndexMismatch,
            Self::IndexUnlisted => Code::IndexUnlisted,
            Self::IndexTotalSize => Code::IndexTotalSize,
            Self::GgufTruncated => Code::GgufTruncated,
            Self::GgufMalformed => Code::GgufMalformed,
            Self::GgufSplit => Code::GgufSplit,
            Self::LfsPointer => Code::LfsPointer,
            Self::NotKnown => Code::StructureNotChecked,
            Self::Unread => Code::CouldNotRead,
        }
    }
}

/// A problem that does not know its file yet.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    kind: StructureKind,
    detail: String,
    sizes: Option<(u64, u64)>,
}

impl Fault {
    fn new(kind: StructureKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            sizes: None,
        }
    }

    fn sizes(kind: StructureKind, detail: &str, expected: u64, found: u64) -> Self {
        Self {
            sizes: Some((expected, found)),
            ..Self::new(kind, detail)
        }
    }

    fn at(self, path: &RelPath) -> StructureProblem {
        let bytes = |n: u64| format!("{n} bytes");
        StructureProblem {
            path: path.clone(),
            kind: self.kind,
            detail: self.detail,
            expected: self.sizes.map(|(expected, _)| bytes(expected)),
            found: self.sizes.map(|(_, found)| bytes(found)),
        }
    }
}

/// Looks at the structure of every weight file in a list that was just hashed.
/// Files that could not be hashed are left out: that is reported already. They are
/// there all the same, so nothing that names them is told that they are missing.
pub(super) fn inspect(
    files: &[&FileReport],
    open: &dyn Fn(&RelPath) -> io::Result<File>,
) -> Structure {
    let mut out = Structure::default();
    let mut shards = BTreeMap::new();
    let mut splits = BTreeMap::new();
    let mut indexes = Vec::new();
    for file in files.iter().copied() {
        // Loaders on other systems do not mind the case.
        let lower = file.path.as_bytes().to_ascii_lowercase();
        let name = &lower[..];
        // Without a header until one was read.
        if name.ends_with(b".safetensors") {
            shards.insert(file.path.clone(), None);
        } else if name.ends_with(b".gguf") {
            splits.insert(file.path.clone(), None);
        }
        let readable = file.kind == Kind::File && file.problem.is_none();
        let Some(stat) = file.stat.filter(|_| readable) else {
            continue;
        };
        if (pointer::MIN_LEN..=pointer::MAX_LEN).contains(&stat.size) {
            match whole(file, open, pointer::MAX_LEN) {
                Ok(bytes) => {
                    if let Some(p) = Pointer::parse(&bytes) {
                        let detail = format!(
                            "it is a git-lfs pointer to {} bytes and not those bytes themselves",
                            p.size
                        );
                        let mut fault = Fault::new(StructureKind::LfsPointer, detail);
                        fault.sizes = Some((p.size, stat.size));
                        out.problems.push(fault.at(&file.path));
                        continue;
                    }
                    if pointer::resembles(&bytes) {
                        let detail = "it is a damaged git-lfs pointer and not a file's bytes";
                        let fault = Fault::new(StructureKind::LfsPointer, detail.to_owned());
                        out.problems.push(fault.at(&file.path));
                        continue;
                    }
                }
                Err(fault) => {
                    out.problems.push(fault.at(&file.path));
                    continue;
                }
            }
        }
        if name.ends_with(b".safetensors") {
            out.safetensors += 1;
            let read = with(file, open, |reader| safetensors::read(reader, stat.size));
            shards.insert(file.path.clone(), out.header(&file.path, read));
        } else if name.ends_with(b".gguf") {
            out.gguf += 1;
            let read = with(file, open, |reader| gguf::read(reader, stat.size));
            splits.insert(file.path.clone(), out.header(&file.path, read));
        } else if name.ends_with(b".safetensors.index.json") {
            out.indexes += 1;
            indexes.push(file);
        }
    }
    for file in indexes {
        match whole(file, open, index::MAX_LEN).and_then(|bytes| index::parse(&bytes)) {
            Ok(index) => {
                let beside = index::Beside {
                    shards: &shards,
                    files,
                };
                out.problems.extend(index.compare(&file.path, &beside));
            }
            Err(fault) => out.problems.push(fault.at(&file.path)),
        }
    }
    out.problems.extend(gguf::compare_splits(&splits));
    out.problems
        .sort_by(|a, b| (&a.path, a.kind, &a.detail).cmp(&(&b.path, b.kind, &b.detail)));
    out
}

type Reader = BufReader<Unkept>;

/// Opens a file that must still be the one that was hashed.
fn with<T>(
    file: &FileReport,
    open: &dyn Fn(&RelPath) -> io::Result<File>,
    look: impl FnOnce(&mut Reader) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let unread = |e: io::Error| Fault::new(StructureKind::Unread, e.to_string());
    let opened = open(&file.path).map_err(unread)?;
    let now = rustix::fs::fstat(&opened).map_err(|e| unread(e.into()))?;
    let same = file
        .stat
        .is_some_and(|listed| differences(&listed, &file_stat(&now)).is_empty());
    if !same {
        return Err(Fault::new(
            StructureKind::Unread,
            "it changed after it was hashed",
        ));
    }
    look(&mut BufReader::with_capacity(1 << 13, Unkept::new(opened)))
}

fn whole(
    file: &FileReport,
    open: &dyn Fn(&RelPath) -> io::Result<File>,
    max: u64,
) -> Result<Vec<u8>, Fault> {
    with(file, open, |reader| {
        let mut bytes = Vec::new();
        let read = reader.take(max + 1).read_to_end(&mut bytes);
        read.map_err(|e| Fault::new(StructureKind::Unread, e.to_string()))?;
        if bytes.len() as u64 > max {
            let detail = format!("it is longer than {max} bytes");
            return Err(Fault::new(StructureKind::NotKnown, detail));
        }
        Ok(bytes)
    })
}

/// A JSON object in which a repeated key is an error: `serde_json` keeps the last
/// of two equal keys, another reader may keep the first and see other weights.
struct Unique<V>(BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Unique<V> {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Keys<V>(std::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> serde::de::Visitor<'de> for Keys<V> {
            type Value = Unique<V>;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut out = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    if let Some(old) = out.insert(key, value) {
                        drop(old);
                        return Err(serde::de::Error::custom("a key appears twice"));
                    }
                }
                Ok(Unique(out))
            }
        }
        d.deserialize_map(Keys(std::marker::PhantomData))
    }
}
