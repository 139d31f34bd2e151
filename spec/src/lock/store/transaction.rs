//! A client's request to the store: changes, and the conditions under which they are made.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Bytes, Version};
use crate::lock::{Key, Principal, Sequence, SessionId, Token};

/// Changes of records that are made together if all conditions are met, and otherwise not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transaction {
    /// What must be the case at the entry.
    pub conditions: Vec<Condition>,
    /// What is changed, in order.
    pub changes: Vec<Change>,
    /// The bytes that the whole store may have afterwards. The proposer's setting: it is in the entry, so
    /// that all replicas decide alike.
    pub limit: u64,
}

/// Something that must be the case for a transaction to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Condition {
    /// The grant of this token on this lock is held, by a session that is not due.
    Held {
        /// The key of the lock.
        lock: Key,
        /// The token of the grant.
        token: Token,
    },
    /// The record has this version.
    Version {
        /// The key of the record.
        record: Key,
        /// Its version; `None`: there is no such record.
        version: Option<Version>,
    },
}

/// A change of one record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Change {
    /// Gives the record this content, whether or not it exists.
    Put {
        /// The key of the record.
        record: Key,
        /// Its new content.
        bytes: Bytes,
    },
    /// Adds to the content of the record; one that does not exist begins empty.
    Append {
        /// The key of the record.
        record: Key,
        /// What is added.
        bytes: Bytes,
    },
    /// Removes the record, if it exists.
    Delete {
        /// The key of the record.
        record: Key,
    },
}

/// The client that asks for a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Writer {
    /// A client without a session. It numbers nothing: what it repeats is done again, unless a condition
    /// prevents it.
    Client(Principal),
    /// A session, with the rights of its client.
    Session {
        /// The session.
        session: SessionId,
        /// The operation's number.
        sequence: Option<Sequence>,
    },
}

impl Transaction {
    /// The number of conditions and changes that a transaction may have together. The server enforces it,
    /// the table does not.
    pub const OPERATIONS: usize = 32;

    /// The length of the keys and contents in it.
    pub fn bytes(&self) -> usize {
        let keys = self.conditions.iter().map(|condition| match condition {
            Condition::Held { lock: key, .. } | Condition::Version { record: key, .. } => key.as_str().len(),
        });
        let changes = self.changes.iter().map(|change| match change {
            Change::Put { record, bytes } | Change::Append { record, bytes } => record.as_str().len() + bytes.len(),
            Change::Delete { record } => record.as_str().len(),
        });
        keys.chain(changes).sum()
    }

    /// The greatest token that it must hold; `None` if it need not hold any.
    pub(super) fn fence(&self) -> Option<Token> {
        let tokens = self.conditions.iter().filter_map(|condition| match condition {
            Condition::Held { token, .. } => Some(*token),
            Condition::Version { .. } => None,
        });
        tokens.max()
    }
}

impl Change {
    /// The key of the record.
    pub fn record(&self) -> &Key {
        match self {
            Change::Put { record, .. } | Change::Append { record, .. } | Change::Delete { record } => record,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariants::states::{append, delete, put, under};

    /// Goal: what a transaction counts for a limit is its keys and its contents, of conditions and changes.
    #[test]
    fn transaction_counts_its_keys_and_contents() {
        let transaction = under(&[put("ab", "cde"), append("f", "gh"), delete("ijkl")], &[("mnopq", 7)]);
        assert_eq!(transaction.bytes(), 5 + 3 + 4 + 5);
        assert_eq!(under(&[], &[]).bytes(), 0);
    }
}
