//! git-lfs pointers: the small text that stands in a repository for a large file.
//!
//! ```text
//! version https://git-lfs.github.com/spec/v1
//! oid sha256:<64 hex>
//! size <decimal>
//! ```
//!
//! For a given content there is one such text (extensions aside), so its blob id
//! follows from SHA-256 and size.

use crate::digest::Sha256Digest;

/// Longest text that is looked at; the format allows less than this.
pub(crate) const MAX_LEN: u64 = 1024;
/// No pointer is shorter: version, digest and size have their length.
pub(crate) const MIN_LEN: u64 = 120;

/// What a pointer points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pointer {
    /// SHA-256 of the content.
    pub sha256: Sha256Digest,
    /// Length of the content in bytes.
    pub size: u64,
}

impl Pointer {
    /// The text for this content.
    pub fn text(&self) -> String {
        format!(
            "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n",
            self.sha256, self.size
        )
    }

    /// Reads a pointer. Text with more or other lines is not one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() as u64 > MAX_LEN {
            return None;
        }
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.strip_suffix('\n').unwrap_or(text).split('\n');
        let version = lines.next()?.strip_prefix("version ")?;
        if !version.starts_with("https://git-lfs.github.com/spec/") {
            return None;
        }
        let (mut sha256, mut size) = (None, None);
        for line in lines {
            let (key, value) = line.split_once(' ')?;
            match key {
                "oid" if sha256.is_none() => {
                    sha256 = Some(value.strip_prefix("sha256:")?.parse().ok()?);
                }
                "size" if size.is_none() => size = Some(value.parse().ok()?),
                extension if extension.starts_with("ext-") => {}
                _ => return None,
            }
        }
        Some(Self {
            sha256: sha256?,
            size: size?,
        })
    }
}

/// The text is a pointer, or was meant to be one: also where line ends were changed,
/// lines added, or in the format's first name.
pub fn resembles(bytes: &[u8]) -> bool {
    let starts = [
        &b"version https://git-lfs.github.com/spec/"[..],
        b"version https://hawser.github.com/spec/",
    ];
    bytes.len() as u64 <= MAX_LEN && starts.iter().any(|s| bytes.starts_with(s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn other_texts_are_no_pointers() {
        let good = Pointer {
            sha256: Sha256Digest::of(b"x"),
            size: 12,
        };
        let text = good.text();
        assert!(Pointer::parse(text.as_bytes()).is_some());
        for (from, to) in [
            ("version", "Version"),
            ("sha256:", "sha1:"),
            ("size 12\n", ""),
            ("size 12\n", "size 12\nsize 13\n"),
            ("size 12", "size -1"),
            ("size 12\n", "size 12\nfiller filler\n"),
            ("github.com", "example.com"),
        ] {
            let other = text.replace(from, to);
            assert_eq!(Pointer::parse(other.as_bytes()), None, "{other}");
        }
        assert!(MIN_LEN < text.len() as u64);
        let ext = text.replace("oid", "ext-0-foo sha256:aa\noid");
        assert_eq!(Pointer::parse(ext.as_bytes()), Some(good));
    }

    proptest! {
        #[test]
        fn pointers_round_trip(content in any::<[u8; 8]>(), size in any::<u64>()) {
            let pointer = Pointer { sha256: Sha256Digest::of(&content), size };
            prop_assert_eq!(Pointer::parse(pointer.text().as_bytes()), Some(pointer));
        }

        #[test]
        fn any_bytes_are_looked_at_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Pointer::parse(&bytes);
            let _ = Pointer::parse(&[b"version https://git-lfs.github.com/spec/v1\n", &bytes[..]].concat());
        }
    }
}
