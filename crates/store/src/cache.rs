//! Rows of the base that were read or folded lately, within a bound of bytes. That a key has no row is
//! remembered too.

use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use types::Key;

use crate::Version;

/// What one entry costs beside its key and value.
const ENTRY_BYTES: usize = 128;
/// The guess at an entry's size from which the cache sizes its tables.
const ENTRY_BYTES_TYPICAL: usize = 384;

/// The cache. Only the store's own thread touches it, so an entry is stale only if a fold forgets to update it.
pub(crate) struct BaseCache(Cache<Key, Option<Version>, ByBytes>);

impl BaseCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self(Cache::with_weighter(bytes_max / ENTRY_BYTES_TYPICAL, bytes_max as u64, ByBytes))
    }

    /// What is known of `key`'s row: nothing, that there is none, or its version.
    pub(crate) fn get(&self, key: &Key) -> Option<&Option<Version>> {
        self.0.get(key)
    }

    pub(crate) fn insert(&mut self, key: Key, row: Option<Version>) {
        self.0.insert(key, row);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.weight()
    }
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, Option<Version>> for ByBytes {
    fn weight(&self, key: &Key, row: &Option<Version>) -> u64 {
        let value_bytes = row.as_ref().and_then(|version| version.value.as_ref()).map_or(0, |value| value.as_bytes().len());
        (ENTRY_BYTES + key.as_bytes().len() + value_bytes) as u64
    }
}
