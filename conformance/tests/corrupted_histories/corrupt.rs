//! Corruptions of valid histories. Each is impossible for a correct service, whatever the unknown
//! outcomes were; the comment on each kind says why. A checker that accepts one has a gap.

use std::collections::BTreeSet;

use palisade_history::{
    Answer, Call, Change, Condition, End, History, Holder, Key, Mode, Operation, Refusal, Session, Time,
};

use super::valid::{Grant, Valid};

/// The kinds of corruption.
pub(crate) const KINDS: [(&str, Kind); 25] = [
    ("lower token, other key", lower_token_on_another_key),
    ("lower token, same key", lower_token_on_the_same_key),
    ("lower token, acquire unanswered", lower_token_unanswered),
    ("tokens swapped", swap_tokens),
    ("token duplicated", duplicate_token),
    ("granted before the release", grant_before_the_release),
    ("release dropped", drop_release),
    ("granted out of queue order", grant_out_of_order),
    ("queue of a read reversed", reverse_queue),
    ("lower token accepted", accept_lower_token),
    ("read shows an older holder", show_older_holder),
    ("read shows a free lock", show_free_lock),
    ("read shows a later holder", show_later_holder),
    ("session ended early", end_session_early),
    ("access before the grant", access_before_the_grant),
    ("refused by an older holder", refused_by_an_older_holder),
    ("read hides one of the holders", hide_a_holder),
    ("more permits than there are", raise_permits),
    ("read shows another mode", show_another_mode),
    (OTHER_VALUE, show_another_value),
    ("written with a shared grant", write_with_a_shared_grant),
    ("one of several keys released", release_one_of_several),
    ("found an older version", compare_with_an_older_version),
    ("refused the version that is there", refuse_the_present_version),
    ("read does not show a transaction", hide_a_transaction),
];

/// The kind that the checker of values must refuse.
pub(crate) const OTHER_VALUE: &str = "read shows another value";

/// All corruptions of one kind that are possible in a history.
pub(crate) type Kind = fn(&Valid<'_>) -> Vec<Corruption>;

/// What is changed.
#[expect(clippy::large_enum_variant, reason = "a few thousand of them at a time, in a test")]
pub(crate) enum Corruption {
    /// A token becomes another one wherever it occurs; optionally an operation changes too.
    Token { old: u64, new: u64, operation: Option<(usize, Operation)> },
    /// Two tokens are exchanged wherever they occur.
    Swap(u64, u64),
    /// An operation is replaced by another one.
    Operation(usize, Box<Operation>),
    /// An operation is removed from the record.
    Removed(usize),
}

impl Corruption {
    pub(crate) fn apply(&self, valid: &History) -> History {
        let mut history = valid.clone();
        match self {
            Corruption::Token { old, new, operation } => {
                if let Some((index, operation)) = operation {
                    history.operations[*index] = operation.clone();
                }
                map_tokens(&mut history, |token| if token == *old { *new } else { token });
            }
            Corruption::Swap(one, other) => map_tokens(&mut history, |token| match token {
                _ if token == *one => *other,
                _ if token == *other => *one,
                _ => token,
            }),
            Corruption::Operation(index, operation) => history.operations[*index] = (**operation).clone(),
            Corruption::Removed(index) => drop(history.operations.remove(*index)),
        }
        history.operations.sort_by_key(|operation| operation.invoked);
        history
    }
}

/// A copy of a history with unused tokens between any two.
pub(crate) fn spread(history: &History) -> History {
    let mut copy = history.clone();
    map_tokens(&mut copy, |token| token * 1_000);
    copy
}

fn map_tokens(history: &mut History, map: impl Fn(u64) -> u64) {
    let change = |token: &mut u64| *token = map(*token);
    for operation in &mut history.operations {
        if let Call::Release { token, .. }
        | Call::Proclaim { token, .. }
        | Call::Break { token, .. }
        | Call::Access { token, .. } = &mut operation.call
        {
            change(token);
        }
        if let Call::WriteRecord { token, conditions, .. } = &mut operation.call {
            token.iter_mut().for_each(change);
            for condition in conditions {
                if let Condition::Held { token, .. } = condition {
                    change(token);
                }
            }
        }
        match operation.end.as_mut().map(|(_, end)| end) {
            Some(End::Ok(Answer::Granted { token, .. }) | End::Fail(Refusal::Held { token: Some(token) })) => {
                change(token);
            }
            Some(End::Ok(Answer::Lock { holders, .. })) => {
                holders.iter_mut().for_each(|holder| change(&mut holder.token));
            }
            _ => {}
        }
    }
}

impl Valid<'_> {
    /// Replaces the end of an operation.
    fn ends(&self, index: usize, end: End) -> Corruption {
        let mut operation = self.history.operations[index].clone();
        operation.end = operation.end.map(|(time, _)| (time, end));
        Corruption::Operation(index, Box::new(operation))
    }

    /// Makes a read show this holder and an empty queue.
    fn shows(&self, index: usize, grant: Option<&Grant<'_>>) -> Corruption {
        let shown = |grant: &Grant<'_>| Holder {
            session: grant.session.clone(),
            token: grant.token,
            mode: grant.mode,
            value: None,
        };
        let holder = grant.map(shown);
        let holders = holder.into_iter().collect();
        self.ends(index, End::Ok(Answer::Lock { holders, queue: Vec::new(), age_ms: None }))
    }
}

fn token(old: u64, new: u64) -> Corruption {
    Corruption::Token { old, new, operation: None }
}

/// Tokens grow with every grant in the cluster: a grant that was requested after another one was
/// acknowledged has the higher token. The new token is above those of all other grants of its own
/// key, so that only the other key reveals the corruption.
fn lower_token_on_another_key(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for later in valid.fresh() {
        let of_key = valid.grants.iter().filter(|other| other.meets(later) && other.token < later.token);
        let floor = of_key.map(|other| other.token).max().unwrap_or(0);
        let first =
            valid.before(later).filter(|first| !first.meets(later) && first.token > floor && first.token < later.token);
        corrupted.extend(first.last().map(|first| token(later.token, first.token - 1)));
    }
    corrupted
}

/// The same on one key.
fn lower_token_on_the_same_key(valid: &Valid<'_>) -> Vec<Corruption> {
    let pairs = valid.in_order().filter(|(first, later)| first.meets(later));
    pairs.map(|(first, later)| token(later.token, first.token - 1)).collect()
}

/// The same with the later acquire unanswered: its release shows its token, and only this acquire,
/// which was invoked after the first grant was acknowledged, can have been granted it.
fn lower_token_unanswered(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for later in valid.fresh().filter(|later| later.release.is_some() && valid.opened.contains(later.session)) {
        let may_be_it = |operation: &Operation| {
            matches!(&operation.call, Call::Acquire { keys, session: Some(session), .. } if later.is_of_any(keys) && session == later.session)
                && operation.answer().is_none()
        };
        let first = valid.before(later).filter(|first| !first.meets(later) && first.token < later.token).last();
        if let Some(first) = first
            && !valid.history.operations.iter().any(may_be_it)
            && !valid
                .history
                .operations
                .iter()
                .any(|other| other.was_disconnected() && other.call.session() == Some(later.session))
        {
            let unanswered = Operation { end: None, ..later.operation.clone() };
            let operation = Some((later.index, unanswered));
            corrupted.push(Corruption::Token { old: later.token, new: first.token - 1, operation });
        }
    }
    corrupted
}

/// The same, with two tokens exchanged wherever they occur.
fn swap_tokens(valid: &Valid<'_>) -> Vec<Corruption> {
    valid.in_order().map(|(first, later)| Corruption::Swap(first.token, later.token)).collect()
}

/// A token belongs to one grant: of one key, to one session.
fn duplicate_token(valid: &Valid<'_>) -> Vec<Corruption> {
    let pairs = valid.in_order().filter(|(first, later)| (first.keys, first.session) != (later.keys, later.session));
    pairs.map(|(first, later)| token(later.token, first.token)).collect()
}

/// A successful release finds its grant, so a later grant of the same key comes after the release's
/// invocation.
fn grant_before_the_release(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for first in &valid.grants {
        let (Some((_, release)), Some(next)) = (first.release, valid.next_of_key(first)) else { continue };
        if next.operation.invoked < release.invoked {
            let mut moved = next.operation.clone();
            moved.notes.clear();
            moved.end = moved.end.map(|(_, end)| (Time(release.invoked.0 - 1), end));
            corrupted.push(Corruption::Operation(next.index, Box::new(moved)));
        }
    }
    corrupted
}

/// Without its release a grant lasts as long as its session, and no other grant of the key is
/// answered until then.
fn drop_release(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for first in &valid.grants {
        let (Some((index, _)), Some(next)) = (first.release, valid.next_of_key(first)) else { continue };
        if valid.lives_until(first.session).is_some_and(|until| until > next.operation.completed()) {
            corrupted.push(Corruption::Removed(index));
        }
    }
    corrupted
}

/// First come, first served: an acquire that was in the queue before another was invoked has the
/// lower token.
fn grant_out_of_order(valid: &Valid<'_>) -> Vec<Corruption> {
    valid.waiters().map(|(first, later)| Corruption::Swap(first.token, later.token)).collect()
}

/// Two waiters that a read shows one behind the other, and that were both granted later, were
/// granted in this order.
fn reverse_queue(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    let keys: BTreeSet<&Key> = valid.grants.iter().flat_map(|grant| grant.keys.as_slice()).collect();
    for (index, read) in keys.into_iter().flat_map(|key| valid.reads(key)) {
        let Some(Answer::Lock { holders, queue, age_ms }) = read.answer() else { continue };
        let granted = |session: &Session| {
            valid.grants.iter().find(|grant| {
                grant.session == session
                    && grant.keys.as_slice().contains(&read.call.keys()[0])
                    && grant.operation.invoked < read.invoked
                    && grant.operation.completed() > read.completed()
                    && grant.is_fresh
                    && valid.opened.contains(session)
                    && !grant.operation.was_disconnected()
            })
        };
        for at in 1..queue.len() {
            let (Some(first), Some(second)) = (granted(&queue[at - 1]), granted(&queue[at])) else { continue };
            if first.token < second.token {
                let mut queue = queue.clone();
                queue.swap(at - 1, at);
                let shown = Answer::Lock { holders: holders.clone(), queue, age_ms: *age_ms };
                corrupted.push(valid.ends(index, End::Ok(shown)));
            }
        }
    }
    corrupted
}

/// The resource refuses a token lower than one that it has accepted.
fn accept_lower_token(valid: &Valid<'_>) -> Vec<Corruption> {
    let operations = &valid.history.operations;
    let fenced = |of: &Key, above: u64, is_read: bool, by: Time| {
        operations.iter().any(|operation| {
            let fences = matches!(&operation.call, Call::Access { key, token, reads } if key == of && *token > above && !(*reads && is_read));
            fences && operation.answer().is_some() && operation.completed() < by
        })
    };
    let wrong = operations.iter().enumerate().filter(|(_, operation)| match &operation.call {
        Call::Access { key, token, reads } if operation.refusal() == Some(&Refusal::Refused) => {
            fenced(key, *token, *reads, operation.invoked)
        }
        _ => false,
    });
    wrong.map(|(index, _)| valid.ends(index, End::Ok(Answer::Accepted))).collect()
}

/// A linearizable read does not find a grant whose release was answered before the read was
/// invoked.
fn show_older_holder(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for grant in &valid.grants {
        let Some((_, release)) = grant.release else { continue };
        let later = valid.reads_of(grant).find(|(_, read)| read.invoked > release.completed());
        corrupted.extend(later.map(|(index, _)| valid.shows(index, Some(grant))));
    }
    corrupted
}

/// A successful release finds its grant; so does a read between the acknowledgement and the
/// release.
fn show_free_lock(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for grant in &valid.grants {
        let Some((_, release)) = grant.release else { continue };
        let between = valid
            .reads_of(grant)
            .filter(|(_, read)| read.invoked > grant.operation.completed() && read.completed() < release.invoked);
        corrupted.extend(between.map(|(index, _)| valid.shows(index, None)));
    }
    corrupted
}

/// A read does not find a grant whose acquire was invoked after the read was answered.
fn show_later_holder(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for grant in valid.fresh() {
        let before = valid.reads_of(grant).filter(|(_, read)| read.completed() < grant.operation.invoked);
        corrupted.extend(before.last().map(|(index, _)| valid.shows(index, Some(grant))));
    }
    corrupted
}

/// A session that is gone shows no further sign of life.
fn end_session_early(valid: &Valid<'_>) -> Vec<Corruption> {
    let operations = &valid.history.operations;
    let is_sign = |operation: &Operation| {
        matches!(operation.call, Call::KeepAlive { .. } | Call::Acquire { .. }) && operation.answer().is_some()
    };
    let lives_on = |first: &Operation| {
        operations.iter().any(|later| {
            is_sign(later) && later.call.session() == first.call.session() && later.invoked > first.completed()
        })
    };
    let kept = operations.iter().enumerate().filter(|(_, operation)| {
        matches!(operation.call, Call::KeepAlive { .. }) && is_sign(operation) && lives_on(operation)
    });
    kept.map(|(index, _)| valid.ends(index, End::Fail(Refusal::NoSession))).collect()
}

/// A client does not have a token before it has requested the lock.
fn access_before_the_grant(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for grant in valid.fresh().filter(|grant| grant.operation.invoked > Time(0)) {
        let uses = |operation: &Operation| matches!(operation.call, Call::Access { token, .. } if token == grant.token);
        if let Some(index) = valid.history.operations.iter().position(uses) {
            let mut access = valid.history.operations[index].clone();
            access.invoked = Time(grant.operation.invoked.0 - 1);
            access.end = access.end.map(|(_, end)| (access.invoked, end));
            corrupted.push(Corruption::Operation(index, Box::new(access)));
        }
    }
    corrupted
}

/// An acquire is not refused because of a grant whose release was answered before the acquire was
/// invoked.
fn refused_by_an_older_holder(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for (index, operation) in valid.history.operations.iter().enumerate() {
        let (Call::Acquire { keys, .. }, Some(Refusal::Held { .. })) = (&operation.call, operation.refusal()) else {
            continue;
        };
        let mut over = valid.grants.iter().filter(|grant| {
            grant.is_of_any(keys) && grant.release.is_some_and(|(_, release)| release.completed() < operation.invoked)
        });
        corrupted.extend(
            over.next_back().map(|grant| valid.ends(index, End::Fail(Refusal::Held { token: Some(grant.token) }))),
        );
    }
    corrupted
}

/// A read shows all holders: also where a lock has several.
fn hide_a_holder(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for grant in &valid.grants {
        let Some((_, release)) = grant.release else { continue };
        let reads = valid.reads_of(grant);
        let between =
            reads.filter(|(_, read)| read.invoked > grant.operation.completed() && read.completed() < release.invoked);
        for (index, read) in between {
            let Some(Answer::Lock { holders, queue, age_ms }) = read.answer() else { continue };
            if holders.len() > 1 {
                let holders = holders.iter().filter(|holder| holder.token != grant.token).cloned().collect();
                let shown = Answer::Lock { holders, queue: queue.clone(), age_ms: *age_ms };
                corrupted.push(valid.ends(index, End::Ok(shown)));
            }
        }
    }
    corrupted
}

/// The holders of a semaphore have at most all its permits. A grant now takes one more than the others
/// leave that were acknowledged before it was requested, and released after it was acknowledged.
fn raise_permits(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for later in valid.fresh() {
        let Mode::Semaphore { of, .. } = later.mode else { continue };
        for key in later.keys.as_slice() {
            let holds_on = |first: &&Grant<'_>| {
                first.keys.as_slice().contains(key)
                    && first.release.is_some_and(|(_, release)| release.invoked > later.operation.completed())
            };
            let taken = valid.before(later).filter(holds_on).map(|first| match first.mode {
                Mode::Semaphore { permits, .. } => permits,
                _ => of,
            });
            let taken: u32 = taken.sum();
            if taken > 0 && taken < of {
                let mut operation = later.operation.clone();
                if let Call::Acquire { mode, .. } = &mut operation.call {
                    *mode = Mode::Semaphore { permits: of - taken + 1, of };
                }
                corrupted.push(Corruption::Operation(later.index, Box::new(operation)));
            }
        }
    }
    corrupted
}

/// A read shows a grant in the mode in which it was asked for.
fn show_another_mode(valid: &Valid<'_>) -> Vec<Corruption> {
    show_changed(valid, |holder| {
        holder.mode = if holder.mode == Mode::Shared { Mode::Exclusive } else { Mode::Shared };
    })
}

/// A read shows a holder with a value that nothing gave it.
fn show_another_value(valid: &Valid<'_>) -> Vec<Corruption> {
    show_changed(valid, |holder| holder.value = Some("another".into()))
}

fn show_changed(valid: &Valid<'_>, change: impl Fn(&mut Holder)) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for grant in &valid.grants {
        for (index, read) in valid.reads_of(grant) {
            let Some(Answer::Lock { holders, queue, age_ms }) = read.answer() else { continue };
            let mut holders = holders.clone();
            let Some(holder) = holders.iter_mut().find(|holder| holder.token == grant.token) else { continue };
            change(holder);
            let shown = Answer::Lock { holders, queue: queue.clone(), age_ms: *age_ms };
            corrupted.push(valid.ends(index, End::Ok(shown)));
        }
    }
    corrupted
}

/// A client whose grant is shared does not write.
fn write_with_a_shared_grant(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for (index, operation) in valid.history.operations.iter().enumerate() {
        let Call::Access { key, token, reads: true } = &operation.call else { continue };
        if valid.grants.iter().any(|grant| grant.token == *token && grant.mode == Mode::Shared) {
            let call = Call::Access { key: key.clone(), token: *token, reads: false };
            corrupted.push(Corruption::Operation(index, Box::new(Operation { call, ..operation.clone() })));
        }
    }
    corrupted
}

/// All keys of a grant are released together.
fn release_one_of_several(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for grant in valid.grants.iter().filter(|grant| grant.keys.single().is_none()) {
        let Some((index, release)) = grant.release else { continue };
        let mut operation = release.clone();
        if let Call::Release { keys, .. } = &mut operation.call {
            *keys = keys.as_slice()[0].clone().into();
        }
        corrupted.push(Corruption::Operation(index, Box::new(operation)));
    }
    corrupted
}

/// A transaction finds the version that it compares, not the one before: that of another transaction, which was
/// answered and did change the record.
fn compare_with_an_older_version(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for (index, operation) in valid.history.operations.iter().enumerate() {
        let Some(Answer::Written { .. }) = operation.answer() else { continue };
        let mut operation = operation.clone();
        let Call::WriteRecord { conditions, .. } = &mut operation.call else { continue };
        let compared = conditions.iter_mut().find_map(|condition| match condition {
            Condition::Version { key, version } if *version > 1 => Some((key.clone(), version)),
            _ => None,
        });
        let Some((key, version)) = compared else { continue };
        let changed_it = |other: &Operation| {
            other.answer() == Some(&Answer::Written { version: *version })
                && other.call.changes().any(|(record, change)| *record == key && *change != Change::Delete)
        };
        if valid.history.operations.iter().any(changed_it) {
            *version -= 1;
            corrupted.push(Corruption::Operation(index, Box::new(operation)));
        }
    }
    corrupted
}

/// A transaction is refused because of another version than the one that it compares.
fn refuse_the_present_version(valid: &Valid<'_>) -> Vec<Corruption> {
    let mut corrupted = Vec::new();
    for (index, operation) in valid.history.operations.iter().enumerate() {
        let mut compared = operation.call.must_have();
        if let (Some(Refusal::OtherVersion { .. }), Some((_, version)), None) =
            (operation.refusal(), compared.next(), compared.next())
        {
            corrupted.push(valid.ends(index, End::Fail(Refusal::OtherVersion { version })));
        }
    }
    corrupted
}

/// After a transaction each of its records shows that it is done, unless something may have deleted the record.
fn hide_a_transaction(valid: &Valid<'_>) -> Vec<Corruption> {
    let operations = &valid.history.operations;
    let deletes = |operation: &Operation, key: &Key| {
        operation.call.changes().any(|(record, change)| record == key && *change == Change::Delete)
    };
    let mut corrupted = Vec::new();
    for transaction in operations.iter().filter(|operation| operation.call.changes().count() > 1) {
        let Some(Answer::Written { .. }) = transaction.answer() else { continue };
        for (key, _) in transaction.call.changes() {
            if operations.iter().any(|operation| deletes(operation, key)) {
                continue;
            }
            for (index, read) in operations.iter().enumerate() {
                let is_read = matches!(&read.call, Call::ReadRecord { record, stale: false } if record == key);
                if is_read && read.answer().is_some() && read.invoked > transaction.completed() {
                    corrupted.push(valid.ends(index, End::Ok(Answer::NoRecord)));
                }
            }
        }
    }
    corrupted
}

impl std::fmt::Display for Corruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Corruption::Token { old, new, operation: None } => write!(f, "token {old} becomes {new}"),
            Corruption::Token { old, new, operation: Some((_, operation)) } => {
                write!(f, "token {old} becomes {new}, and the outcome of {operation} is unknown")
            }
            Corruption::Swap(one, other) => write!(f, "tokens {one} and {other} are exchanged"),
            Corruption::Operation(_, operation) => write!(f, "instead there is {operation}"),
            Corruption::Removed(index) => write!(f, "operation {index} is removed"),
        }
    }
}
