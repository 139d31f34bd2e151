//! What clients write in the key-value store under their locks, and what they read there.

use std::sync::atomic::Ordering;

use palisade_client::wire::{Code, Consistency, Failure};
use palisade_client::{Client, Error, Guard};
use palisade_history::{self as history, Answer, Call, Change, Condition, Pending, RecordChange, Refusal};
use rand::Rng;
use rand::rngs::SmallRng;

use super::Load;
use super::counts::increment;
use super::lock_spec::{LockSpec, any_key};
use crate::{shown, transactions};

/// How many of the transactions compare the version of a record, which the client reads before.
pub(super) const COMPARES: f64 = 0.4;

impl Load {
    /// Changes the record of a lock that a guard holds, or held.
    pub(super) async fn write_record(
        &self,
        client: &Client,
        guard: &mut Guard,
        key: &str,
        spec: &LockSpec,
        name: &history::Client,
        random: &mut SmallRng,
    ) {
        let read = if random.random_bool(COMPARES) { self.read_version(client, key, name).await } else { None };
        let mut call = self.draw_transaction(key, spec, guard.token(), read, random);
        let transaction = transactions::on_wire(&call);
        // The guard adds the condition that its lock is held, and gives the transaction a number.
        if let Call::WriteRecord { token, number, .. } = &mut call {
            (*token, *number) = (Some(guard.token()), Some(0));
        }
        let pending = self.recorder.invoke(name, call.clone());
        match guard.transact(transaction).await {
            Ok(version) => {
                self.counts.count_change(&call);
                return pending.ok(Answer::Written { version });
            }
            // The number is used up: no attempt has done it, or will.
            Err(Error::Refused(failure)) if failure.error == Code::OtherVersion => {
                self.end_by_other_version(pending, name, failure);
            }
            // An attempt whose answer was lost may have done it.
            Err(error) => pending.info(error.to_string()),
        }
        increment(&self.counts.not_changed);
    }

    /// A transaction was refused because of another version, which the refusal must name.
    pub(super) fn end_by_other_version(&self, pending: Pending, name: &history::Client, failure: Failure) {
        increment(&self.counts.other_version);
        if let Some(version) = failure.version {
            return pending.fail(Refusal::OtherVersion { version });
        }
        let complaint = format!("{name} was refused because of a version that is not named: {}", failure.message);
        self.complaints.lock().push(complaint);
        pending.info(failure.message);
    }

    /// Reads a record with the Rust client, and returns its version; 0 if it does not exist.
    async fn read_version(&self, client: &Client, key: &str, name: &history::Client) -> Option<u64> {
        let pending = self.recorder.invoke(name, Call::ReadRecord { record: key.into(), stale: false });
        // Without an answer the operation is dropped, which records it as unknown.
        let record = client.record(key, Consistency::Linearizable).await.ok()?;
        increment(&self.counts.record_reads);
        pending.ok(record.as_ref().map_or(Answer::NoRecord, shown::record));
        Some(record.map_or(0, |record| record.version))
    }

    /// A transaction under a grant, without the token of its first record's lock: it changes the record of a lock,
    /// sometimes together with another record, whose lock the grant may be of too. If the client has read a version of
    /// the record, it compares that one, or a wrong one.
    pub(super) fn draw_transaction(
        &self,
        key: &str,
        spec: &LockSpec,
        token: u64,
        read: Option<u64>,
        random: &mut SmallRng,
    ) -> Call {
        let (mut also, mut conditions) = (Vec::new(), Vec::new());
        if random.random_bool(0.4) {
            let own = spec.keys.iter().find(|other| *other != key).cloned();
            let other = own.filter(|_| random.random_bool(0.7)).unwrap_or_else(|| any_key(random));
            if spec.keys.contains(&other) && other != key {
                conditions.push(Condition::Held { lock: other.as_str().into(), token });
            }
            if other != key {
                also.push(RecordChange { record: other.as_str().into(), change: self.draw_change(random) });
            }
        }
        conditions.extend(read.map(|version| {
            let version = match random.random_range(0..8) {
                0 => version + 1,
                1 => version.saturating_sub(1),
                _ => version,
            };
            Condition::Version { key: key.into(), version }
        }));
        let (record, change) = (key.into(), self.draw_change(random));
        Call::WriteRecord { record, change, also, token: None, conditions, session: None, number: None }
    }

    /// A text that nothing else has.
    pub(super) fn new_text(&self) -> String {
        format!("{};", self.texts.fetch_add(1, Ordering::Relaxed))
    }

    /// No two changes write the same text.
    fn draw_change(&self, random: &mut SmallRng) -> Change {
        let text = self.new_text();
        match random.random_range(0..20) {
            0 => Change::Delete,
            1..4 => Change::Put(text.as_str().into()),
            _ => Change::Append(text.as_str().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_client::Security;
    use palisade_history::{End, Recorder};

    use super::*;

    #[test]
    fn refusal_that_names_no_version_is_a_complaint() {
        for version in [Some(3), None] {
            let recorder = Recorder::in_memory();
            let load = Load::new(Vec::new(), Security::default(), recorder.clone());
            let conditions = vec![Condition::Version { key: "k".into(), version: 1 }];
            let (record, change) = ("k".into(), Change::Delete);
            let call = Call::WriteRecord {
                record,
                change,
                also: Vec::new(),
                token: None,
                conditions,
                session: None,
                number: None,
            };
            let name = "a".into();
            let failure = Failure { version, ..Failure::new(Code::OtherVersion, "another version".to_owned()) };
            load.end_by_other_version(recorder.invoke(&name, call), &name, failure);
            let history = recorder.history().unwrap();
            let (_, end) = history.operations[0].end.as_ref().unwrap();
            match version {
                Some(version) => assert_eq!(*end, End::Fail(Refusal::OtherVersion { version })),
                None => assert!(matches!(end, End::Info(_)), "{end:?}"),
            }
            assert_eq!(load.complaints().len(), usize::from(version.is_none()));
        }
    }
}
