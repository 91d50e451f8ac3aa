//! GGUF: a header of key-value pairs, a table of tensors, aligned data.
//!
//! The tensors follow one another in the order of the table, each padded to the
//! alignment, so the table fixes where the file must end. A model may be split
//! into files named `…-00001-of-0000N.gguf`, which carry their number inside.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;

use super::{Fault, StructureKind, StructureProblem};
use crate::relpath::{RelPath, escape};

/// Most that is read before the tensor data. Vocabularies have ten megabytes.
const METADATA_LIMIT: u64 = 1 << 28;

/// What the header says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// Tensors in this file.
    tensors: u64,
    /// `split.no`, from 0.
    number: Option<u64>,
    /// `split.count`.
    count: Option<u64>,
    /// `split.tensors.count`: tensors in all files.
    all_tensors: Option<u64>,
    /// The tensors' names.
    names: Names,
}

/// Names that were met, as half a digest each: a hostile table can hold millions
/// of long ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Names(HashSet<[u8; 16]>);

impl Names {
    /// False when it was met before. Two equal names are two things for one reader
    /// and the first, or the last, for another.
    fn add(&mut self, name: &[u8]) -> bool {
        let digest = blake3::hash(name);
        let mut half = [0; 16];
        half.copy_from_slice(&digest.as_bytes()[..16]);
        self.0.insert(half)
    }
}

/// Reads the header and the tensor table of a file of `size` bytes.
pub(super) fn read(reader: &mut impl Read, size: u64) -> Result<(Header, Vec<Fault>), Fault> {
    let mut bytes = Bytes {
        reader,
        size,
        at: 0,
        big_endian: false,
    };
    if &bytes.array::<4>()? != b"GGUF" {
        return Err(malformed("it does not begin with GGUF"));
    }
    let version = bytes.array::<4>()?;
    bytes.big_endian = version[..2] == [0, 0];
    let version = bytes.number(version);
    if !(2..=3).contains(&version) {
        let detail = format!("GGUF version {version} is not known");
        return Err(Fault::new(StructureKind::NotKnown, detail));
    }
    let (tensors, pairs) = (bytes.u64()?, bytes.u64()?);
    let mut header = Header {
        tensors,
        ..Header::default()
    };
    let mut alignment = 32;
    let mut keys = Names::default();
    for _ in 0..pairs {
        let key = bytes.text()?;
        if !keys.add(&key) {
            let key = escape(&key);
            return Err(malformed(format!(
                "the key {key:?} stands twice in its header"
            )));
        }
        let kind = bytes.u32()?;
        let value = bytes.value(kind, 0)?;
        match key.as_slice() {
            b"general.alignment" => alignment = value.unwrap_or(0),
            b"split.no" => header.number = value,
            b"split.count" => header.count = value,
            b"split.tensors.count" => header.all_tensors = value,
            _ => {}
        }
    }
    if !alignment.is_power_of_two() || alignment > 1 << 20 {
        return Err(malformed("its alignment is no plausible power of two"));
    }
    let faults = bytes.table(tensors, alignment, &mut header.names)?;
    Ok((header, faults))
}

fn malformed(why: impl Into<String>) -> Fault {
    Fault::new(StructureKind::GgufMalformed, why)
}

fn truncated(expected: u64, size: u64) -> Fault {
    let detail = "it is cut short: its header and tensor table account for more";
    Fault::sizes(StructureKind::GgufTruncated, detail, expected, size)
}

struct Bytes<'a, R> {
    reader: &'a mut R,
    size: u64,
    at: u64,
    big_endian: bool,
}

impl<R: Read> Bytes<'_, R> {
    /// Counts the next bytes before they are read.
    fn take(&mut self, n: u64) -> Result<(), Fault> {
        let end = self.at.saturating_add(n);
        if end > METADATA_LIMIT {
            let detail = "its header goes on for longer than any known one";
            return Err(malformed(detail));
        }
        if end > self.size {
            return Err(truncated(end, self.size));
        }
        self.at = end;
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        self.take(N as u64)?;
        let mut out = [0; N];
        self.reader.read_exact(&mut out).map_err(unread)?;
        Ok(out)
    }

    fn skip(&mut self, n: u64) -> Result<(), Fault> {
        self.take(n)?;
        let copied = std::io::copy(&mut self.reader.by_ref().take(n), &mut std::io::sink());
        if copied.map_err(unread)? != n {
            return Err(Fault::new(StructureKind::Unread, "it became shorter"));
        }
        Ok(())
    }

    fn number<const N: usize>(&self, mut bytes: [u8; N]) -> u64 {
        if !self.big_endian {
            bytes.reverse();
        }
        bytes.iter().fold(0, |n, b| (n << 8) | u64::from(*b))
    }

    fn u32(&mut self) -> Result<u64, Fault> {
        let bytes = self.array::<4>()?;
        Ok(self.number(bytes))
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        let bytes = self.array::<8>()?;
        Ok(self.number(bytes))
    }

    fn text(&mut self) -> Result<Vec<u8>, Fault> {
        let length = self.u64()?;
        if length > 1 << 16 {
            return Err(malformed("a name in its header is implausibly long"));
        }
        self.take(length)?;
        let mut out = vec![0; length as usize];
        self.reader.read_exact(&mut out).map_err(unread)?;
        Ok(out)
    }

    /// Passes over a value; gives it when it is a small unsigned number.
    fn value(&mut self, kind: u64, depth: usize) -> Result<Option<u64>, Fault> {
        Ok(match kind {
            0 | 1 | 7 => {
                let bytes = self.array::<1>()?;
                Some(self.number(bytes))
            }
            2 | 3 => {
                let bytes = self.array::<2>()?;
                Some(self.number(bytes))
            }
            4 | 5 => Some(self.u32()?),
            6 => {
                self.skip(4)?;
                None
            }
            8 => {
                let length = self.u64()?;
                self.skip(length)?;
                None
            }
            9 => {
                if depth > 4 {
                    return Err(malformed("arrays are nested too deep"));
                }
                let (kind, count) = (self.u32()?, self.u64()?);
                match width(kind) {
                    Some(width) => self.skip(count.saturating_mul(width))?,
                    None => {
                        for _ in 0..count {
                            self.value(kind, depth + 1)?;
                        }
                    }
                }
                None
            }
            10 | 11 => Some(self.u64()?),
            12 => {
                self.skip(8)?;
                None
            }
            other => return Err(malformed(format!("a value has the unknown kind {other}"))),
        })
    }

    fn table(
        &mut self,
        tensors: u64,
        alignment: u64,
        names: &mut Names,
    ) -> Result<Vec<Fault>, Fault> {
        let mut faults = Vec::new();
        // Where the next tensor must begin; None after one of unknown length.
        let mut next = Some(0u64);
        // Where the last tensor ends, as far as known.
        let mut end = 0u64;
        for _ in 0..tensors {
            let name = self.text()?;
            let new = names.add(&name);
            let name = escape(&name);
            if !new {
                return Err(malformed(format!(
                    "tensor {name:?} stands twice in its table"
                )));
            }
            let dimensions = self.u32()?;
            if dimensions > 8 {
                return Err(malformed(format!(
                    "tensor {name:?} has {dimensions} dimensions"
                )));
            }
            let shape: Result<Vec<_>, _> = (0..dimensions).map(|_| self.u64()).collect();
            let shape = shape?;
            let kind = self.u32()?;
            let offset = self.u64()?;
            if next.is_some_and(|next| next != offset) || offset < end {
                return Err(malformed(format!(
                    "tensor {name:?} begins at byte {offset} of the data, but the one before it ends at {end}"
                )));
            }
            match length(kind, &shape) {
                Length::Bytes(length) => {
                    end = offset.checked_add(length).ok_or_else(|| huge(&name))?;
                    next = Some(
                        end.checked_next_multiple_of(alignment)
                            .ok_or_else(|| huge(&name))?,
                    );
                }
                Length::Impossible => {
                    return Err(malformed(format!(
                        "tensor {name:?} of type {kind} cannot have the shape {shape:?}"
                    )));
                }
                Length::Unknown => {
                    let detail = format!("tensor {name:?} has the unknown type {kind}");
                    faults.push(Fault::new(StructureKind::NotKnown, detail));
                    (next, end) = (None, offset);
                }
            }
        }
        faults.truncate(1);
        if tensors == 0 {
            // Metadata alone, padded or not.
            if self.size > self.at.next_multiple_of(alignment) {
                return Err(malformed("data follows, but it has no tensors"));
            }
            return Ok(faults);
        }
        let start = self.at.next_multiple_of(alignment);
        let least = start.saturating_add(end);
        if self.size < least {
            faults.push(truncated(least, self.size));
        } else if let Some(next) = next
            && self.size > start.saturating_add(next)
        {
            let detail = "it goes on after the last tensor";
            let most = start.saturating_add(next);
            faults.push(Fault::sizes(
                StructureKind::GgufMalformed,
                detail,
                most,
                self.size,
            ));
        }
        Ok(faults)
    }
}

fn unread(e: std::io::Error) -> Fault {
    Fault::new(StructureKind::Unread, e.to_string())
}

fn huge(name: &str) -> Fault {
    malformed(format!("tensor {name:?} is larger than any file"))
}

/// Bytes of a value of fixed width.
fn width(kind: u64) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

enum Length {
    Bytes(u64),
    Impossible,
    Unknown,
}

fn length(kind: u64, shape: &[u64]) -> Length {
    let Some((block, bytes)) = block(kind) else {
        return Length::Unknown;
    };
    let elements = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
    // Rows are whole blocks.
    let rows = shape.first().copied().unwrap_or(1) % block == 0;
    match elements.and_then(|n| (n / block).checked_mul(bytes)) {
        Some(length) if rows => Length::Bytes(length),
        _ => Length::Impossible,
    }
}

/// Elements and bytes of a block of a tensor type.
fn block(kind: u64) -> Option<(u64, u64)> {
    Some(match kind {
        0 | 26 => (1, 4),
        1 | 25 | 30 => (1, 2),
        24 => (1, 1),
        27 | 28 => (1, 8),
        2 => (32, 18),
        3 => (32, 20),
        6 => (32, 22),
        7 => (32, 24),
        8 => (32, 34),
        10 => (256, 84),
        11 => (256, 110),
        12 => (256, 144),
        13 => (256, 176),
        14 => (256, 210),
        15 => (256, 292),
        16 => (256, 66),
        17 => (256, 74),
        18 => (256, 98),
        19 => (256, 50),
        20 => (32, 18),
        21 => (256, 110),
        22 => (256, 82),
        23 => (256, 136),
        29 => (256, 56),
        34 => (256, 54),
        35 => (256, 66),
        39 => (32, 17),
        40 => (64, 36),
        41 => (128, 18),
        _ => return None,
    })
}

/// Prefix, number from 1 and count of a file named as part of a split.
pub(crate) fn split_name(name: &[u8]) -> Option<(&[u8], u64, u64)> {
    // -00001-of-00003
    const TAIL: usize = 15;
    let (stem, suffix) = name.split_at_checked(name.len().checked_sub(b".gguf".len())?)?;
    if !suffix.eq_ignore_ascii_case(b".gguf") {
        return None;
    }
    let (prefix, tail) = stem.split_at_checked(stem.len().checked_sub(TAIL)?)?;
    let digits = |text: &[u8]| {
        let all = text.iter().all(u8::is_ascii_digit);
        all.then(|| text.iter().fold(0, |n, b| n * 10 + u64::from(b - b'0')))
    };
    let shape = tail[0] == b'-' && &tail[6..10] == b"-of-" && !prefix.is_empty();
    shape.then_some((prefix, digits(&tail[1..6])?, digits(&tail[10..])?))
}

/// Compares the numbers in the names of splits, those within, and the set.
pub(super) fn compare_splits(files: &BTreeMap<RelPath, Option<Header>>) -> Vec<StructureProblem> {
    type Set<'a> = BTreeMap<u64, (&'a RelPath, Option<&'a Header>)>;
    let mut out = Vec::new();
    let mut sets: BTreeMap<(&[u8], u64), Set> = BTreeMap::new();
    for (path, header) in files {
        let header = header.as_ref();
        let split = split_name(path.as_bytes());
        if let Some((prefix, number, count)) = split {
            let set = sets.entry((prefix, count)).or_default();
            set.insert(number, (path, header));
        }
        let Some(header) = header else { continue };
        let within = (
            header.number,
            header.count.filter(|n| *n > 1 || split.is_some()),
        );
        let wrong = match (split, within) {
            (None, (_, Some(count))) => Some(format!(
                "it is part {} of {count} of a split, but not named so",
                header.number.unwrap_or(0) + 1
            )),
            (Some((_, number, count)), (Some(no), Some(n))) if (number, count) != (no + 1, n) => {
                Some(format!(
                    "it is named part {number} of {count}, and says it is part {} of {n}",
                    no + 1
                ))
            }
            (Some((_, _, count)), (None, _) | (_, None)) if count > 1 => {
                Some("it is named as part of a split, and says nothing of one".to_owned())
            }
            _ => None,
        };
        if let Some(detail) = wrong {
            out.push(Fault::new(StructureKind::GgufSplit, detail).at(path));
        }
    }
    for ((_, count), set) in sets {
        let Some((first, _)) = set.values().next() else {
            continue;
        };
        let missing: Vec<u64> = (1..=count)
            .filter(|n| !set.contains_key(n))
            .take(8)
            .collect();
        if !missing.is_empty() {
            let named: Vec<_> = missing.iter().map(u64::to_string).collect();
            let detail = format!(
                "of {count} parts, these are not there: {}",
                named.join(", ")
            );
            out.push(Fault::new(StructureKind::GgufSplit, detail).at(first));
            continue;
        }
        let mut met = HashSet::new();
        let twice = set.values().find(|part| {
            let names = part.1.map(|h| &h.names.0);
            names.is_some_and(|all| all.iter().any(|name| !met.insert(*name)))
        });
        if let Some((path, _)) = twice {
            let detail = "it holds a tensor that another part of the split holds too";
            out.push(Fault::new(StructureKind::GgufSplit, detail).at(path));
        }
        let headers: Option<Vec<_>> = set.values().map(|(_, h)| *h).collect();
        let Some(headers) = headers else { continue };
        let held: u64 = headers
            .iter()
            .map(|h| h.tensors)
            .fold(0, u64::saturating_add);
        if let Some(said) = headers
            .iter()
            .find_map(|h| h.all_tensors.filter(|n| *n != held))
        {
            let detail = format!("all parts together hold {held} tensors, but {said} are stated");
            out.push(Fault::new(StructureKind::GgufSplit, detail).at(first));
        }
    }
    out
}

#[cfg(test)]
mod tests;
