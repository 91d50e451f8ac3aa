//! Which format a manifest is in, and what the line formats have in common.

use super::{ListFormat, Listing, Manifest, ManifestError, checksums, hashdeep, hf_tree};
use crate::relpath::{RelPath, escape};

impl Listing {
    /// Reads a manifest in any known format. The bytes decide, except between
    /// `sha256sum` and `b3sum`, whose lines look the same: those are SHA-256
    /// unless `told` says otherwise.
    pub fn read(bytes: &[u8], told: Option<ListFormat>) -> Result<Self, ManifestError> {
        // Editors on Windows put a mark before text; JSON allows none.
        let json = |b: &[u8]| {
            b.trim_ascii_start().starts_with(b"{") || b.trim_ascii_start().starts_with(b"[")
        };
        let bytes = match bytes.strip_prefix(b"\xef\xbb\xbf") {
            Some(text) if !json(text) => text,
            _ => bytes,
        };
        let format = match told {
            Some(format) => format,
            None => detect(bytes)?,
        };
        match format {
            ListFormat::Runseal => Ok(Manifest::parse(bytes)?.listing),
            ListFormat::HfTree => hf_tree::read(bytes),
            ListFormat::Hashdeep => hashdeep::read(bytes),
            ListFormat::BsdTag => checksums::tag(bytes),
            ListFormat::Sha256sum | ListFormat::B3sum => checksums::plain(bytes, format),
            ListFormat::GitLfs => Err(ManifestError::Unknown(
                "git-lfs pointers are read from a folder, not from a file".to_owned(),
            )),
            ListFormat::Oms => Err(ManifestError::Unknown(
                "OMS bundles are read by `verify weights` only".to_owned(),
            )),
            ListFormat::Absent => Err(ManifestError::Empty),
        }
    }
}

fn detect(bytes: &[u8]) -> Result<ListFormat, ManifestError> {
    match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
        None => return Err(ManifestError::Empty),
        Some(b'{') => return Ok(ListFormat::Runseal),
        Some(b'[') => return Ok(ListFormat::HfTree),
        Some(_) => {}
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(ManifestError::Unknown(
            "it is UTF-16 text; save it as UTF-8".to_owned(),
        ));
    }
    if bytes.starts_with(hashdeep::MAGIC) {
        return Ok(ListFormat::Hashdeep);
    }
    let lines = lines(bytes)?;
    let Some(first) = lines.first() else {
        return Err(ManifestError::Empty);
    };
    if checksums::is_plain(first.bytes) {
        Ok(ListFormat::Sha256sum)
    } else if checksums::is_tag(first.bytes) {
        Ok(ListFormat::BsdTag)
    } else {
        let shown = first.bytes.get(..60).unwrap_or(first.bytes);
        Err(ManifestError::Unknown(format!(
            "line {} begins {:?}",
            first.number,
            escape(shown)
        )))
    }
}

/// A line of a manifest.
pub(super) struct Line<'a> {
    /// Counted from 1.
    pub number: usize,
    /// Without its end.
    pub bytes: &'a [u8],
}

impl Line<'_> {
    /// The error that names this line.
    pub fn refuse(&self, why: impl Into<String>) -> ManifestError {
        ManifestError::Line {
            line: self.number,
            why: why.into(),
        }
    }

    /// A name on this line. The `./` that `find` puts before names is taken off.
    pub fn path(&self, name: &[u8]) -> Result<RelPath, ManifestError> {
        let name = name.strip_prefix(b"./").unwrap_or(name);
        RelPath::from_bytes(name).map_err(|e| self.refuse(e.to_string()))
    }
}

/// The lines that say something: not empty, no comment (`#`).
pub(super) fn lines(bytes: &[u8]) -> Result<Vec<Line<'_>>, ManifestError> {
    let all: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
    let refuse = |line: usize, why: &str| {
        let why = why.to_owned();
        Err(ManifestError::Line { line, why })
    };
    if let Some(last) = all.last()
        && !last.ends_with(b"\n")
    {
        return refuse(all.len(), "the file ends within a line; was it cut short?");
    }
    // A name may itself end in a carriage return, so one is only taken off when
    // every line has one.
    let windows = !all.is_empty() && all.iter().all(|line| line.ends_with(b"\r\n"));
    let mut out = Vec::new();
    for (i, line) in all.into_iter().enumerate() {
        if line.contains(&0) {
            return refuse(
                i + 1,
                "it holds a NUL byte; lists made with -z are not read",
            );
        }
        let end = line.len() - if windows { 2 } else { 1 };
        let line = &line[..end];
        if !line.is_empty() && line[0] != b'#' {
            out.push(Line {
                number: i + 1,
                bytes: line,
            });
        }
    }
    Ok(out)
}
