//! The properties of the lock table.

use palisade_spec::invariants::{self, permitted};
use palisade_spec::lock::{Command, Lock, Revision, Right, Sequence, SessionId, Token};
use palisade_spec::raft::Payload;
use stateright::Property;

use super::{Locks, Operation, State};
use crate::world::violates;

macro_rules! always {
    ($($name:ident),* $(,)?) => {
        [$(Property::always(invariants::Property::$name.name(), |_: &Locks, state: &State| {
            !violates(state.violation, invariants::Property::$name)
        })),*]
    };
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
        ReleaseByHolderOnly,
        RepliesMatchTable,
        TableSoundness,
    ]
    .to_vec();
    all.extend([
        Property::sometimes("a lock is held", |_, state: &State| !state.table.locks().is_empty()),
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
                .any(|lock| !lives(lock.holder.session) && lock.queue.iter().any(|waiter| lives(waiter.session)))
        }),
        Property::sometimes("a release may arrive when the lock is another's", |model: &Locks, state: &State| {
            let held = || state.table.locks().values();
            // Without a number, every past grant may be released at any moment.
            if model.bounds.unnumbered.contains(&Operation::Release) && held().any(|lock| lock.holder.token > Token(1))
            {
                return true;
            }
            let stale = |request: &Payload<Command>| match request {
                Payload::Command(Command::Release { session, key, .. }) => {
                    state.table.lock(key).is_some_and(|lock| lock.holder.session != *session)
                }
                _ => false,
            };
            state.clients.iter().any(|client| client.sent.iter().any(|request| stale(request)))
        }),
    ]);
    if model.bounds.operations > 1 {
        all.push(Property::sometimes("a request may still arrive after a later one was done", |_, state: &State| {
            state.table.sessions().values().any(|session| session.last > Some(Sequence(1)))
        }));
    }
    if model.bounds.breaks {
        all.push(Property::sometimes("a break may arrive when the lock is another's", |_, state: &State| {
            state.table.locks().values().any(|lock| lock.holder.token > Token(1))
        }));
    }
    if model.bounds.breaks && model.bounds.keys > 1 {
        all.push(Property::sometimes("a holder of two locks may lose one of them", |_, state: &State| {
            let claims = |lock: &Lock| state.table.session(lock.holder.session).map_or(0, |held| held.claims().len());
            state.table.locks().values().any(|lock| !lock.queue.is_empty() && claims(lock) > 1)
        }));
    }
    if model.bounds.revisions > 0 {
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
            state.table.locks().values().any(|lock| {
                let session = state.table.session(lock.holder.session);
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
                    held().any(|lock| lock.holder.session.number == id.number && !lock.queue.is_empty())
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
