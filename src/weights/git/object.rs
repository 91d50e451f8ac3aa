//! Git objects as bytes: ids, commits and trees.

use sha1::{Digest, Sha1};

use super::pointer::Pointer;
use crate::digest::Sha256Digest;
use crate::weights::values::GitId;

/// The id of an object: SHA-1 over `kind length\0bytes`.
pub(super) fn object_id(kind: &str, bytes: &[u8]) -> GitId {
    let mut hasher = Sha1::new();
    hasher.update(format!("{kind} {}\0", bytes.len()));
    hasher.update(bytes);
    GitId(hasher.finalize().into())
}

/// The git blob id of a content.
pub fn blob_id(bytes: &[u8]) -> GitId {
    object_id("blob", bytes)
}

/// The blob id of the git-lfs pointer to a content.
pub(crate) fn pointer_blob_id(sha256: Sha256Digest, size: u64) -> GitId {
    blob_id(Pointer { sha256, size }.text().as_bytes())
}

/// The git blob id of a content of known length, fed piece by piece.
pub(crate) struct BlobHasher(Sha1);

impl BlobHasher {
    pub fn new(len: u64) -> Self {
        let mut hasher = Sha1::new();
        hasher.update(format!("blob {len}\0"));
        Self(hasher)
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn finish(self) -> GitId {
        GitId(self.0.finalize().into())
    }
}

/// The root tree of a commit: its first line says so.
pub(super) fn tree_of(commit: &[u8]) -> Result<GitId, String> {
    let line = commit.split(|b| *b == b'\n').next().unwrap_or_default();
    let id = line.strip_prefix(b"tree ").map(String::from_utf8_lossy);
    id.ok_or("the commit does not begin with its tree")?.parse()
}

/// What an entry of a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    File,
    Folder,
    /// A symbolic link or another repository.
    Other,
}

/// One entry of a tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TreeEntry<'a> {
    pub kind: EntryKind,
    pub name: &'a [u8],
    pub id: GitId,
}

/// The entries of a tree: `mode name\0` and twenty bytes of id, one after the
/// other.
pub(super) fn tree_entries(mut bytes: &[u8]) -> Result<Vec<TreeEntry<'_>>, String> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let at = |b: u8| bytes.iter().position(|x| *x == b);
        let (Some(space), Some(nul)) = (at(b' '), at(0)) else {
            return Err("an entry has no mode or no name".to_owned());
        };
        if space > nul {
            return Err("an entry has no mode".to_owned());
        }
        let (mode, name) = (&bytes[..space], &bytes[space + 1..nul]);
        let kind = match mode {
            b"40000" => EntryKind::Folder,
            b"100644" | b"100755" | b"100664" => EntryKind::File,
            b"120000" | b"160000" => EntryKind::Other,
            _ => return Err("an entry has an unknown mode".to_owned()),
        };
        if name.is_empty() || name.contains(&b'/') {
            return Err("an entry has an impossible name".to_owned());
        }
        let rest = &bytes[nul + 1..];
        let Some((id, rest)) = rest.split_first_chunk::<20>() else {
            return Err("an entry has no id".to_owned());
        };
        out.push(TreeEntry {
            kind,
            name,
            id: GitId(*id),
        });
        bytes = rest;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_are_those_of_git() {
        // `git hash-object` of nothing, of "hello\n"; the empty tree.
        for (kind, bytes, id) in [
            ("blob", &b""[..], "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
            (
                "blob",
                b"hello\n",
                "ce013625030ba8dba906f756967f9e9ca394464a",
            ),
            ("tree", b"", "4b825dc642cb6eb9a060e54bf8d69288fbee4904"),
        ] {
            assert_eq!(object_id(kind, bytes).to_string(), id);
        }
        let mut hasher = BlobHasher::new(6);
        hasher.update(b"hel");
        hasher.update(b"lo\n");
        assert_eq!(hasher.finish(), blob_id(b"hello\n"));
    }

    #[test]
    fn malformed_trees_are_refused() {
        let good = [b"100644 a\0".as_slice(), &[7; 20]].concat();
        assert_eq!(tree_entries(&good).unwrap().len(), 1);
        for bad in [
            &good[..good.len() - 1],
            b"100644",
            b"\0 ",
            &[b"100644 \0".as_slice(), &[7; 20]].concat(),
            &[b"100644 a/b\0".as_slice(), &[7; 20]].concat(),
            &[b"777 a\0".as_slice(), &[7; 20]].concat(),
        ] {
            assert!(tree_entries(bad).is_err(), "{bad:?}");
        }
        assert!(tree_of(b"parent x").is_err());
        assert!(tree_of(b"tree zz\n").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_not_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = tree_entries(&bytes);
            let _ = tree_of(&bytes);
        }
    }
}
