//! Text forms of entries, positions and messages.
//!
//! An entry is written `term:payload`, followed by `@stamp` if the stamp is not 0; a position is
//! written `index@term`.

use palisade_spec::raft::{
    Body, Change, Entry, Hint, Member, Members, Message, NodeId, Payload, Position, ReadRound, Standing, StateMachine,
};

use crate::state_table::{Field, LIST};

/// A state machine whose commands and states have a text form.
pub trait Notation: StateMachine {
    /// A command, in short form.
    fn command(command: &Self::Command) -> String;

    /// The machine's contents, in short form.
    fn content(&self) -> Vec<Field>;

    /// The machine's contents, as JSON.
    fn data(&self) -> serde_json::Value;
}

pub(super) fn payload<S: Notation>(payload: &Payload<S::Command>) -> String {
    match payload {
        Payload::Noop => "noop".to_string(),
        Payload::Command(command) => S::command(command),
        Payload::Members(members) => self::members(members),
    }
}

/// The members' numbers, learners with a question mark and returning learners with an exclamation
/// mark.
pub(super) fn members(members: &Members) -> String {
    let member = |(id, member): (NodeId, &Member)| match member.standing {
        Standing::Voter => id.to_string(),
        Standing::Learner => format!("{id}?"),
        Standing::Returning => format!("{id}!"),
    };
    format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","))
}

/// The change that an operator requests.
pub(super) fn change(change: &Change) -> String {
    match change {
        Change::Add { id, .. } => format!("to add {id}"),
        Change::Promote(id) => format!("to promote {id}"),
        Change::Remove(id) => format!("to remove {id}"),
        Change::Replace { lost, by, .. } => format!("to replace {lost} by {by}"),
    }
}

pub(super) fn entry<S: Notation>(entry: &Entry<S::Command>) -> String {
    let stamp = if entry.stamp.0 > 0 { format!("@{}", entry.stamp) } else { String::new() };
    format!("{}:{}{stamp}", entry.term, payload::<S>(&entry.payload))
}

/// The entries in order; an empty string if there are none.
pub(crate) fn entries<'a, S: Notation>(entries: impl IntoIterator<Item = &'a Entry<S::Command>>) -> String
where
    S::Command: 'a,
{
    entries.into_iter().map(entry::<S>).collect::<Vec<_>>().join(LIST)
}

fn position(position: Position) -> String {
    format!("{}@{}", position.index, position.term)
}

/// A message without its sender and receiver.
pub(crate) fn message<S: Notation>(message: &Message<S>) -> String {
    let (name, term) = (message.body.name(), message.term);
    let rest = match &message.body {
        Body::PreVote { last } | Body::RequestVote { last, transfer: false } => format!("last {}", position(*last)),
        Body::RequestVote { last, transfer: true } => format!("last {}, called by the leader", position(*last)),
        Body::PreVoteReply { granted } | Body::RequestVoteReply { granted } => {
            if *granted { "granted" } else { "refused" }.to_string()
        }
        Body::AppendEntries { prev, entries, commit, stamp, round } => {
            let entries = match entries.as_slice() {
                [] => "no entries".to_string(),
                entries => format!("entries {}", self::entries::<S>(entries)),
            };
            let stamp = if stamp.0 > 0 { format!(", stamp {stamp}") } else { String::new() };
            format!("prev {}, {entries}, commit {commit}{stamp}{}", position(*prev), self::round(*round))
        }
        Body::AppendAccepted { matched, round } => format!("matched {matched}{}", self::round(*round)),
        Body::AppendRejected { prev, hint, round } => {
            let hint = match hint {
                Hint::Short { next } => format!("the log ends before {next}"),
                Hint::Conflict { term, first } => format!("term {term} there, since {first}"),
            };
            format!("prev {prev}, {hint}{}", self::round(*round))
        }
        Body::TimeoutNow => return format!("{name}(term {term})"),
        Body::InstallSnapshot { snapshot } => format!("last {}", position(snapshot.last)),
    };
    format!("{name}(term {term}, {rest})")
}

/// The read round of a message, if there was a read before.
fn round(round: ReadRound) -> String {
    if round > ReadRound(0) { format!(", round {round}") } else { String::new() }
}

/// A short label for the arrow of a message.
pub(super) fn label<S: StateMachine>(message: &Message<S>) -> String {
    let name = message.body.name();
    match &message.body {
        Body::PreVote { .. } | Body::RequestVote { .. } => format!("{name} t{}", message.term),
        Body::PreVoteReply { granted } => if *granted { "would vote" } else { "would not vote" }.to_string(),
        Body::RequestVoteReply { granted: true } => format!("vote t{}", message.term),
        Body::RequestVoteReply { granted: false } => format!("no vote t{}", message.term),
        Body::AppendEntries { entries, commit, .. } if entries.is_empty() => {
            format!("Append t{} c{commit}", message.term)
        }
        Body::AppendEntries { entries, commit, .. } => {
            format!("Append t{} +{} c{commit}", message.term, entries.len())
        }
        Body::AppendAccepted { matched, .. } => format!("has {matched} t{}", message.term),
        Body::AppendRejected { prev, .. } => format!("not {prev} t{}", message.term),
        Body::TimeoutNow => format!("{name} t{}", message.term),
        Body::InstallSnapshot { snapshot } => format!("snapshot {} t{}", snapshot.last.index, message.term),
    }
}
