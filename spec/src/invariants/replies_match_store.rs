//! Replies match the table, by the store: the one true reply to a transaction, by the rules and not by the
//! table's code.

use alloc::collections::BTreeMap;

use crate::lock::{
    Change, Condition, Key, LockTable, RECORD_BYTES, Record, Reply, Right, Sequence, SessionId, Transaction, Writer,
};

use super::{ClaimView, EntryStep};

impl EntryStep<'_> {
    /// The only reply to a transaction that is true.
    pub(super) fn transaction_reply(&self, writer: &Writer, transaction: &Transaction) -> Reply {
        let principal = match writer {
            Writer::Client(principal) => principal,
            Writer::Session { session, .. } if !self.lives(*session) => return Reply::NoSession,
            Writer::Session { session, sequence } if self.is_repeated(*session, *sequence) => {
                return self.repeated_transaction_reply(*session, *sequence, transaction);
            }
            Writer::Session { session, .. } => &self.before.sessions()[session].principal,
        };
        let may = |right, key: &Key| self.permits(Some(principal), right, key);
        let is_denied = transaction.changes.iter().any(|change| !may(Right::Write, record(change)))
            || transaction.conditions.iter().any(|condition| match condition {
                Condition::Held { .. } => false,
                Condition::Version { record, .. } => !may(Right::Read, record),
            });
        if is_denied {
            return Reply::Denied;
        }
        let unmet = transaction.conditions.iter().find_map(|condition| self.unmet(condition, transaction));
        let fenced = || self.fenced(transaction);
        let outgrown = || outgrown(self.before, transaction);
        let refusal = unmet.or_else(fenced).or_else(outgrown);
        refusal.unwrap_or(Reply::Written { version: self.before.next_version() })
    }

    /// What is left of a transaction that was done before.
    fn repeated_transaction_reply(
        &self,
        session: SessionId,
        sequence: Option<Sequence>,
        transaction: &Transaction,
    ) -> Reply {
        for change in &transaction.changes {
            if let Some(found) = self.before.record(record(change))
                && found.written.is_some_and(|(by, number)| (by, Some(number)) == (session, sequence))
            {
                return Reply::Written { version: found.version };
            }
        }
        Reply::Gone
    }

    fn unmet(&self, condition: &Condition, transaction: &Transaction) -> Option<Reply> {
        match condition {
            Condition::Held { lock, token } => {
                let is_it = |claim: ClaimView<'_>| claim.token == Some(*token) && self.lives(claim.session);
                if ClaimView::all(self.before, lock).any(is_it) {
                    return None;
                }
                let tokens = ClaimView::all(self.before, lock).filter_map(|claim| claim.token);
                let records = transaction.changes.iter().filter_map(|change| self.before.record(record(change)));
                let seen = tokens.chain(records.filter_map(|record| record.fence)).max();
                Some(Reply::NotHeld { lock: lock.clone(), token: *token, seen })
            }
            Condition::Version { record, version } => {
                let found = self.before.record(record).map(|found| found.version);
                if found == *version {
                    return None;
                }
                Some(Reply::OtherVersion { record: record.clone(), version: found })
            }
        }
    }

    fn fenced(&self, transaction: &Transaction) -> Option<Reply> {
        if transaction.conditions.iter().any(|condition| matches!(condition, Condition::Held { .. })) {
            return None;
        }
        let mut changed = transaction.changes.iter().map(record);
        changed.find_map(|key| {
            let fence = self.before.record(key)?.fence?;
            Some(Reply::Fenced { record: key.clone(), fence })
        })
    }
}

fn record(change: &Change) -> &Key {
    match change {
        Change::Put { record, .. } | Change::Append { record, .. } | Change::Delete { record } => record,
    }
}

/// The refusal of a transaction that makes a record or the store too large. It needs the lengths only.
fn outgrown(before: &LockTable, transaction: &Transaction) -> Option<Reply> {
    let length = |(key, record): (_, &Record)| (key, record.bytes.as_slice().len());
    let mut lengths: BTreeMap<&Key, usize> = before.records().iter().map(length).collect();
    let total = |lengths: &BTreeMap<&Key, usize>| -> u64 {
        lengths.iter().map(|(key, length)| (key.as_str().len() + length + 64) as u64).sum()
    };
    let was = total(&lengths);
    for change in &transaction.changes {
        let key = record(change);
        let length = match change {
            Change::Put { bytes, .. } => bytes.as_slice().len(),
            Change::Append { bytes, .. } => lengths.get(key).unwrap_or(&0) + bytes.as_slice().len(),
            Change::Delete { .. } => {
                lengths.remove(key);
                continue;
            }
        };
        if length > RECORD_BYTES {
            return Some(Reply::RecordTooLarge { record: key.clone(), length: length as u64 });
        }
        lengths.insert(key, length);
    }
    let (bytes, limit) = (total(&lengths), transaction.limit);
    (bytes > limit && bytes > was).then_some(Reply::StoreFull { bytes, limit })
}
