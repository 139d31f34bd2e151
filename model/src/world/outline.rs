//! A coarse picture of a cluster, for [guided search](crate::guided).
//!
//! It has what decides how things may go on: who plays which role in which term, which leaders' entries each log has, how
//! far the clocks are ahead of the logs, what kinds of messages are on their way. Terms count by their order only, and
//! servers by what they are, not by their names.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use palisade_spec::raft::{Role, StateMachine, Term};

use super::environment::Environment;
use super::seat::Seat;
use super::state::State;

/// By how much a clock is ahead of its log is told apart up to here.
const AHEAD: u64 = 3;

/// A server: its role, its term's rank, the terms of its entries, how far its clock is ahead, whether it has entries that
/// it does not know to be committed, whether it is cut off.
type Outline = (u8, usize, Vec<Term>, u64, bool, bool);

/// The state's outline.
pub(super) fn outline<E: Environment>(state: &State<E>) -> u64 {
    let terms: BTreeSet<Term> = state.servers.iter().map(|seat| seat.node.term()).collect();
    let rank = |term: Term| terms.range(..term).count();
    let mut servers: Vec<_> = state.servers.iter().map(|seat| server(seat, rank)).collect();
    servers.sort_unstable();
    let messages: BTreeSet<_> = state.network.iter().map(|message| (message.body.name(), rank(message.term))).collect();
    let mut outline = DefaultHasher::new();
    (servers, messages, state.environment.outline()).hash(&mut outline);
    outline.finish()
}

fn server<S: StateMachine>(seat: &Seat<S>, rank: impl Fn(Term) -> usize) -> Outline {
    let node = &seat.node;
    let role = match node.role() {
        Role::Follower { leader: None } => 0,
        Role::Follower { leader: Some(_) } => 1,
        Role::PreCandidate { .. } => 2,
        Role::Candidate { .. } => 3,
        Role::Leader(leadership) if leadership.successor.is_some() => 4,
        Role::Leader(_) => 5,
    };
    let mut lineage: Vec<Term> = node.log().entries().iter().map(|entry| entry.term).collect();
    lineage.dedup();
    let ahead = (node.clock().0 - node.log().last_stamp().0).min(AHEAD);
    let uncommitted = node.log().last().index.0 > node.commit().0;
    (role, rank(node.term()), lineage, ahead, uncommitted, seat.cut)
}
