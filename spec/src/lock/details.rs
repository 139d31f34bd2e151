//! A claim's further keys, and its value: most claims have neither.

use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use super::keys::Several;
use super::{Key, Keys, Value};

/// The bytes that a claim counts beside its keys and its value: an entry of the table, with its share of what
/// finds it.
const CLAIM_COST: u64 = 64;

/// All keys of a claim, if there are several, and its value, if it has one. Most claims have neither and
/// need 8 bytes for that. The parts of one claim, at each of its keys, share the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Content", into = "Content")]
pub(super) struct Details(Option<Arc<Content>>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename = "Details")]
struct Content {
    several: Option<Several>,
    value: Option<Value>,
}

impl Details {
    /// Those of most claims.
    pub(super) const NONE: Details = Details(None);

    pub(super) fn new(keys: &Keys, value: Option<Value>) -> Details {
        Content { several: keys.several().cloned(), value }.into()
    }

    /// All keys of the claim; `key` is one of them.
    pub(super) fn keys(&self, key: &Key) -> Keys {
        Keys::of(key, self.several())
    }

    /// The same keys, without a copy.
    pub(super) fn all_keys<'a>(&'a self, key: &'a Key) -> &'a [Key] {
        self.several().map_or(core::slice::from_ref(key), Several::as_slice)
    }

    /// Whether these are all keys of the claim; one of them is.
    pub(super) fn claims_exactly(&self, keys: &Keys) -> bool {
        self.several() == keys.several()
    }

    /// All keys of the claim, if there are several.
    pub(super) fn several(&self) -> Option<&Several> {
        self.0.as_ref()?.several.as_ref()
    }

    /// The bytes that a claim with these details counts at a key.
    pub(super) fn bytes(&self, key: &Key) -> u64 {
        claim_bytes(key, self.several(), self.value())
    }

    /// The claim's value.
    pub(super) fn value(&self) -> Option<&Value> {
        self.0.as_ref()?.value.as_ref()
    }
}

/// The bytes that a claim counts at each of its keys: the key, all keys if there are several, the value, and
/// [`CLAIM_COST`] more.
pub(super) fn claim_bytes(key: &Key, several: Option<&Several>, value: Option<&Value>) -> u64 {
    let length = |key: &Key| key.as_str().len();
    let several: usize = several.map_or(0, |keys| keys.as_slice().iter().map(length).sum());
    (length(key) + several + value.map_or(0, |value| value.as_str().len())) as u64 + CLAIM_COST
}

impl From<Content> for Details {
    fn from(content: Content) -> Details {
        Details((content != Content::default()).then(|| Arc::new(content)))
    }
}

impl From<Details> for Content {
    fn from(Details(content): Details) -> Content {
        content.map(|content| (*content).clone()).unwrap_or_default()
    }
}
