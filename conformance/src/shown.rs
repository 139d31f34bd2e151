//! What the answers of a node show the clients of a simulation or a torture, as histories have it.

use palisade_client::wire::{self, LockView};
use palisade_history::{Answer, Holder, Mode, Session};

/// A session, by its public number.
pub(crate) fn session(credential: wire::SessionId) -> Session {
    numbered_session(credential.number())
}

/// The same, by the number, which is all that lists show.
pub(crate) fn numbered_session(number: u64) -> Session {
    Session::from(number.to_string().as_str())
}

/// What a read shows of a lock.
pub(crate) fn lock(view: &LockView, age_ms: Option<u64>) -> Answer {
    let holders = view.holders.iter().map(|holder| {
        let mode = match (holder.mode, holder.permits, holder.of) {
            (wire::Mode::Shared, ..) => Mode::Shared,
            (wire::Mode::Semaphore, Some(permits), Some(of)) => Mode::Semaphore { permits, of },
            _ => Mode::Exclusive,
        };
        let value = holder.value.as_deref().map(Into::into);
        Holder { session: numbered_session(holder.session), token: holder.token, mode, value }
    });
    let queue = view.queue.iter().map(|waiter| numbered_session(waiter.session)).collect();
    Answer::Lock { holders: holders.collect(), queue, age_ms }
}

/// What a read shows of a record, whose content is a text.
pub(crate) fn record(record: &wire::RecordView) -> Answer {
    let value = record.value.as_text().expect("clients write texts").into();
    Answer::Record { version: record.version, value }
}
