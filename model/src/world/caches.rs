//! The parts that states refer to, each stored once, and the memoised results of steps.

use std::sync::Arc;

use palisade_spec::invariants::{Check, Violation};
use palisade_spec::raft::{Change, Durable, Index, Message, NodeId, Payload, RequestId};
use smallvec::SmallVec;

use super::digest::{Renaming, mix};
use super::driver::{Answer, Driver};
use super::environment::{Environment, ServerRequest};
use super::history::History;
use super::intern::{Interner, Ref};
use super::memo::Memo;
use super::replica::{Replica, Stimulus};
use super::state::CommandOf;

/// The number of results that each memo keeps.
const MEMO: usize = 1 << 20;

/// The parts that states refer to, and the memos.
pub(super) struct Caches<E: Environment> {
    pub(super) driver: Driver,
    pub(super) renamings: Vec<Renaming>,
    pub(super) replicas: Interner<Replica<E::Machine>>,
    pub(super) messages: Interner<Message<E::Machine>>,
    pub(super) proposals: Interner<Vec<Payload<CommandOf<E>>>>,
    pub(super) changes: Interner<Change>,
    pub(super) histories: Interner<History<E::Machine>>,
    pub(super) environments: Interner<E>,
    memos: Memos<E>,
}

/// The memoised results.
struct Memos<E: Environment> {
    steps: Memo<Stepped<E>>,
    /// The crashes that may happen in a step. They are computed only while the budget allows a
    /// crash, because each crash adds servers to the interner.
    crashes: Memo<Vec<Crashed<E>>>,
    /// The effects of steps on history and environment, and the results of the environment's moves.
    histories: Memo<Result<Ref<History<E::Machine>>, &'static Violation>>,
    observations: Memo<Result<Ref<E>, &'static Violation>>,
    moves: Memo<Moved<E>>,
    /// The results of checks of two parts.
    judgements: Memo<Option<&'static Violation>>,
}

/// The environment after a move, and its request to a server.
pub(super) type Moved<E> = (Ref<E>, Option<(NodeId, Stimulus<<E as Environment>::Machine>)>);

/// The messages that a server sends in a step.
pub(super) type SentMessages<E> = SmallVec<[Ref<Message<<E as Environment>::Machine>>; 4]>;

/// The result of a stimulus, as interned parts.
pub(super) struct Stepped<E: Environment> {
    pub(super) replica: Ref<Replica<E::Machine>>,
    pub(super) sent: SentMessages<E>,
    /// The start of each run in `sent`: see [`StepResult`](super::driver::StepResult).
    pub(super) runs: SmallVec<[usize; 4]>,
    pub(super) answers: Vec<Answer<E::Machine>>,
    pub(super) violation: Option<&'static Violation>,
}

/// A crash within a step.
pub(super) struct Crashed<E: Environment> {
    /// The server after its restart.
    pub(super) replica: Ref<Replica<E::Machine>>,
    /// The server right before the crash, if it had given an answer.
    pub(super) before: Option<Ref<Replica<E::Machine>>>,
    pub(super) sent: usize,
    pub(super) answers: usize,
    /// The violation at its restart.
    pub(super) violation: Option<&'static Violation>,
}

impl<E: Environment> Memos<E> {
    /// Creates memos with room for `room` results each.
    fn new(room: usize) -> Memos<E> {
        Memos {
            steps: Memo::new(room),
            crashes: Memo::new(room),
            histories: Memo::new(room),
            observations: Memo::new(room),
            moves: Memo::new(room),
            judgements: Memo::new(room),
        }
    }
}

impl<E: Environment> Caches<E> {
    /// Creates empty caches.
    pub(super) fn new(driver: Driver, renamings: Vec<Renaming>) -> Caches<E> {
        Caches {
            driver,
            renamings,
            replicas: Interner::default(),
            messages: Interner::default(),
            proposals: Interner::default(),
            changes: Interner::default(),
            histories: Interner::default(),
            environments: Interner::default(),
            memos: Memos::new(MEMO),
        }
    }

    /// Disables the memos from now on.
    pub(super) fn disable_memos(&mut self) {
        self.memos = Memos::new(0);
    }

    pub(super) fn replica(&self, replica: Replica<E::Machine>) -> Ref<Replica<E::Machine>> {
        self.replicas.intern(replica, &self.renamings)
    }

    /// The history after a step in which a server was elected or applied entries.
    pub(super) fn history_after(
        &self,
        history: Ref<History<E::Machine>>,
        old: Ref<Replica<E::Machine>>,
        new: Ref<Replica<E::Machine>>,
        elected: bool,
    ) -> Result<Ref<History<E::Machine>>, &'static Violation> {
        *self.memos.histories.get([history.key(), old.key(), new.key(), u64::from(elected)], || {
            let mut changed = (*history).clone();
            if elected {
                changed.elected(&new.node).map_err(leak)?;
            }
            if new.node.commit() > old.node.commit() {
                changed.applied(&new.node).map_err(leak)?;
                let known = history.committed.len() as u64;
                let committed = known + 1..=changed.committed.len() as u64;
                committed.map(Index).try_for_each(|index| E::committed(&changed, index)).map_err(leak)?;
            }
            Ok(self.history(changed))
        })
    }

    /// The environment after it observed a step.
    pub(super) fn environment_after(
        &self,
        environment: Ref<E>,
        old: Ref<Replica<E::Machine>>,
        new: Ref<Replica<E::Machine>>,
        answers: &[Answer<E::Machine>],
    ) -> Result<Ref<E>, &'static Violation> {
        // Old and new server determine the applied entries, but not the answered reads: the key
        // needs the numbers of those.
        let answer_key = answers.iter().fold(0, |answer_key, answer| match answer {
            Answer::Applied(_) => answer_key + 1,
            Answer::Ready(RequestId(id)) => mix(answer_key, *id),
        });
        *self.memos.observations.get([environment.key(), old.key(), new.key(), answer_key], || {
            let mut changed = (*environment).clone();
            changed.stepped(&new.node);
            let observe = |answer: &Answer<E::Machine>| match answer {
                Answer::Applied(applied) => changed.see(&new.node, applied),
                Answer::Ready(read) => changed.ready(&new.node, *read),
            };
            answers.iter().try_for_each(observe).map_err(leak)?;
            Ok(self.environments.intern(changed, &self.renamings))
        })
    }

    /// Checks the environment against the history.
    pub(super) fn check_environment(
        &self,
        environment: Ref<E>,
        history: Ref<History<E::Machine>>,
    ) -> Result<(), &'static Violation> {
        self.check([environment.key(), history.key()], || environment.judge(&history))
    }

    /// The memoised result of a check of two parts. No two checks concern the same two types of
    /// parts.
    pub(super) fn check(&self, parts: [u64; 2], check: impl FnOnce() -> Check) -> Result<(), &'static Violation> {
        let [a, b] = parts;
        self.memos.judgements.get([a, b, 0, 0], || check().err().map(leak)).map_or(Ok(()), Err)
    }

    pub(super) fn history(&self, history: History<E::Machine>) -> Ref<History<E::Machine>> {
        self.histories.intern(history, &self.renamings)
    }

    pub(super) fn step(&self, replica: Ref<Replica<E::Machine>>, stimulus: Stimulus<E::Machine>) -> Arc<Stepped<E>> {
        self.memos.steps.get([replica.key(), stimulus.key(), 0, 0], || {
            let result = self.driver.undisturbed().take(&replica, stimulus);
            Stepped {
                replica: self.replica(result.replica),
                sent: result.sent.into_iter().map(|message| self.messages.intern(message, &self.renamings)).collect(),
                runs: result.runs.into(),
                answers: result.answers,
                violation: result.violation.map(leak),
            }
        })
    }

    /// The server after a restart from this disk; or the crashed server, and the violation that
    /// stops it.
    pub(super) fn recovered(
        &self,
        crashed: Ref<Replica<E::Machine>>,
        disk: Durable<E::Machine>,
    ) -> (Ref<Replica<E::Machine>>, Option<&'static Violation>) {
        match self.driver.recover(&crashed, disk) {
            Ok(replica) => (self.replica(replica), None),
            Err(violation) => (crashed, Some(leak(violation))),
        }
    }

    /// The crashes that may happen in a step.
    pub(super) fn crashes(
        &self,
        replica: Ref<Replica<E::Machine>>,
        stimulus: Stimulus<E::Machine>,
    ) -> Arc<Vec<Crashed<E>>> {
        self.memos.crashes.get([replica.key(), stimulus.key(), 0, 0], || {
            let crashes = self.driver.take(&replica, stimulus).crashes.into_iter().map(|crash| {
                let before =
                    crash.node.map(|node| self.replica(Replica { node, disk: crash.disk.clone(), cut: replica.cut }));
                let (replica, violation) = self.recovered(replica, crash.disk);
                Crashed { before, replica, sent: crash.sent, answers: crash.answers, violation }
            });
            crashes.collect()
        })
    }

    /// The environment after a move, and its request to a server.
    pub(super) fn moved(&self, environment: Ref<E>, chosen: &E::Move) -> Arc<Moved<E>> {
        self.memos.moves.get([environment.key(), E::key(chosen), 0, 0], || {
            let mut changed = (*environment).clone();
            let request = changed.play(chosen).map(|request| match request {
                ServerRequest::Propose(server, payloads) => {
                    (server, Stimulus::Propose(self.proposals.intern(payloads, &self.renamings)))
                }
                ServerRequest::Change(server, change) => {
                    (server, Stimulus::Change(self.changes.intern(change, &self.renamings)))
                }
                ServerRequest::Read(server, id) => (server, Stimulus::Read(id)),
                ServerRequest::Transfer(server, to) => (server, Stimulus::Transfer(to)),
                ServerRequest::Clock(server, milliseconds) => (server, Stimulus::Clock(milliseconds)),
            });
            (self.environments.intern(changed, &self.renamings), request)
        })
    }
}

/// Leaks a violation. No path goes on after one, so there are few.
pub(crate) fn leak(violation: Violation) -> &'static Violation {
    Box::leak(Box::new(violation))
}
