//! Transactions of the key-value store: what a client asks for as a command, and the replies as answers,
//! with the sentences that say why a transaction was not done.

use palisade_client::wire::{self, Answer, Code, Content, Failure};
use palisade_spec::lock::{
    Bytes, Change, Command, Condition, Key, LockTable, Principal, RECORD_BYTES, Reply, Right, Token, Transaction,
    Version, Writer,
};
use palisade_spec::raft::MAX_NUMBER;

use super::access;
use super::credential::{Secret, session_id};
use super::sessions::no_session;
use super::validate::{invalid, sequence, valid_key};
use crate::limits;

/// The command of a transaction, and the secret of its session. Its limit is the leader's, which is still
/// to be set.
///
/// # Errors
/// [`Code::Invalid`] or [`Code::TooLarge`], with a message that names the field and its bounds.
pub(super) fn command(
    asked: wire::Transaction,
    number: Option<u64>,
    principal: &Principal,
) -> Result<(Command, Secret), Failure> {
    let wire::Transaction { session, conditions, changes } = asked;
    let operations = conditions.len() + changes.len();
    if operations > Transaction::OPERATIONS {
        let most = Transaction::OPERATIONS;
        return Err(invalid(format!("the transaction has {operations} conditions and changes; it may have {most}")));
    }
    if changes.is_empty() {
        return Err(invalid("the transaction has no changes; it needs one at least"));
    }
    let transaction = Transaction {
        conditions: conditions.iter().map(condition).collect::<Result<_, _>>()?,
        changes: changes.into_iter().map(change).collect::<Result<_, _>>()?,
        limit: 0,
    };
    let bytes = transaction.bytes();
    if bytes > limits::TRANSACTION_BYTES {
        let most = limits::TRANSACTION_BYTES;
        let message = format!("the keys and contents of the transaction have {bytes} bytes; they may have {most}");
        return Err(Failure::new(Code::TooLarge, message));
    }
    let (writer, secret) = match session {
        Some(session) => {
            let id = session_id(session, principal.as_str());
            (Writer::Session { session: id, sequence: sequence(number)? }, Secret::of(session))
        }
        None if number.is_some() => {
            return Err(invalid("an operation has a number only within a session; give `session` too"));
        }
        None => (Writer::Client(principal.clone()), Secret::draw()),
    };
    Ok((Command::Transact { writer, transaction }, secret))
}

fn condition(asked: &wire::Condition) -> Result<Condition, Failure> {
    match asked {
        wire::Condition::Held { lock, token } => Ok(Condition::Held { lock: valid_key(lock)?, token: Token(*token) }),
        wire::Condition::Version { key, version } if *version > MAX_NUMBER => {
            Err(invalid(format!("the version of {key} is {version}; it may be 0 to {MAX_NUMBER}")))
        }
        wire::Condition::Version { key, version } => {
            let version = (*version > 0).then_some(Version(*version));
            Ok(Condition::Version { record: valid_key(key)?, version })
        }
    }
}

fn change(asked: wire::RecordChange) -> Result<Change, Failure> {
    let record = valid_key(asked.key())?;
    let bytes = |Content(content)| match content.len() {
        0..=RECORD_BYTES => Ok(Bytes::from(content)),
        length => Err(too_large(&record, length as u64)),
    };
    Ok(match asked {
        wire::RecordChange::Put { value, .. } => Change::Put { bytes: bytes(value)?, record },
        wire::RecordChange::Append { value, .. } => Change::Append { bytes: bytes(value)?, record },
        wire::RecordChange::Delete { .. } => Change::Delete { record },
    })
}

fn too_large(record: &Key, length: u64) -> Failure {
    let message = format!("the content of {record} would have {length} bytes; it may have {RECORD_BYTES}");
    Failure::new(Code::TooLarge, message)
}

/// The answer to a transaction with this reply.
pub(super) fn answer(
    table: &LockTable,
    writer: &Writer,
    transaction: &Transaction,
    reply: Reply,
) -> Result<Answer, Failure> {
    Err(match reply {
        Reply::Written { version } => return Ok(Answer::Written { version: version.0 }),
        Reply::NotHeld { lock, token, seen } => {
            // A client that may not read the lock is not told whether another client holds it.
            let shows = table.access().permits(&principal(table, writer), Right::Read, lock.as_str());
            let now = match seen {
                _ if !shows => String::new(),
                Some(seen) if seen > token => format!(": token {seen} was granted after it"),
                Some(seen) if seen == token => " any more: its lease has ended, or it was released".to_owned(),
                Some(seen) => format!(": the greatest token known there is {seen}"),
                None => ": no session holds it now".to_owned(),
            };
            let message = format!("{lock} is not held with token {token}{now}; nothing was changed");
            let seen = seen.filter(|_| shows).map(|seen| seen.0);
            Failure { seen, got: Some(token.0), ..Failure::new(Code::StaleToken, message) }
        }
        Reply::Fenced { record, fence } => {
            let message = format!(
                "{record} was written under token {fence}, and this request has no token: acquire the lock, and send its \
                 token (X-Fence-Token); nothing was changed"
            );
            Failure { seen: Some(fence.0), ..Failure::new(Code::StaleToken, message) }
        }
        Reply::OtherVersion { record, version } => {
            let message = match version {
                Some(version) => format!("{record} has version {version}; nothing was changed"),
                None => format!("{record} does not exist; nothing was changed"),
            };
            let version = Some(version.map_or(0, |version| version.0));
            Failure { version, ..Failure::new(Code::OtherVersion, message) }
        }
        Reply::RecordTooLarge { record, length } => too_large(&record, length),
        Reply::StoreFull { bytes, limit } => {
            let message = format!(
                "all records would have {bytes} bytes, and may have {limit} (keys, contents, and 64 bytes for each): delete \
                 records, or let the operator raise --max-store-bytes; nothing was changed"
            );
            Failure::new(Code::StoreFull, message)
        }
        Reply::Gone => {
            let message = "the transaction was decided before, and no record that it changed shows it any more: read the \
                           records";
            Failure::new(Code::Gone, message)
        }
        Reply::NoSession => match writer {
            Writer::Session { session, .. } => no_session(table, *session),
            Writer::Client(_) => unreachable!("a client without a session needs none"),
        },
        Reply::Denied => denied(table, writer, transaction),
        reply => unreachable!("a transaction was answered with {reply:?}"),
    })
}

/// The principal that asked for a transaction; none if its session has ended.
fn principal(table: &LockTable, writer: &Writer) -> Principal {
    match writer {
        Writer::Client(principal) => principal.clone(),
        Writer::Session { session, .. } => {
            table.session(*session).map(|session| session.principal.clone()).unwrap_or_default()
        }
    }
}

fn denied(table: &LockTable, writer: &Writer, transaction: &Transaction) -> Failure {
    let principal = &principal(table, writer);
    let writes = transaction.changes.iter().map(|change| (Right::Write, change.record()));
    let compares = transaction.conditions.iter().filter_map(|condition| match condition {
        Condition::Version { record, .. } => Some((Right::Read, record)),
        Condition::Held { .. } => None,
    });
    let may = |&(right, key): &(Right, &Key)| table.access().permits(principal, right, key.as_str());
    let all = || writes.clone().chain(compares.clone());
    let (right, key) = all().find(|needed| !may(needed)).or_else(|| all().next()).expect("it has changes");
    access::denied(table.access(), principal, right, key.as_str())
}
