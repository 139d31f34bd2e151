//! Coarse abstractions of a cluster's state, for [guided search](crate::guided).
//!
//! An outline keeps what decides how a run can go on: each server's role and term rank, the terms
//! of the entries in its log, and how far its clock is ahead of the slowest clock and of its own
//! log. A state's class keeps less: of the logs, only whether they conflict, which ones are longer,
//! and whether one has a client's command that may not be committed. Both ignore the servers'
//! numbers.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use palisade_spec::raft::{Log, Node, Payload, Role, StateMachine, Term};

use super::environment::Environment;
use super::state::State;

/// Larger clock differences count as this one.
const AHEAD: u64 = 5;

/// The state's class, and its outline.
pub(super) fn outline<E: Environment>(state: &State<E>) -> (u64, u64) {
    let nodes = || state.servers.iter().map(|replica| &replica.node);
    let terms: BTreeSet<Term> = nodes().map(Node::term).collect();
    let rank = |term: Term| terms.range(..term).count();
    let slowest = nodes().map(Node::clock).min().unwrap_or_default();
    let (mut classes, mut outlines) = (Vec::new(), Vec::new());
    for replica in &state.servers {
        let (node, log) = (&replica.node, replica.node.log());
        let standing = (role(node.role()), rank(node.term()));
        let ahead = (node.clock().0 - slowest.0).min(AHEAD);
        let uncommitted = uncommitted(node);
        let conflicts = nodes().filter(|other| conflict(log, other.log())).count();
        let shorter = nodes().filter(|other| other.log().last().index < log.last().index).count();
        classes.push((standing, ahead.min(AHEAD - 1), uncommitted, conflicts, shorter));
        let mut lineage: Vec<Term> = log.entries().iter().map(|entry| entry.term).collect();
        lineage.dedup();
        let ahead_of_log = (node.clock().0 - log.last_stamp().0).min(AHEAD);
        outlines.push((standing, ahead, uncommitted, lineage, ahead_of_log, replica.cut));
    }
    classes.sort_unstable();
    outlines.sort_unstable();
    (digest((terms.last(), classes)), digest((outlines, state.environment.outline())))
}

fn role(role: &Role) -> u8 {
    match role {
        Role::Follower { .. } => 0,
        Role::PreCandidate { .. } => 1,
        Role::Candidate { .. } => 2,
        Role::Leader(leadership) if leadership.successor.is_some() => 3,
        Role::Leader(_) => 4,
    }
}

/// The kind of entries in the log that the server does not know to be committed: 2 if there is a
/// client's command, 1 if there are only others, 0 if there are none.
fn uncommitted<S: StateMachine>(node: &Node<S>) -> u8 {
    let open = node.log().entries().iter().filter(|entry| entry.index > node.commit());
    open.map(|entry| if matches!(entry.payload, Payload::Command(_)) { 2 } else { 1 }).max().unwrap_or(0)
}

/// Whether two logs have different entries at an index.
fn conflict<C>(a: &Log<C>, b: &Log<C>) -> bool {
    a.entries().iter().any(|entry| b.get(entry.index).is_some_and(|other| other.term != entry.term))
}

fn digest(value: impl Hash) -> u64 {
    let mut digest = DefaultHasher::new();
    value.hash(&mut digest);
    digest.finish()
}
