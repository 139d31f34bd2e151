//! Sources of fencing tokens, so that an experiment can compare them.
//!
//! | source | costs | backends |
//! |---|---|---|
//! | `per-key` | one counter for every key that was ever locked; nothing may delete it, or tokens start again at 1 | redis, redlock, etcd |
//! | `sharded:N` | N counters in all; a key's counter is found by its hash | redis, etcd |
//! | `global` | one counter, which every acquire writes | redis, etcd |
//! | `revision` | nothing: the store numbers its writes anyway (etcd's revision, ZooKeeper's zxid, Palisade's log) | etcd, zookeeper, palisade |
//!
//! All of them grow strictly with every grant of one key, as long as the store loses no write. With `per-key`, tokens of
//! different keys cannot be compared; with the others they can where the counter is common.

use std::fmt;
use std::str::FromStr;

use super::Backend;

/// Where a fencing token comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// As the lab's table of backends has it: `per-key` for Redis, `revision` for the others.
    Default,
    /// A counter of the key's own.
    PerKey,
    /// This many counters; each key has one of them.
    Sharded(u32),
    /// One counter for all keys.
    Global,
    /// The number that the store gives to the write that takes the lock, or queues for it.
    Revision,
}

impl Tokens {
    /// Whether the backend can make such tokens.
    #[must_use]
    pub fn fits(self, backend: Backend) -> bool {
        match backend {
            Backend::Redis => self != Tokens::Revision,
            Backend::Redlock => matches!(self, Tokens::Default | Tokens::PerKey),
            Backend::Etcd => true,
            Backend::EtcdLock | Backend::ZooKeeper | Backend::Palisade => {
                matches!(self, Tokens::Default | Tokens::Revision)
            }
        }
    }

    /// Whether all grants count in one place, so that tokens of different keys can be compared.
    #[must_use]
    pub fn are_common(self) -> bool {
        matches!(self, Tokens::Global | Tokens::Revision)
    }

    /// The name of the counter of `key`, where tokens are counted; `by_default` is what [`Tokens::Default`] stands for.
    pub(super) fn counter(self, key: &str, by_default: Tokens) -> Option<String> {
        match if self == Tokens::Default { by_default } else { self } {
            Tokens::Default | Tokens::Revision => None,
            Tokens::PerKey => Some(format!("fence:{key}")),
            Tokens::Sharded(shards) => Some(format!("fences:{}", hash(key) % shards.max(1))),
            Tokens::Global => Some("fences".to_owned()),
        }
    }

    /// The counters of all keys that begin with `prefix`, where tokens are counted.
    pub(crate) fn counters(self, prefix: &str) -> Option<Counters> {
        match self {
            Tokens::Default | Tokens::Revision => None,
            Tokens::PerKey => Some(Counters::Prefix(format!("fence:{prefix}"))),
            Tokens::Sharded(_) => Some(Counters::Prefix("fences:".to_owned())),
            Tokens::Global => Some(Counters::One("fences".to_owned())),
        }
    }
}

/// Which counters there are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Counters {
    /// The one of this name.
    One(String),
    /// All whose names begin with this.
    Prefix(String),
}

/// CRC-32C: the same in every process and every version, which std's hashers do not promise.
fn hash(key: &str) -> u32 {
    crc32c::crc32c(key.as_bytes())
}

impl FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Tokens, String> {
        match (text, text.strip_prefix("sharded:").map(str::parse)) {
            ("default", _) => Ok(Tokens::Default),
            ("per-key", _) => Ok(Tokens::PerKey),
            ("global", _) => Ok(Tokens::Global),
            ("revision", _) => Ok(Tokens::Revision),
            (_, Some(Ok(shards))) if shards > 0 => Ok(Tokens::Sharded(shards)),
            _ => Err(format!("{text:?} is none of default, per-key, global, revision, and sharded:N with N from 1")),
        }
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tokens::Default => f.write_str("default"),
            Tokens::PerKey => f.write_str("per-key"),
            Tokens::Sharded(shards) => write!(f, "sharded:{shards}"),
            Tokens::Global => f.write_str("global"),
            Tokens::Revision => f.write_str("revision"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_as_its_source() {
        for tokens in [Tokens::Default, Tokens::PerKey, Tokens::Sharded(16), Tokens::Global, Tokens::Revision] {
            assert_eq!(tokens.to_string().parse(), Ok(tokens));
        }
        for wrong in ["", "sharded", "sharded:0", "sharded:-1", "counter"] {
            assert!(wrong.parse::<Tokens>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn shards_are_stable_and_all_used() {
        let shards = Tokens::Sharded(4);
        let counter = |key: &str| shards.counter(key, Tokens::PerKey).unwrap();
        assert_eq!(counter("nightly"), counter("nightly"));
        let used: std::collections::BTreeSet<_> = (0..100).map(|i| counter(&format!("key-{i}"))).collect();
        assert_eq!(used.into_iter().collect::<Vec<_>>(), ["fences:0", "fences:1", "fences:2", "fences:3"]);
        // The reference value of CRC-32C.
        assert_eq!(hash("123456789"), 0xe306_9283);
    }

    #[test]
    fn counters_of_a_prefix_are_those_of_its_keys() {
        for tokens in [Tokens::PerKey, Tokens::Sharded(16), Tokens::Global] {
            let name = tokens.counter("night-1", Tokens::Revision).unwrap();
            let found = |prefix: &str| match tokens.counters(prefix).unwrap() {
                Counters::One(one) => name == one,
                Counters::Prefix(prefix) => name.starts_with(&prefix),
            };
            assert!(found("night-"), "{tokens}");
            assert_eq!(found("day-"), tokens != Tokens::PerKey, "{tokens}");
        }
        assert_eq!(Tokens::Revision.counters("night-"), None);
    }

    #[test]
    fn only_counters_have_a_name() {
        assert_eq!(Tokens::Default.counter("k", Tokens::PerKey).as_deref(), Some("fence:k"));
        assert_eq!(Tokens::Default.counter("k", Tokens::Revision), None);
        assert_eq!(Tokens::Global.counter("k", Tokens::PerKey).as_deref(), Some("fences"));
    }
}
