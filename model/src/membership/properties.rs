//! The properties of membership changes: those of consensus, and which servers count for
//! majorities.

use std::collections::BTreeSet;

use palisade_spec::raft::{Entry, Index, Members, NodeId, Payload, Position};
use stateright::Property;

use super::Operators;
use crate::raft::{Tape, consensus};
use crate::world::{Environment, Ref, Replica, State, World, always};

type S = State<Operators>;

/// Every property of the layer.
pub(super) fn properties(world: &World<Operators>) -> Vec<Property<World<Operators>>> {
    let mut all = consensus();
    all.extend(memberships());
    all.extend([
        Property::sometimes("two leaders have different members", |_, state: &S| {
            let all = || leaders(state).map(|replica| replica.node.members());
            all().any(|a| all().any(|b| a != b))
        }),
        Property::sometimes("two leaders have a change under way", |_, state: &S| {
            let open = |replica: &&Ref<Replica<Tape>>| replica.node.log().members_since() > replica.node.commit();
            leaders(state).filter(open).count() > 1
        }),
        Property::sometimes("a change stands in a log where another entry is committed", |_, state: &S| {
            let lost = |change: Position| {
                state.history.committed.get(&change.index).is_some_and(|entry| entry.term != change.term)
            };
            changes(state).into_iter().any(|(_, change)| lost(change))
        }),
        Property::sometimes("a change is gone from every log", |_, state: &S| {
            let standing: BTreeSet<(Index, u64)> =
                changes(state).into_iter().map(|(_, change)| (change.index, change.term.0)).collect();
            let snapshots = state.servers.iter().any(|replica| replica.node.log().base().index > Index(0));
            !snapshots && standing.len() < usize::from(state.environment.changed)
        }),
        Property::sometimes("a removal is committed", |_, state: &S| {
            committed_changes(state)
                .any(|(_, members)| state.servers.iter().any(|replica| members.was_removed(replica.node.id())))
        }),
        Property::sometimes("a leader that is no member leads on", |_, state: &S| {
            leaders(state).any(|replica| replica.node.members().get(replica.node.id()).is_none())
        }),
        Property::sometimes("a leader removed itself, and leads no more", |_, state: &S| {
            committed_changes(state).any(|(entry, members)| {
                let leader = state.history.leaders[&entry.term];
                members.was_removed(leader) && !state.server(leader).node.is_leader()
            })
        }),
    ]);
    if world.surroundings().most > 0 {
        all.push(Property::sometimes("a proposal is committed after a change", |_, state: &S| {
            let first = committed_changes(state).next().map(|(entry, _)| entry.index);
            let mut entries = state.history.committed.values();
            first.is_some_and(|first| {
                entries.any(|entry| entry.index > first && matches!(entry.payload, Payload::Command(_)))
            })
        }));
    }
    if world.bounds.joiners > 0 {
        all.extend([
            Property::sometimes("a learner has a committed entry", |_, state: &S| {
                let learns = |replica: &Ref<Replica<Tape>>| {
                    let id = replica.node.id();
                    replica.node.members().get(id).is_some() && !replica.node.members().is_voter(id)
                };
                state.servers.iter().any(|replica| learns(replica) && replica.node.commit() > Index(0))
            }),
            Property::sometimes(
                "a server that joined votes for itself or another",
                |world: &World<Operators>, state: &S| {
                    joiners(world, state).any(|replica| replica.node.hard_state().vote.is_some())
                },
            ),
            Property::sometimes("a server that joined leads", |world: &World<Operators>, state: &S| {
                joiners(world, state).any(|replica| replica.node.is_leader())
            }),
            Property::sometimes("a server votes for one that it does not know as a member", |_, state: &S| {
                let is_unknown =
                    |replica: &Ref<Replica<Tape>>, vote: NodeId| replica.node.members().get(vote).is_none();
                state
                    .servers
                    .iter()
                    .any(|replica| replica.node.hard_state().vote.is_some_and(|vote| is_unknown(replica, vote)))
            }),
        ]);
    }
    if world.bounds.snapshots > 0 {
        all.extend([
            Property::sometimes("a log begins after a change", |_, state: &S| {
                let begins = |replica: &Ref<Replica<Tape>>| replica.node.log().base().index;
                let first = committed_changes(state).next().map(|(entry, _)| entry.index);
                first.is_some_and(|first| state.servers.iter().any(|replica| begins(replica) >= first))
            }),
            Property::sometimes(
                "a server that joined has another one's snapshot",
                |world: &World<Operators>, state: &S| {
                    let taken = usize::from(world.bounds.snapshots - state.snapshots);
                    let has = |replica: &&Ref<Replica<Tape>>| replica.disk.snapshot.last.index > Index(0);
                    let have = state.servers.iter().filter(has).count();
                    have > taken && joiners(world, state).any(|replica| has(&replica))
                },
            ),
        ]);
    }
    all
}

/// What must hold of the membership.
pub(crate) fn memberships<E: Environment>() -> [Property<World<E>>; 5] {
    always![MembersFollowLog, MembersSurviveCompaction, OneChangeAtATime, ElectedByMajority, RemovedLeaderStepsDown,]
}

fn leaders(state: &S) -> impl Iterator<Item = &Ref<Replica<Tape>>> {
    state.servers.iter().filter(|replica| replica.node.is_leader())
}

fn joiners<'a>(world: &World<Operators>, state: &'a S) -> impl Iterator<Item = &'a Ref<Replica<Tape>>> {
    let founders = NodeId(world.bounds.servers);
    state.servers.iter().filter(move |replica| replica.node.id() > founders)
}

/// The changes in all logs, each with the server whose log has it.
fn changes(state: &S) -> Vec<(NodeId, Position)> {
    let is_change = |entry: &&Entry<u8>| matches!(entry.payload, Payload::Members(_));
    let of = |replica: &Ref<Replica<Tape>>| {
        let id = replica.node.id();
        let entries = replica.node.log().entries().iter().filter(is_change);
        entries.map(|entry| (id, entry.position())).collect::<Vec<_>>()
    };
    state.servers.iter().flat_map(of).collect()
}

fn committed_changes(state: &S) -> impl Iterator<Item = (&Entry<u8>, &Members)> {
    state.history.committed.values().filter_map(|entry| match &entry.payload {
        Payload::Members(members) => Some((entry, &**members)),
        Payload::Noop | Payload::Command(_) => None,
    })
}
