//! The properties of consensus, under the names of figure 3.2 where it has one.

use palisade_spec::raft::{Body, HardState, Index, Log, Message, Node, Role, Stamp, Term};
use stateright::Property;

use super::{Proposals, Tape};
use crate::world::{Environment, Ref, Replica, State, World, always};

type S = State<Proposals>;

/// What must hold of consensus, whatever is replicated.
pub fn consensus<E: Environment>() -> Vec<Property<World<E>>> {
    always![
        ElectionSafety,
        LeaderAppendOnly,
        LogMatching,
        CommittedByMajority,
        LeaderCompleteness,
        StateMachineSafety,
        ReplicaAgreement,
        NodeSoundness,
        Assertions,
        MemoryMatchesDisk,
        PersistBeforeSend,
        RepliesNameEntries,
        RepliesNameRequests,
        AcknowledgementsMatchLog,
        SnapshotsMatchLog,
        LaterTermsAreAdopted,
        UnheardLeaderStepsDown,
        TimeStopsDuringTransfer,
        LimitsHold,
        TermsOnlyGrow,
        OneVotePerTerm,
        CommitOnlyGrows,
        ClockMonotonicity,
        StampsOnlyGrow,
    ]
    .to_vec()
}

/// Every property of the layer.
pub(super) fn properties(world: &World<Proposals>) -> Vec<Property<World<Proposals>>> {
    let mut all = consensus();
    all.extend([
        Property::sometimes("a leader is elected", |_, state: &S| leaders(state).count() > 0),
        Property::sometimes("two servers think they lead", |_, state: &S| leaders(state).count() > 1),
        Property::sometimes("two servers gave their votes to different candidates", |_, state: &S| {
            let hard = |replica: &Ref<Replica<Tape>>| replica.node.hard_state();
            let differ = |a: HardState, b: HardState| {
                a.term == b.term && a.vote.is_some() && b.vote.is_some() && a.vote != b.vote
            };
            state.servers.iter().any(|a| state.servers.iter().any(|b| differ(hard(a), hard(b))))
        }),
        Property::sometimes("a leader inherits a committed entry", |_, state: &S| {
            let inherits = |node: &Node<Tape>| state.history.committed_in.values().any(|&term| term < node.term());
            leaders(state).any(|replica| inherits(&replica.node))
        }),
        Property::sometimes("a proposal is committed", |_, state: &S| {
            state.history.machines.last().is_some_and(|tape| !tape.0.is_empty())
        }),
        Property::sometimes("every server has applied a proposal", |_, state: &S| {
            state.servers.iter().all(|replica| !replica.node.machine().0.is_empty())
        }),
        Property::sometimes("two logs conflict", |_, state: &S| {
            let logs = || state.servers.iter().map(|replica| replica.node.log());
            logs().any(|a| logs().any(|b| conflict(a, b)))
        }),
        Property::sometimes("an entry of an earlier term is committed", |_, state: &S| {
            state.history.committed.values().any(|entry| state.history.committed_in[&entry.index] > entry.term)
        }),
    ]);
    if world.bounds.crashes > 0 {
        // A restart loses the applied state, so a server that has applied entries applied them
        // after its crash.
        all.push(Property::sometimes("a cluster goes on after a crash", |world, state: &S| {
            state.crashes < world.bounds.crashes
                && state.servers.iter().all(|replica| !replica.node.machine().0.is_empty())
        }));
    }
    if world.bounds.snapshots > 0 {
        all.extend([
            Property::sometimes("a log begins after a snapshot", |_, state: &S| {
                state.servers.iter().any(|replica| replica.node.log().base().index > Index(0))
            }),
            Property::sometimes("a server has another one's snapshot", |world: &World<Proposals>, state: &S| {
                let taken = world.bounds.snapshots - state.snapshots;
                let have = state.servers.iter().filter(|replica| replica.disk.snapshot.last.index > Index(0));
                have.count() > usize::from(taken)
            }),
            Property::sometimes("a snapshot is on its way to a server that needs it no more", |_, state: &S| {
                let is_late = |message: &Message<Tape>| match &message.body {
                    Body::InstallSnapshot { snapshot } => {
                        let to = state.servers.iter().find(|replica| replica.node.id() == message.to);
                        to.is_some_and(|replica| replica.node.commit() >= snapshot.last.index)
                    }
                    _ => false,
                };
                state.network.iter().any(|message| is_late(message))
            }),
            Property::sometimes("a leader's log lacks what a follower needs", |_, state: &S| {
                let lacks = |leader: &Node<Tape>| {
                    let base = leader.log().base().index;
                    state.servers.iter().any(|replica| replica.node.log().last().index < base)
                };
                leaders(state).any(|replica| lacks(&replica.node))
            }),
        ]);
    }
    if world.surroundings().transfers > 0 {
        all.extend([
            Property::sometimes("a leader transfers leadership", |_, state: &S| {
                leaders(state).any(|replica| match replica.node.role() {
                    Role::Leader(leadership) => leadership.successor.is_some(),
                    _ => false,
                })
            }),
            // Only a TimeoutNow starts a term beyond the bound; an election timer does not.
            Property::sometimes("a successor leads, and no timer ran out", |world: &World<Proposals>, state: &S| {
                leaders(state).any(|replica| replica.node.term() > Term(world.bounds.terms))
            }),
            Property::sometimes("a TimeoutNow is in flight after its leader gave up the transfer", |_, state: &S| {
                let gave_up = |leader: &Node<Tape>, term: Term| match leader.role() {
                    Role::Leader(leadership) => leader.term() == term && leadership.successor.is_none(),
                    _ => false,
                };
                let is_late = |call: &Message<Tape>| {
                    matches!(call.body, Body::TimeoutNow) && gave_up(&state.server(call.from).node, call.term)
                };
                state.network.iter().any(|message| is_late(message))
            }),
        ]);
    }
    if world.bounds.appends > 1 {
        all.push(Property::sometimes("an AppendEntries is on its way beside an older one", |_, state: &S| {
            let alike = |a: &Message<Tape>, b: &Message<Tape>| {
                let appends = |message: &Message<Tape>| matches!(message.body, Body::AppendEntries { .. });
                a != b && (a.from, a.to, a.term) == (b.from, b.to, b.term) && appends(a) && appends(b)
            };
            state.network.iter().any(|a| state.network.iter().any(|b| alike(a, b)))
        }));
    }
    if world.surroundings().ticks > 0 {
        all.push(Property::sometimes("an entry has a later stamp than the one before", |_, state: &S| {
            state.history.committed.values().any(|entry| entry.stamp > Stamp(0))
        }));
    }
    all
}

/// Whether two logs have different entries at an index.
fn conflict(a: &Log<u8>, b: &Log<u8>) -> bool {
    a.entries().iter().any(|entry| b.get(entry.index).is_some_and(|other| other.term != entry.term))
}

fn leaders(state: &S) -> impl Iterator<Item = &Ref<Replica<Tape>>> {
    state.servers.iter().filter(|replica| replica.node.is_leader())
}
