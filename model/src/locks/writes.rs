//! The transactions of the store that the model's sessions and clients send.

use palisade_spec::lock::{Bytes, Change, Condition, Key, Token, Transaction, Version};

use super::Bounds;

/// The model's locks.
pub(super) const LOCKS: [&str; 3] = ["k", "l", "m"];

/// The model's records.
const RECORDS: [&str; 2] = ["r", "s"];

/// A transaction that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The indexes of the records that it changes, and how.
    pub changes: &'static [(usize, What)],
    /// The indexes of the locks of which it names a grant.
    pub held: &'static [usize],
    /// The index of the record whose version it compares, and with what.
    pub compared: Option<(usize, Compared)>,
    /// The bytes that the store may have.
    pub limit: u64,
}

/// A change of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Replaces it by so many bytes.
    Put(usize),
    /// Adds so many bytes, which are others.
    Append(usize),
    /// Deletes it.
    Delete,
}

/// What the version of a record is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// There must be no such record.
    Absent,
    /// It must have a version that is the first one, or if the request has no number, any one.
    Any,
}

impl Write {
    /// The transaction, with a token for each lock that it names.
    pub(super) fn with(&self, tokens: &[Token], version: Option<Version>) -> Transaction {
        let record = |index: usize| Key::from(RECORDS[index]);
        let bytes = |text: &str, times| Bytes::from(text.repeat(times).as_str());
        let change = |&(index, what): &(usize, What)| match what {
            What::Put(length) => Change::Put { record: record(index), bytes: bytes("x", length) },
            What::Append(length) => Change::Append { record: record(index), bytes: bytes("y", length) },
            What::Delete => Change::Delete { record: record(index) },
        };
        let held = self.held.iter().zip(tokens);
        let held = held.map(|(index, token)| Condition::Held { lock: Key::from(LOCKS[*index]), token: *token });
        let compared = self.compared.map(|(index, _)| Condition::Version { record: record(index), version });
        Transaction {
            conditions: held.chain(compared).collect(),
            changes: self.changes.iter().map(change).collect(),
            limit: self.limit,
        }
    }

    /// The version that a numbered request compares.
    pub(super) fn first_version(&self) -> Option<Version> {
        self.compared.filter(|(_, compared)| *compared == Compared::Any).map(|_| Version(1))
    }

    /// The transaction with every token and every version that there may be; and the token that must have
    /// been granted before a client can know all of its tokens.
    pub(super) fn every(&self, bounds: &Bounds) -> Vec<(Token, Transaction)> {
        let versions: Vec<Option<Version>> = match self.compared {
            Some((_, Compared::Any)) => (1..=bounds.versions).map(Version).map(Some).collect(),
            Some((_, Compared::Absent)) | None => vec![None],
        };
        let mut chosen: Vec<Vec<Token>> = vec![Vec::new()];
        for _ in self.held {
            let with_each = |tokens: &Vec<Token>| {
                let tokens = tokens.clone();
                (1..=bounds.grants).map(move |token| [&tokens[..], &[Token(token)]].concat())
            };
            chosen = chosen.iter().flat_map(with_each).collect();
        }
        let known = |tokens: &[Token]| tokens.iter().copied().max().unwrap_or(Token(0));
        let all = chosen.iter().flat_map(|tokens| versions.iter().map(move |version| (tokens, *version)));
        all.map(|(tokens, version)| (known(tokens), self.with(tokens, version))).collect()
    }
}
