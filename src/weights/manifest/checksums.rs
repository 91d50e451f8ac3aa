//! Lines of digest and name: `sha256sum`, `b3sum` and the BSD `--tag` form.
//!
//! ```text
//! <64 hex>  name          text mode        \<64 hex>  na\nme    escaped name
//! <64 hex> *name          binary mode      SHA256 (name) = <64 hex>
//! ```
//!
//! `sha256sum` and `b3sum` write the same kind of line; which of the two it is
//! cannot be told from the bytes. Empty lines and comments (`#`) are passed over,
//! as `sha256sum -c` does; everything else must be a line of the format.

use super::read::{Line, lines};
use super::{Entry, ListFormat, Listing, Manifest, ManifestError};
use crate::digest::Sha256Digest;
use crate::relpath::{RelPath, escape};
use crate::weights::values::Blake3Digest;

/// Does the first line look like `<64 hex>` and a name?
pub(super) fn is_plain(line: &[u8]) -> bool {
    let line = line.strip_prefix(b"\\").unwrap_or(line);
    line.len() > 66 && line[..64].iter().all(u8::is_ascii_hexdigit) && line[64] == b' '
}

/// Does the first line look like `ALGORITHM (name) = <hex>`?
pub(super) fn is_tag(line: &[u8]) -> bool {
    split_tag(line.strip_prefix(b"\\").unwrap_or(line)).is_some()
}

/// Reads lines of digest and name. `format` says whose digests they are.
pub(super) fn plain(bytes: &[u8], format: ListFormat) -> Result<Listing, ManifestError> {
    let mut entries = Vec::new();
    for line in lines(bytes)? {
        let (escaped, text) = without_mark(line.bytes);
        if !is_plain(text) {
            return Err(line.refuse("it is not a digest of 64 hexadecimal digits and a name"));
        }
        if !matches!(text[65], b' ' | b'*') {
            return Err(line.refuse("between digest and name stand two blanks, or a blank and '*'"));
        }
        let path = name(&line, &text[66..], escaped)?;
        entries.push(entry(
            &line,
            format == ListFormat::B3sum,
            path,
            &text[..64],
        )?);
    }
    Listing::new(format, entries)
}

/// Reads `--tag` lines of SHA-256 and BLAKE3.
pub(super) fn tag(bytes: &[u8]) -> Result<Listing, ManifestError> {
    let mut entries = Vec::new();
    for line in lines(bytes)? {
        let (escaped, text) = without_mark(line.bytes);
        let Some((algorithm, text, digest)) = split_tag(text) else {
            return Err(line.refuse("it is not `ALGORITHM (name) = digest`"));
        };
        let blake3 = match algorithm {
            b"SHA256" => false,
            b"BLAKE3" => true,
            other => {
                let other = escape(other);
                return Err(line.refuse(format!("{other} is neither SHA256 nor BLAKE3")));
            }
        };
        let path = name(&line, text, escaped)?;
        entries.push(entry(&line, blake3, path, digest)?);
    }
    Listing::new(ListFormat::BsdTag, entries)
}

/// Algorithm, name and digest. The digest is taken from the end, because a name
/// may itself hold `) = `.
fn split_tag(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let open = line.windows(2).position(|w| w == b" (")?;
    let close = line.windows(4).rposition(|w| w == b") = ")?;
    let (algorithm, digest) = (&line[..open], &line[close + 4..]);
    let named = !algorithm.is_empty() && algorithm.iter().all(|b| b.is_ascii_graphic());
    let hex = !digest.is_empty() && digest.iter().all(u8::is_ascii_hexdigit);
    (named && hex && open + 2 < close).then(|| (algorithm, &line[open + 2..close], digest))
}

fn without_mark(line: &[u8]) -> (bool, &[u8]) {
    match line.strip_prefix(b"\\") {
        Some(rest) => (true, rest),
        None => (false, line),
    }
}

fn name(line: &Line, text: &[u8], escaped: bool) -> Result<RelPath, ManifestError> {
    let bytes = if escaped {
        unescape(text).ok_or_else(|| line.refuse("the name has an unknown escape"))?
    } else {
        text.to_vec()
    };
    line.path(&bytes)
}

fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(b) = bytes.next() {
        out.push(match b {
            b'\\' => match bytes.next()? {
                b'\\' => b'\\',
                b'n' => b'\n',
                b'r' => b'\r',
                _ => return None,
            },
            other => *other,
        });
    }
    Some(out)
}

fn entry(line: &Line, blake3: bool, path: RelPath, digest: &[u8]) -> Result<Entry, ManifestError> {
    let mut out = [0; 32];
    hex::decode_to_slice(digest, &mut out)
        .map_err(|_| line.refuse("the digest does not have 64 hexadecimal digits"))?;
    let mut entry = Entry::of(path);
    if blake3 {
        // What b3sum writes in place of bytes that are not UTF-8: the name is lost.
        if entry
            .path
            .as_bytes()
            .windows(3)
            .any(|w| w == "\u{fffd}".as_bytes())
        {
            return Err(line.refuse("the name holds U+FFFD, so b3sum could not write the real one"));
        }
        entry.blake3 = Some(Blake3Digest(out));
    } else {
        entry.sha256 = Some(Sha256Digest(out));
    }
    Ok(entry)
}

impl Manifest {
    /// The manifest as `sha256sum` would have written it, for
    /// `sha256sum --check`. Sizes, modes, ignored paths and the source are lost.
    pub fn to_sha256sums(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for file in self.files() {
            let mut name = Vec::new();
            for b in file.path.as_bytes() {
                match b {
                    b'\\' => name.extend(b"\\\\"),
                    b'\n' => name.extend(b"\\n"),
                    b'\r' => name.extend(b"\\r"),
                    other => name.push(*other),
                }
            }
            if name != file.path.as_bytes() {
                out.push(b'\\');
            }
            out.extend(file.sha256.hex().into_bytes());
            out.extend(b"  ");
            out.extend(name);
            out.push(b'\n');
        }
        out
    }
}
