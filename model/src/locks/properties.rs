//! The properties of the lock table.

use palisade_spec::invariants::{self, permitted};
use palisade_spec::lock::{Command, Lock, RECORD_BYTES, Record, Revision, Right, Sequence, SessionId, Token, Writer};
use palisade_spec::raft::Payload;
use stateright::Property;

use super::{Locks, Operation, PROCLAIMED, Share, State, What};
use crate::world::violates;

macro_rules! always {
    ($($name:ident),* $(,)?) => {
        [$(Property::always(invariants::Property::$name.name(), |_: &Locks, state: &State| {
            !violates(state.violation, invariants::Property::$name)
        })),*]
    };
}

/// Whether a holder has another grant than the first one.
fn is_granted_later(lock: &Lock) -> bool {
    lock.holders.iter().any(|holder| holder.token > Token(1))
}

/// Whether a holder has this value.
fn has_value(lock: &Lock, value: &str) -> bool {
    lock.holders.iter().any(|holder| holder.value().is_some_and(|held| held.as_str() == value))
}

/// What must always hold, and what must be reachable within the model's bounds.
pub(super) fn properties(model: &Locks) -> Vec<Property<Locks>> {
    let mut all = always![
        MutualExclusion,
        TokenMonotonicity,
        FifoOrder,
        NoEarlyExpiry,
        ExactlyOnce,
        NoForeignChange,
        NoDeniedGrant,
        BreaksAreReported,
        ChangesHaveEvents,
        NoNeedlessWait,
        NoDeadlock,
        HoldsAreCounted,
        ValuesAreKept,
        ReleaseByHolderOnly,
        RepliesMatchTable,
        TableSoundness,
    ]
    .to_vec();
    // Models of the store have fewer sessions, and nothing to say about queues.
    let has_queues = model.bounds.writes.is_empty() || model.bounds.opened > 2;
    if has_queues {
        all.extend(queues());
    }
    all.extend(claims(model));
    all.extend(store(model));
    if model.bounds.operations > 1 {
        all.push(Property::sometimes("a request may still arrive after a later one was done", |_, state: &State| {
            state.table.sessions().values().any(|session| session.last > Sequence::new(1))
        }));
    }
    if model.bounds.breaks {
        all.push(Property::sometimes("a break may arrive when the lock is another's", |_, state: &State| {
            state.table.locks().values().any(is_granted_later)
        }));
    }
    if model.bounds.breaks && model.bounds.keys > 1 {
        all.push(Property::sometimes("a holder of two locks may lose one of them", |_, state: &State| {
            let claims = |id: SessionId| state.table.session(id).map_or(0, |session| session.claims().len());
            let has_more = |lock: &Lock| lock.holders.iter().any(|holder| claims(holder.session) > 1);
            state.table.locks().values().any(|lock| !lock.queue.is_empty() && has_more(lock))
        }));
    }
    if model.bounds.revisions > 0 && has_queues {
        all.push(Property::sometimes(
            "the rules deny the first waiter, and permit one behind it",
            |_, state: &State| {
                let rules = state.table.access().rules().map(|rules| &**rules);
                let may = |id: SessionId| {
                    let session = state.table.session(id);
                    session.is_some_and(|session| permitted(rules, &session.principal, Right::Acquire, "k"))
                };
                let mut queues = state.table.locks().values().map(|lock| lock.queue.iter());
                queues.any(|mut queue| {
                    queue.next().is_some_and(|waiter| !may(waiter.session)) && queue.any(|waiter| may(waiter.session))
                })
            },
        ));
        all.push(Property::sometimes("a holder holds what the rules deny", |_, state: &State| {
            let rules = state.table.access().rules().map(|rules| &**rules);
            state.table.locks().values().flat_map(|lock| lock.holders.iter()).any(|holder| {
                let session = state.table.session(holder.session);
                session.is_some_and(|session| !permitted(rules, &session.principal, Right::Acquire, "k"))
            })
        }));
        all.push(Property::sometimes("access control is off again", |_, state: &State| {
            state.table.access().revision() > Revision(1) && !state.table.access().is_enabled()
        }));
    }
    if model.bounds.strangers {
        all.push(Property::sometimes(
            "a stranger names the holder of a lock that others wait for",
            |model: &Locks, state: &State| {
                let is_victim = |id: &SessionId| {
                    let held = || state.table.locks().values();
                    held().any(|lock| {
                        let holds = lock.holders.iter().any(|holder| holder.session.number == id.number);
                        holds && !lock.queue.is_empty()
                    })
                };
                let is_foreign = |request: &Payload<Command>| match request {
                    Payload::Command(Command::Release { session, .. }) => {
                        state.table.session(*session).is_none() && is_victim(session)
                    }
                    _ => false,
                };
                model.requests.possible(state).any(|request| is_foreign(&request))
            },
        ));
    }
    if !model.bounds.openings.is_empty() {
        all.push(Property::sometimes("a session that was opened for a lock waits for it", |_, state: &State| {
            let once = |id: SessionId| state.table.session(id).is_some_and(|session| session.once);
            state.table.locks().values().any(|lock| lock.queue.iter().any(|waiter| once(waiter.session)))
        }));
        all.push(Property::sometimes("a session has ended, and another was opened", |model: &Locks, state: &State| {
            let live = state.table.sessions().len() as u64;
            state.opened > model.bounds.sessions && live > 0 && live < state.opened
        }));
    }
    all
}

/// What must be reachable of locks and queues.
fn queues() -> [Property<Locks>; 7] {
    [
        Property::sometimes("a lock is held", |_, state: &State| {
            state.table.locks().values().any(|lock| !lock.holders.is_empty())
        }),
        Property::sometimes("two wait for a lock", |_, state: &State| {
            state.table.locks().values().any(|lock| lock.queue.len() > 1)
        }),
        Property::sometimes("a session is due to expire", |_, state: &State| {
            state.table.sessions().values().any(|session| session.deadline < state.now)
        }),
        Property::sometimes("more sessions are due than a sweep ends", |model: &Locks, state: &State| {
            let due = state.table.sessions().values().filter(|session| session.deadline < state.now);
            due.count() as u64 > model.bounds.sweep
        }),
        Property::sometimes("a waiter is due, and one behind it lives", |_, state: &State| {
            let lives = |id: SessionId| state.table.session(id).is_some_and(|session| session.deadline >= state.now);
            let mut queues = state.table.locks().values().map(|lock| lock.queue.iter());
            queues.any(|mut queue| {
                queue.any(|waiter| !lives(waiter.session)) && queue.any(|waiter| lives(waiter.session))
            })
        }),
        Property::sometimes("a waiter is due to be granted an expired holder's lock", |_, state: &State| {
            let lives = |id: SessionId| state.table.session(id).is_some_and(|session| session.deadline >= state.now);
            state
                .table
                .locks()
                .values()
                .filter(|lock| lock.holders.iter().any(|holder| !lives(holder.session)))
                .any(|lock| lock.queue.iter().any(|waiter| lives(waiter.session)))
        }),
        Property::sometimes("a release may arrive when the lock is another's", |model: &Locks, state: &State| {
            let held = || state.table.locks().values();
            // Without a number, every past grant may be released at any moment.
            if model.bounds.unnumbered.contains(&Operation::Release) && held().any(is_granted_later) {
                return true;
            }
            let stale = |request: &Payload<Command>| match request {
                Payload::Command(Command::Release { session, keys, .. }) => keys
                    .iter()
                    .filter_map(|key| state.table.lock(key))
                    .any(|lock| lock.holders.iter().any(|holder| holder.session != *session)),
                _ => false,
            };
            state.clients.iter().any(|client| client.sent.iter().any(|request| stale(request)))
        }),
    ]
}

/// What must be reachable of the claims that a model has: in modes, on several keys, with holds.
fn claims(model: &Locks) -> Vec<Property<Locks>> {
    let wanted = model.bounds.wanted;
    let has_shares = wanted.iter().any(|wanted| wanted.share != Share::All);
    let mut all = Vec::new();
    if has_shares {
        all.push(Property::sometimes("two sessions hold a lock together", |_, state: &State| {
            state.table.locks().values().any(|lock| lock.holders.len() > 1)
        }));
        all.push(Property::sometimes(
            "a waiter fits beside the holders, and one before it does not",
            |_, state: &State| {
                state.table.locks().values().any(|lock| {
                    let mut queue = lock.queue.iter();
                    !lock.holders.is_empty()
                        && queue.next().is_some_and(|waiter| !lock.has_room_for(waiter.mode))
                        && queue.any(|waiter| lock.has_room_for(waiter.mode))
                })
            },
        ));
    }
    if wanted.iter().any(|wanted| matches!(wanted.share, Share::Permits(..))) {
        all.push(Property::sometimes("permits are left, and the first waiter needs more", |_, state: &State| {
            let taken = |lock: &Lock| lock.holders.iter().map(|holder| holder.mode.permits()).sum::<u32>();
            let has_left = |lock: &Lock| lock.holders.first().is_some_and(|first| taken(lock) < first.mode.of());
            state.table.locks().values().any(|lock| has_left(lock) && !lock.queue.is_empty())
        }));
    }
    if wanted.iter().any(|wanted| wanted.keys.len() > 1) {
        all.push(Property::sometimes("a waiter for two keys is the first at one that is free", |_, state: &State| {
            state.table.locks().values().any(|lock| lock.holders.is_empty())
        }));
        all.push(Property::sometimes("a session waits behind one that waits for two keys", |_, state: &State| {
            state.table.locks().values().any(|lock| lock.holders.is_empty() && lock.queue.len() > 1)
        }));
        all.push(Property::sometimes("a session holds two keys by one grant", |_, state: &State| {
            state.table.locks().iter().any(|(key, lock)| lock.holders.iter().any(|held| held.keys(key).count() > 1))
        }));
    }
    if wanted.iter().any(|wanted| wanted.reentrant) {
        all.push(Property::sometimes("a session holds a lock twice, and another waits", |_, state: &State| {
            let is_held_twice = |lock: &Lock| lock.holders.iter().any(|holder| holder.holds > 1);
            state.table.locks().values().any(|lock| is_held_twice(lock) && !lock.queue.is_empty())
        }));
        all.push(Property::sometimes("a session that holds a lock twice is due", |_, state: &State| {
            let is_due = |id: SessionId| state.table.session(id).is_some_and(|session| session.deadline < state.now);
            let mut holders = state.table.locks().values().flat_map(|lock| lock.holders.iter());
            holders.any(|holder| holder.holds > 1 && is_due(holder.session))
        }));
    }
    if wanted.iter().any(|wanted| wanted.value.is_some()) {
        all.push(Property::sometimes("a waiter with a value has become the holder", |_, state: &State| {
            state.table.locks().values().any(|lock| is_granted_later(lock) && has_value(lock, "old"))
        }));
        all.push(Property::sometimes("a holder has another value, and another session waits", |_, state: &State| {
            state.table.locks().values().any(|lock| has_value(lock, PROCLAIMED) && !lock.queue.is_empty())
        }));
    }
    all
}

/// What must always hold of the records of a model's store, and what must be reachable.
fn store(model: &Locks) -> Vec<Property<Locks>> {
    let (writes, numbered) = (model.bounds.writes, model.bounds.numbered.contains(&Operation::Write));
    if writes.is_empty() {
        return Vec::new();
    }
    let mut all = always![StoreIsFenced, TransactionsAreWhole].to_vec();
    if writes.iter().any(|write| matches!(write.changes, [.., (_, What::Delete)])) {
        all.push(Property::sometimes("a record was deleted", |_, state: &State| {
            state.table.next_version().0 > 2 && state.table.records().is_empty()
        }));
    }
    if writes.iter().any(|write| !write.held.is_empty()) {
        all.push(Property::sometimes("a record is fenced by a holder that is due", |_, state: &State| {
            let is_due = |id: SessionId| state.table.session(id).is_some_and(|session| session.deadline < state.now);
            let mut holders = state.table.locks().values().flat_map(|lock| lock.holders.iter());
            holders.any(|holder| is_due(holder.session) && is_fence(state, holder.token))
        }));
        all.push(Property::sometimes("a record is fenced, and its lock is another's", |_, state: &State| {
            let mut fences = state.table.records().values().filter_map(|record| record.fence);
            fences.any(|fence| {
                state.table.locks().values().any(|lock| lock.holders.iter().any(|held| held.token > fence))
            })
        }));
        all.push(Property::sometimes("a later holder has written, and an earlier one may", |_, state: &State| {
            state
                .table
                .locks()
                .values()
                .any(|lock| lock.holders.iter().any(|held| held.token > Token(1) && is_fence(state, held.token)))
        }));
        all.push(Property::sometimes("a record is not fenced, and the lock is held", |_, state: &State| {
            let open = |record: &Record| record.fence.is_none();
            state.table.records().values().any(open)
                && state.table.locks().values().any(|lock| !lock.holders.is_empty())
        }));
    }
    if numbered {
        all.push(Property::sometimes("a repeated transaction may find what it has written", |_, state: &State| {
            state.table.records().values().any(|record| record.written.is_some())
        }));
        all.push(Property::sometimes("a repeated transaction may find its record overwritten", |_, state: &State| {
            let is_done = |request: &Payload<Command>| match request {
                Payload::Command(Command::Transact { writer: Writer::Session { session, sequence }, .. }) => {
                    state.table.session(*session).is_some_and(|session| session.last >= *sequence)
                }
                _ => false,
            };
            let sent = || state.clients.iter().flat_map(|client| client.sent.iter());
            let others = |record: &Record| record.written.is_none();
            sent().any(|request| is_done(request)) && state.table.records().values().any(others)
        }));
    }
    if writes.iter().any(|write| write.changes.len() > 1) {
        all.push(Property::sometimes("a transaction has written two records", |_, state: &State| {
            let versions = || state.table.records().values().map(|record| record.version);
            versions().any(|version| versions().filter(|other| *other == version).count() > 1)
        }));
    }
    if writes.iter().any(|write| write.held.len() > 1) {
        all.push(Property::sometimes("two locks are held, by different sessions", |_, state: &State| {
            let holders = || state.table.locks().values().flat_map(|lock| lock.holders.iter());
            holders().any(|one| holders().any(|other| other.session != one.session))
        }));
    }
    if writes.iter().any(|write| write.limit < u64::MAX) {
        all.push(Property::sometimes(
            "the store is larger than some transactions may make it",
            |model: &Locks, state: &State| {
                model.bounds.writes.iter().any(|write| write.limit < state.table.stored_bytes())
            },
        ));
    }
    let is_long = |what: &What| matches!(what, What::Put(length) if *length >= RECORD_BYTES);
    if writes.iter().any(|write| write.changes.iter().any(|(_, what)| is_long(what))) {
        all.push(Property::sometimes("a record has its greatest length", |_, state: &State| {
            state.table.records().values().any(|record| record.bytes.len() == RECORD_BYTES)
        }));
    }
    if model.bounds.revisions > 0 {
        all.push(Property::sometimes("a holder may not write", |_, state: &State| {
            let rules = state.table.access().rules().map(|rules| &**rules);
            state.table.locks().values().flat_map(|lock| lock.holders.iter()).any(|holder| {
                let session = state.table.session(holder.session);
                session.is_some_and(|session| !permitted(rules, &session.principal, Right::Write, "r"))
            })
        }));
    }
    all
}

/// Whether a record was written under this token.
fn is_fence(state: &State, token: Token) -> bool {
    state.table.records().values().any(|record| record.fence == Some(token))
}
