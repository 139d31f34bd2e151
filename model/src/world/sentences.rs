//! The adversary's actions as sentences.

use palisade_spec::raft::{HardState, Output, Persist, StateMachine};
use stateright::Model;

use super::action::{Action, Fault};
use super::action_parts::{MessageFate, Turn};
use super::describe::DescribeMove;
use super::driver::Crash;
use super::environment::{Environment, Machine};
use super::notation;
use super::replica::Stimulus;
use super::setup::World;
use super::show::{in_flight, table};
use super::state::State;

/// The sentence for an action without its context.
pub(super) fn action<E: Environment>(action: &Action<E>) -> String {
    let (what, fault) = match action {
        Action::Step { server, stimulus: Stimulus::Deliver(message), again, fault } => {
            let text = notation::message::<E::Machine>(message);
            (format!("server {server} receives {text} from server {}{}", message.from, comes_again(*again)), fault)
        }
        Action::Step { server, stimulus, fault, .. } => (happens(*stimulus, &format!("server {server}")), fault),
        Action::Move { chosen, fault } => (chosen.sentence(), fault),
        Action::Crash(server) => return format!("server {server} crashes, and restarts from its disk"),
        Action::Snapshot(server) => return format!("server {server} takes a snapshot of its applied state"),
        Action::Lose(message) => return format!("the network loses {}", in_flight::<E>(message)),
        Action::Cut(server) => return format!("server {server} is cut off from the others"),
        Action::Heal(server) => return format!("server {server} is connected again"),
    };
    match fault {
        None => what,
        Some(Fault::Crash(_)) => format!("{what}; a server crashes"),
        Some(Fault::Leave(_)) => format!("{what}; a server crashes, and stays away"),
        Some(Fault::Lose(_)) => format!("{what}; a message is lost"),
        Some(Fault::Delay(_)) => format!("{what}; a message is late"),
        Some(Fault::Repeat(_)) => format!("{what}; a message will arrive again"),
    }
}

fn comes_again(again: bool) -> &'static str {
    if again { " (and will again)" } else { "" }
}

fn happens<S: StateMachine>(stimulus: Stimulus<S>, server: &str) -> String {
    match stimulus {
        Stimulus::Deliver(message) => format!("{server} receives {}", message.body.name()),
        Stimulus::Campaign => format!("{server} campaigns"),
        Stimulus::ElectionTimeout => format!("{server}'s election timer runs out"),
        Stimulus::HeartbeatTimeout => format!("{server} sends heartbeats"),
        Stimulus::Propose(_) => format!("{server} is asked to append an entry"),
        Stimulus::Change(change) => format!("{server} is asked {}", notation::change(&change)),
        Stimulus::Read(id) => format!("{server} is asked for read {id}"),
        Stimulus::Transfer(None) => format!("{server} is asked to transfer leadership"),
        Stimulus::Transfer(Some(to)) => format!("{server} is asked to transfer leadership to {to}"),
        Stimulus::Clock(milliseconds) => format!("{server}'s clock advances by {milliseconds}"),
        Stimulus::Compact(through) => format!("{server} compacts its log up to {through}"),
    }
}

impl<E: Environment> World<E> {
    /// The differences that an action makes. The removal of the delivered message from the network
    /// is omitted.
    pub(super) fn outcome(&self, last: &State<E>, action: Action<E>) -> Option<String> {
        let mut before = last.clone();
        if let Action::Step { stimulus: Stimulus::Deliver(message), again: false, .. } | Action::Lose(message) = &action
        {
            let position = before.network.iter().position(|other| other == message)?;
            before.network.remove(position);
        }
        let after = self.next_state(last, action)?;
        Some(table(&after).since(&table(&before)).join("\n"))
    }

    /// The sentence for an action in the state in which it is taken.
    pub(super) fn describe(&self, last: &State<E>, action: &Action<E>) -> String {
        let turns = self.turns(last, action);
        let Some(first) = turns.first() else { return self::action(action) };
        let mut sentence = match action {
            Action::Move { chosen, .. } => chosen.sentence(),
            Action::Step { again, .. } => format!("{}{}", begins(first), comes_again(*again)),
            Action::Crash(_) | Action::Snapshot(_) | Action::Lose(_) | Action::Cut(_) | Action::Heal(_) => {
                self::action(action)
            }
        };
        for (position, turn) in turns.iter().enumerate() {
            if let Some(crash) = &turn.crash {
                let own = position == 0 && matches!(action, Action::Step { .. });
                let who = if own { ", but".to_string() } else { format!("; server {}", turn.server) };
                let away = if turn.stays_away() { ", and stays away" } else { "" };
                sentence.push_str(&format!("{who} {}{away}", crashes(turn, crash)));
            }
            for (message, _) in turn.sent.iter().filter(|(_, fate)| *fate == MessageFate::Lost) {
                sentence.push_str(&format!("; the network loses {}", in_flight::<E>(message)));
            }
            let travels = turn.sent.iter().filter(|(_, fate)| *fate == MessageFate::Travels);
            for (message, _) in travels.filter(|(message, _)| self.is_prompt(&message.body)) {
                sentence.push_str(&format!("; {} is late", in_flight::<E>(message)));
            }
            for (message, _) in turn.sent.iter().filter(|(_, fate)| *fate == MessageFate::ArrivesAndTravels) {
                sentence.push_str(&format!("; {} will arrive again", in_flight::<E>(message)));
            }
        }
        sentence
    }
}

fn begins<E: Environment>(turn: &Turn<E>) -> String {
    let server = format!("server {}", turn.server);
    match turn.stimulus {
        Stimulus::Deliver(message) => {
            let text = notation::message::<E::Machine>(&message);
            format!("{server} receives {text} from server {}", message.from)
        }
        Stimulus::Campaign => format!("{server} campaigns for term {}", turn.before.node.term().next()),
        other => happens(other, &server),
    }
}

/// Where a server crashes: the writes and messages that it completed before.
fn crashes<E: Environment>(turn: &Turn<E>, crash: &Crash<E::Machine>) -> String {
    let done = turn.node_steps[..crash.input]
        .iter()
        .filter(|node_step| node_step.done)
        .flat_map(|node_step| &node_step.outputs);
    let done: Vec<_> = done.chain(&turn.node_steps[crash.input].outputs[..crash.outputs]).collect();
    let mut written: Vec<String> = done.iter().filter_map(|output| write::<E::Machine>(output)).collect();
    let output = turn.node_steps[crash.input].outputs.get(crash.outputs);
    let before = match (output.and_then(write::<E::Machine>), crash.entries) {
        (None, _) => String::new(),
        (Some(next), None) => format!(" before it writes {next}"),
        (Some(next), Some(0)) if matches!(output, Some(Output::Persist(Persist::Snapshot(_)))) => {
            format!(" when it has written {next}, and its log is as it was")
        }
        (Some(next), Some(0)) => format!(" when it has removed the entries that conflict with {next}"),
        (Some(next), Some(1)) => format!(" when it has written the first of {next}"),
        (Some(next), Some(count)) => format!(" when it has written the first {count} of {next}"),
    };
    let sent = done.iter().filter(|output| matches!(output, Output::Send(_) | Output::SendSnapshot { .. })).count();
    match sent {
        0 => {}
        1 => written.insert(0, "has sent a message".to_string()),
        many => written.insert(0, format!("has sent {many} messages")),
    }
    let after = match (sent, written.as_slice()) {
        (_, []) if before.is_empty() => " before it sends or writes anything".to_string(),
        (_, []) => String::new(),
        (0, all) => format!(" after it has written {}", all.join(" and ")),
        (_, [sent]) => format!(" after it {sent}"),
        (_, [sent, all @ ..]) => format!(" after it {sent} and has written {}", all.join(" and ")),
    };
    let comma = if after.is_empty() || before.is_empty() { "" } else { "," };
    format!("crashes{after}{comma}{before}")
}

/// What a write changes.
fn write<S: Machine>(output: &Output<S>) -> Option<String> {
    let Output::Persist(write) = output else { return None };
    Some(match write {
        Persist::HardState(HardState { term, vote: None }) => format!("term {term}"),
        Persist::HardState(HardState { term, vote: Some(vote) }) => format!("its vote for {vote} in term {term}"),
        Persist::Entries(entries) => {
            let text = notation::entries::<S>(entries);
            match entries.as_slice() {
                [one] => format!("entry {} ({text})", one.index),
                [first, .., last] => format!("entries {} to {} ({text})", first.index, last.index),
                [] => unreachable!("a write of entries is never empty"),
            }
        }
        Persist::Snapshot(snapshot) => format!("the snapshot up to {}", snapshot.last.index),
        Persist::Compact(through) => format!("that its log begins after {through}"),
    })
}
