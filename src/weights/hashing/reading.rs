//! How a replica's files were read, for its report.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PageCache;

/// How many files were read by which way. What was in the page cache before stays
/// there with every way; `kept` alone leaves more in it than there was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// With `RWF_DONTCACHE`.
    pub dont_cache: u64,
    /// None of the file was cached, or it was known which parts were; the others were
    /// dropped behind the reader.
    pub dropped: u64,
    /// With `O_DIRECT`, past the page cache.
    pub direct: u64,
    /// Neither the kernel nor the file system offers any of these: what was read
    /// stays cached until the memory is needed.
    pub kept: u64,
}

impl Reading {
    pub(super) fn count(&mut self, way: PageCache) {
        let n = match way {
            PageCache::DontCache => &mut self.dont_cache,
            PageCache::Dropped => &mut self.dropped,
            PageCache::Direct => &mut self.direct,
            PageCache::Kept => &mut self.kept,
        };
        *n += 1;
    }

    /// Sums up over replicas.
    pub fn plus(self, other: Self) -> Self {
        Self {
            dont_cache: self.dont_cache + other.dont_cache,
            dropped: self.dropped + other.dropped,
            direct: self.direct + other.direct,
            kept: self.kept + other.kept,
        }
    }

    /// No file was read, or the report is from before this was said.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}
