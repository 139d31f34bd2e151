//! Everything that states refer to: their parts, each kept once, and what comes of steps, remembered.

use std::sync::Arc;

use palisade_spec::invariants::Violation;
use palisade_spec::raft::{Config, Durable, Index, Message, Node, NodeId, Payload};
use smallvec::SmallVec;

use super::bounds::Elections;
use super::digest::{Renaming, mix};
use super::environment::{Asked, Environment};
use super::ghost::Ghost;
use super::intern::{Interner, Ref};
use super::memo::Memo;
use super::seat::{Applied, Seat, Stimulus, forget_leader, take};
use super::state::CommandOf;

/// How many results each memo keeps.
const MEMO: usize = 1 << 20;

/// Everything that states refer to.
pub(super) struct Kept<E: Environment> {
    pub(super) elections: Elections,
    pub(super) renamings: Vec<Renaming>,
    pub(super) seats: Interner<Seat<E::Machine>>,
    pub(super) messages: Interner<Message<CommandOf<E>>>,
    pub(super) proposals: Interner<Vec<Payload<CommandOf<E>>>>,
    pub(super) ghosts: Interner<Ghost<E::Machine>>,
    pub(super) environments: Interner<E>,
    pub(super) steps: Memo<Stepped<E>>,
    /// What history and environments make of steps, and what comes of their moves.
    pub(super) histories: Memo<Result<Ref<Ghost<E::Machine>>, &'static Violation>>,
    pub(super) sights: Memo<Result<Ref<E>, &'static Violation>>,
    pub(super) moves: Memo<Moved<E>>,
    pub(super) judgements: Memo<Option<&'static Violation>>,
}

/// An environment after a move, and what it asks of a server.
pub(super) type Moved<E> = (Ref<E>, Option<(NodeId, Stimulus<CommandOf<E>>)>);

/// What comes of a stimulus, in parts that are kept.
pub(super) struct Stepped<E: Environment> {
    pub(super) seat: Ref<Seat<E::Machine>>,
    pub(super) said: SmallVec<[Ref<Message<CommandOf<E>>>; 4]>,
    pub(super) applied: Vec<Applied<E::Machine>>,
    pub(super) crashes: Vec<Crashed<E>>,
    pub(super) violation: Option<&'static Violation>,
}

pub(super) struct Crashed<E: Environment> {
    pub(super) seat: Ref<Seat<E::Machine>>,
    pub(super) said: usize,
}

impl<E: Environment> Kept<E> {
    /// Nothing is kept yet.
    pub(super) fn new(elections: Elections, renamings: Vec<Renaming>) -> Kept<E> {
        Kept {
            elections,
            renamings,
            seats: Interner::default(),
            messages: Interner::default(),
            proposals: Interner::default(),
            ghosts: Interner::default(),
            environments: Interner::default(),
            steps: Memo::new(MEMO),
            histories: Memo::new(MEMO),
            sights: Memo::new(MEMO),
            moves: Memo::new(MEMO),
            judgements: Memo::new(MEMO),
        }
    }

    pub(super) fn seat(&self, seat: Seat<E::Machine>) -> Ref<Seat<E::Machine>> {
        self.seats.intern(seat, &self.renamings)
    }

    pub(super) fn recover(&self, config: Config, disk: Durable<E::Machine>, cut: bool) -> Ref<Seat<E::Machine>> {
        let mut node = Node::recover(config, disk.clone());
        if self.elections == Elections::AtWill {
            forget_leader(&mut node);
        }
        self.seat(Seat { node, disk, cut })
    }

    /// History after a step in which a server was elected, or applied something.
    pub(super) fn remembered(
        &self,
        ghost: Ref<Ghost<E::Machine>>,
        old: Ref<Seat<E::Machine>>,
        new: Ref<Seat<E::Machine>>,
        elected: bool,
    ) -> Result<Ref<Ghost<E::Machine>>, &'static Violation> {
        let key = mix(old.address() as u64, new.address() as u64);
        *self.histories.get((ghost.address(), key), || {
            let mut history = (*ghost).clone();
            if elected {
                history.elected(&new.node).map_err(keep)?;
            }
            if new.node.commit() > old.node.commit() {
                history.applied(&new.node).map_err(keep)?;
                let known = ghost.committed.len() as u64;
                let committed = known + 1..=history.committed.len() as u64;
                committed.map(Index).try_for_each(|index| E::committed(&history, index)).map_err(keep)?;
            }
            Ok(self.ghost(history))
        })
    }

    /// What the environment sees of a step.
    pub(super) fn seen(
        &self,
        environment: Ref<E>,
        old: Ref<Seat<E::Machine>>,
        new: Ref<Seat<E::Machine>>,
        applied: &[Applied<E::Machine>],
    ) -> Result<Ref<E>, &'static Violation> {
        let key = mix(mix(old.address() as u64, new.address() as u64), applied.len() as u64);
        *self.sights.get((environment.address(), key), || {
            let mut changed = (*environment).clone();
            changed.stepped(&new.node);
            applied.iter().try_for_each(|applied| changed.see(&new.node, applied)).map_err(keep)?;
            Ok(self.environments.intern(changed, &self.renamings))
        })
    }

    /// Whether environment and history agree.
    pub(super) fn judged(&self, environment: Ref<E>, ghost: Ref<Ghost<E::Machine>>) -> Result<(), &'static Violation> {
        let key = (environment.address(), ghost.address() as u64);
        self.judgements.get(key, || environment.judge(&ghost).err().map(keep)).map_or(Ok(()), Err)
    }

    pub(super) fn ghost(&self, ghost: Ghost<E::Machine>) -> Ref<Ghost<E::Machine>> {
        self.ghosts.intern(ghost, &self.renamings)
    }

    pub(super) fn step(&self, seat: Ref<Seat<E::Machine>>, stimulus: Stimulus<CommandOf<E>>) -> Arc<Stepped<E>> {
        self.steps.get((seat.address(), stimulus.key()), || {
            let taken = take(&seat, stimulus, self.elections);
            let crashes = taken.crashes.into_iter().map(|crash| Crashed {
                seat: self.recover(seat.node.config().clone(), crash.disk, seat.cut),
                said: crash.said,
            });
            Stepped {
                crashes: crashes.collect(),
                seat: self.seat(taken.seat),
                said: taken.said.into_iter().map(|message| self.messages.intern(message, &self.renamings)).collect(),
                applied: taken.applied,
                violation: taken.violation.map(keep),
            }
        })
    }

    /// The environment after a move, and what it asks of a server.
    pub(super) fn moved(&self, environment: Ref<E>, chosen: &E::Move) -> Arc<Moved<E>> {
        self.moves.get((environment.address(), E::key(chosen)), || {
            let mut changed = (*environment).clone();
            let asked = changed.play(chosen).map(|asked| match asked {
                Asked::Propose(server, payloads) => {
                    (server, Stimulus::Propose(self.proposals.intern(payloads, &self.renamings)))
                }
                Asked::Clock(server, milliseconds) => (server, Stimulus::Clock(milliseconds)),
            });
            (self.environments.intern(changed, &self.renamings), asked)
        })
    }
}

/// A violation ends a run: it may stay.
pub(super) fn keep(violation: Violation) -> &'static Violation {
    Box::leak(Box::new(violation))
}
