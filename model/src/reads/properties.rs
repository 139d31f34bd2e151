//! The properties of reads: those of consensus, and that no read is stale.

use palisade_spec::raft::{Index, Leadership, Log, Reads, Role, Term};
use stateright::Property;

use super::Readers;
use crate::raft::{Tape, consensus};
use crate::world::{Environment, Ref, Replica, State, World, always};

type S = State<Readers>;

/// Every property of the layer.
pub(super) fn properties(_: &World<Readers>) -> Vec<Property<World<Readers>>> {
    let mut all = consensus();
    all.extend(answers_to_reads());
    all.extend([
        Property::sometimes("a read is answered", |_, state: &S| state.environment.open.contains(&None)),
        Property::sometimes("a read is answered from less than was acknowledged since", |_, state: &S| {
            state.environment.overtaken
        }),
        Property::sometimes("a deposed leader is asked for a read", |_, state: &S| {
            let latest = leaders(state).map(|(replica, _)| replica.node.term()).max().unwrap_or(Term(0));
            leaders(state).any(|(replica, reads)| replica.node.term() < latest && waits(reads))
        }),
        Property::sometimes("a read waits at a deposed leader while its successor has committed", |_, state: &S| {
            let latest = state.history.committed_in.values().max().copied().unwrap_or(Term(0));
            leaders(state).any(|(replica, reads)| replica.node.term() < latest && waits(reads))
        }),
        Property::sometimes("a read waits for the first commit of a term", |_, state: &S| {
            let knows = |log: &Log<u8>, commit: Index, term: Term| log.term_at(commit) == Some(term);
            leaders(state).any(|(replica, reads)| {
                !reads.next.is_empty() && !knows(replica.node.log(), replica.node.commit(), replica.node.term())
            })
        }),
        Property::sometimes("two reads share a round", |_, state: &S| {
            leaders(state).any(|(_, reads)| reads.asked.len() > 1)
        }),
        Property::sometimes("a read waits for the next round", |_, state: &S| {
            leaders(state).any(|(_, reads)| !reads.asked.is_empty() && !reads.next.is_empty())
        }),
    ]);
    all
}

/// What must hold of reads.
pub(crate) fn answers_to_reads<E: Environment>() -> [Property<World<E>>; 2] {
    always![LinearizableReads, ReadAnsweredOnce]
}

fn waits(reads: &Reads) -> bool {
    !(reads.asked.is_empty() && reads.next.is_empty())
}

fn leaders(state: &S) -> impl Iterator<Item = (&Ref<Replica<Tape>>, &Reads)> {
    state.servers.iter().filter_map(|replica| match replica.node.role() {
        Role::Leader(Leadership { reads, .. }) => Some((replica, reads)),
        _ => None,
    })
}
