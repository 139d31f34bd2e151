//! Text forms of a cluster's state.

use std::collections::BTreeSet;
use std::fmt;

use palisade_spec::raft::{Index, Leadership, Log, Message, Node, NodeId, Progress, ProgressState, RequestId, Role};

use super::environment::Environment;
use super::notation::{self, Notation};
use super::replica::Replica;
use super::state::State;
use crate::state_table::{Field, LIST, StateTable};

/// The state of a cluster as a table.
pub(super) fn table<E: Environment>(state: &State<E>) -> StateTable {
    let mut table = StateTable::default();
    for replica in &state.servers {
        table.fields(format!("server {}", replica.node.id()), server(replica));
        table.aside("  sends", followers(&replica.node));
    }
    table.items("network", state.network.iter().map(|message| in_flight::<E>(message)));
    state.environment.table(&mut table);
    let history = &*state.history;
    let led = history.leaders.iter().map(|(term, leader)| format!("{term} by {leader}")).collect::<Vec<_>>();
    let committed = notation::entries::<E::Machine>(history.committed.values());
    table.fields("history", [("led", led.join(", ")), ("committed", committed)]);
    let left = [
        ("crashes", state.crashes),
        ("snapshots", state.snapshots),
        ("repeats", state.repeats),
        ("losses", state.losses),
        ("cuts", state.cuts),
        ("late", state.late),
        ("heartbeats", state.heartbeats),
    ];
    table.fields("left", left.map(|(name, count)| (name, count.to_string())));
    let violation = state.violation.map_or(String::new(), |violation| violation.to_string());
    table.fields("VIOLATED", [("", violation)]);
    table
}

/// Formats the state as a table.
impl<E: Environment> fmt::Debug for State<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&table(self), f)
    }
}

pub(super) fn in_flight<E: Environment>(message: &Message<E::Machine>) -> String {
    format!("{} → {} {}", message.from, message.to, notation::message::<E::Machine>(message))
}

fn server<S: Notation>(replica: &Replica<S>) -> Vec<Field> {
    let Replica { node, disk, cut } = replica;
    let hard = node.hard_state();
    let clock = node.clock();
    let taken = disk.snapshot.last.index;
    let before = [
        ("term", hard.term.to_string()),
        ("vote", hard.vote.map_or(String::new(), |vote| vote.to_string())),
        ("", role(node)),
        ("network", if *cut { "cut off" } else { "" }.to_string()),
        ("log", log::<S>(node.log())),
        (
            "members",
            if node.log().members_since() > Index(0) { notation::members(node.members()) } else { String::new() },
        ),
        ("commit", node.commit().to_string()),
        ("snapshot", if taken.0 > 0 { taken.to_string() } else { String::new() }),
    ];
    let after = [
        ("clock", if clock.0 > 0 { clock.to_string() } else { String::new() }),
        ("disk", if disk.hard == hard && disk.log == *node.log() { String::new() } else { self::disk(replica) }),
    ];
    before.into_iter().chain(node.machine().content()).chain(after).collect()
}

fn log<S: Notation>(log: &Log<S::Command>) -> String {
    let base = if log.base().index.0 > 0 { format!("…{}{LIST}", log.base().index) } else { String::new() };
    let entries = notation::entries::<S>(log.entries());
    if base.is_empty() && entries.is_empty() { "empty".to_string() } else { format!("{base}{entries}") }
}

fn role<S: Notation>(node: &Node<S>) -> String {
    match node.role() {
        Role::Follower { leader: None } => "follower".to_string(),
        Role::Follower { leader: Some(leader) } => format!("follower of {leader}"),
        Role::PreCandidate { grants } => candidate("pre-candidate", grants, node.id()),
        Role::Candidate { votes } => candidate("candidate", votes, node.id()),
        Role::Leader(leadership) => leader(leadership),
    }
}

/// A leader's role, its transfer target, and the reads that wait for this round and for the next.
fn leader(leadership: &Leadership) -> String {
    let ids = |reads: &[RequestId]| reads.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let reads = &leadership.reads;
    let mut text = "LEADER".to_string();
    if let Some(successor) = leadership.successor {
        text.push_str(&format!(", transfers to {successor}"));
    }
    if !reads.asked.is_empty() {
        text.push_str(&format!(", round {} for read {}", reads.round, ids(&reads.asked)));
    }
    if !reads.next.is_empty() {
        text.push_str(&format!(", then read {}", ids(&reads.next)));
    }
    text
}

/// A candidate's role, and the votes it has beside its own.
fn candidate(what: &str, votes: &BTreeSet<NodeId>, own: NodeId) -> String {
    let others: Vec<String> = votes.iter().filter(|id| **id != own).map(ToString::to_string).collect();
    if others.is_empty() { what.to_string() } else { format!("{what} with {}", others.join(", ")) }
}

/// A leader's progress for each follower: the next index to send, and the last acknowledged one.
fn followers<S: Notation>(node: &Node<S>) -> String {
    let Role::Leader(leadership) = node.role() else { return String::new() };
    let follower = |progress: &Progress| {
        let guess = if progress.state == ProgressState::Probe { "?" } else { "" };
        let heard = if progress.active { ", heard" } else { "" };
        format!("from {}{guess} (has {}{heard})", progress.next, progress.matched)
    };
    let all = leadership.progress.iter().map(|(id, progress)| format!("{id} {}", follower(progress)));
    all.collect::<Vec<_>>().join("; ")
}

fn disk<S: Notation>(replica: &Replica<S>) -> String {
    let hard = replica.disk.hard;
    let vote = hard.vote.map_or(String::new(), |vote| format!(", vote {vote}"));
    format!("term {}{vote}, log {}", hard.term, log::<S>(&replica.disk.log))
}
