//! What is true of one node by itself, after every step.

use super::{Check, require};
use crate::raft::{Clock, Index, Node, NodeId, Role, StateMachine};

/// How many entries at the log's end are looked at. What is before them was looked at when it was the end.
const TAIL: usize = 16;

/// Checks one node.
pub fn node_is_sound<S: StateMachine>(node: &Node<S>) -> Check {
    let name = "node soundness";
    let log = node.log();
    let (base, last) = (log.base().index, log.last().index);
    require!(name, base <= node.commit() && node.commit() <= last, "commit {} is not in the log", node.commit());
    require!(
        name,
        log.last().term <= node.term(),
        "the log has an entry of term {}, later than its own",
        log.last().term
    );
    let clock = node.clock();
    let end = Clock { term: log.last().term, now: log.last_stamp() };
    require!(
        name,
        end <= clock && clock.term <= node.term(),
        "its clock {clock:?} is not between its log's end and its term"
    );
    require!(name, base.0 + log.entries().len() as u64 == last.0, "the log's indexes have a gap");
    let tail = &log.entries()[log.entries().len().saturating_sub(TAIL)..];
    for pair in tail.windows(2) {
        let ordered =
            pair[0].index.next() == pair[1].index && pair[0].term <= pair[1].term && pair[0].stamp <= pair[1].stamp;
        require!(name, ordered, "entry {} does not follow the one before", pair[1].index);
    }
    match node.role() {
        Role::Follower { leader } => require!(name, *leader != Some(node.id()), "it follows itself"),
        Role::PreCandidate { grants: voters } => {
            require!(name, voters.contains(&node.id()), "it would not vote for itself");
        }
        Role::Candidate { votes: voters } => {
            require!(name, voters.contains(&node.id()), "it did not vote for itself");
            require!(name, node.hard_state().vote == Some(node.id()), "its own vote is not recorded");
        }
        Role::Leader(leadership) => {
            require!(name, node.hard_state().vote == Some(node.id()), "it leads without its own vote");
            require!(name, log.last().term == node.term(), "it has no entry of its own term");
            require!(name, clock.term == node.term(), "it measures for the leader of term {}", clock.term);
            require!(
                name,
                end.now <= clock.now,
                "its log's last stamp {} is later than its clock {}",
                end.now,
                clock.now
            );
            let peers = node.config().peers();
            require!(name, peers.eq(leadership.progress.keys().copied()), "it does not track exactly its peers");
            for (&peer, progress) in &leadership.progress {
                let NodeId(peer) = peer;
                let (matched, next) = (progress.matched, progress.next);
                let ordered = Index(0) <= matched && matched < next && next <= last.next();
                require!(name, ordered, "peer {peer}: matched {matched}, next {next}, last {last}");
            }
        }
    }
    Ok(())
}
