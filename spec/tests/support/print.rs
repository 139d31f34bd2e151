//! Messages, entries and nodes in one line each. A position is written `index@term`, a node in its
//! term `n1@2`.

use palisade_spec::raft::{
    Body, DropReason, Durable, Entry, Hint, Index, Log, Members, Message, Node, Persist, Position, ProgressState,
    ReadRound, Refusal, Role, Standing,
};

use super::machine::Scripted;

/// `n1@2 → n2 AppendEntries prev=3@1 [4@2 a] commit=3 t=120`
pub(crate) fn message<S: Scripted>(message: &Message<S>) -> String {
    let Message { from, to, term, body } = message;
    format!("n{from}@{term} → n{to} {}{}", body.name(), details::<S>(body))
}

fn details<S: Scripted>(body: &Body<S>) -> String {
    match body {
        Body::PreVote { last } | Body::RequestVote { last, transfer: false } => format!(" last={}", position(*last)),
        Body::RequestVote { last, transfer: true } => format!(" last={} transfer", position(*last)),
        Body::TimeoutNow => String::new(),
        Body::PreVoteReply { granted } | Body::RequestVoteReply { granted } => {
            if *granted {
                " granted".into()
            } else {
                " refused".into()
            }
        }
        Body::AppendEntries { prev, entries: e, commit, stamp, round } => {
            let entries = entries::<S>(e);
            format!(" prev={} [{entries}] commit={commit} t={stamp}{}", position(*prev), in_round(*round))
        }
        Body::AppendAccepted { matched, round } => format!(" matched={matched}{}", in_round(*round)),
        Body::AppendRejected { prev, hint, round } => {
            let hint = match hint {
                Hint::Short { next } => format!("short, next={next}"),
                Hint::Conflict { term, first } => format!("conflict, term={term} first={first}"),
            };
            format!(" prev={prev} {hint}{}", in_round(*round))
        }
        Body::InstallSnapshot { snapshot: s } => {
            format!(" last={} t={} {}", position(s.last), s.stamp, s.machine.show())
        }
    }
}

/// Formats a ReadIndex round, if there is one.
fn in_round(round: ReadRound) -> String {
    if round > ReadRound(0) { format!(" round={round}") } else { String::new() }
}

/// `{1 2 3 4? 5!}`: the members, with `?` after a learner, and `!` after one that returns without
/// its disk.
pub(crate) fn members(members: &Members) -> String {
    let show = |standing| match standing {
        Standing::Voter => "",
        Standing::Learner => "?",
        Standing::Returning => "!",
    };
    let shown: Vec<String> = members.iter().map(|(id, member)| format!("{id}{}", show(member.standing))).collect();
    format!("{{{}}}", shown.join(" "))
}

/// Formats why a membership change was refused.
pub(crate) fn refusal(refusal: Refusal) -> String {
    match refusal {
        Refusal::NotLeader(None) => "no leader known".into(),
        Refusal::NotLeader(Some(leader)) => format!("n{leader} leads"),
        Refusal::TooEarly => "too early".into(),
        Refusal::NotCaughtUp => "it has not caught up".into(),
        Refusal::AlreadyThere => "already there".into(),
        Refusal::NotThere => "not there".into(),
        Refusal::WasRemoved => "it was removed".into(),
        Refusal::LastVoter => "the cluster would have no voter".into(),
    }
}

/// `3@1`
pub(crate) fn position(position: Position) -> String {
    format!("{}@{}", position.index, position.term)
}

/// `4@2 a`
pub(crate) fn entry<S: Scripted>(entry: &Entry<S::Command>) -> String {
    format!("{} {}", position(entry.position()), S::show_payload(&entry.payload))
}

fn entries<S: Scripted>(entries: &[Entry<S::Command>]) -> String {
    entries.iter().map(entry::<S>).collect::<Vec<_>>().join(", ")
}

/// `persist term=2 vote=n1`, `persist 4@2 a, 5@2 b`
pub(crate) fn persist<S: Scripted>(write: &Persist<S>) -> String {
    match write {
        Persist::HardState(hard) => {
            format!("persist term={} vote={}", hard.term, hard.vote.map_or("-".into(), |vote| format!("n{vote}")))
        }
        Persist::Entries(e) => format!("persist {}", entries::<S>(e)),
        Persist::Snapshot(snapshot) => format!("persist snapshot {}", position(snapshot.last)),
        Persist::Compact(through) => format!("removes its log up to {through}"),
    }
}

/// The terms of a log's entries, as in figure 3.6, the committed ones in brackets: `[1 1 2] 3`;
/// with the log's base, if it is not empty: `4@1 [1 2] 3`.
fn log<C>(log: &Log<C>, commit: Index) -> String {
    let (committed, rest): (Vec<&Entry<C>>, Vec<&Entry<C>>) =
        log.entries().iter().partition(|entry| entry.index <= commit);
    let terms =
        |entries: Vec<&Entry<C>>| entries.iter().map(|entry| entry.term.to_string()).collect::<Vec<_>>().join(" ");
    let gone = if log.base().index > Index(0) { position(log.base()) + " " } else { String::new() };
    format!("{gone}[{}] {}", terms(committed), terms(rest)).trim_end().into()
}

/// A role with its term and leader: `follower@2 of n1`.
pub(crate) fn role<S: Scripted>(node: &Node<S>) -> String {
    let of = match node.role() {
        Role::Follower { leader: Some(leader) } => format!(" of n{leader}"),
        _ => String::new(),
    };
    format!("{}@{}{of}", node.role().name(), node.term())
}

/// Formats a node in one line. A leader also shows `n2:3→5` for each follower: matched and next,
/// with `?` while it probes.
pub(crate) fn node<S: Scripted>(node: &Node<S>) -> String {
    let mut line = format!(
        "n{} {} log={} t={} {}",
        node.id(),
        role(node),
        log(node.log(), node.commit()),
        node.clock(),
        node.machine().show()
    );
    if *node.members() != Members::of(node.members().ids()) {
        line += &format!(" members={}", members(node.members()));
    }
    if let Role::Leader(leadership) = node.role() {
        for (peer, progress) in &leadership.progress {
            let probe = if progress.state == ProgressState::Probe { "?" } else { "" };
            line += &format!(" n{peer}:{}→{}{probe}", progress.matched, progress.next);
        }
    }
    line
}

/// Formats the disk of a crashed node.
pub(crate) fn disk<S: Scripted>(disk: &Durable<S>) -> String {
    let vote = disk.hard.vote.map_or("-".into(), |vote| format!("n{vote}"));
    let snapshot = disk.snapshot.last;
    let snapshot = if snapshot.index > Index(0) { format!(" snapshot={}", position(snapshot)) } else { String::new() };
    format!("disk term={} vote={vote}{snapshot} log={}", disk.hard.term, log(&disk.log, Index(0)))
}

/// Formats why a message was dropped.
pub(crate) fn dropped(from: impl std::fmt::Display, reason: DropReason) -> String {
    format!("drops a message from n{from}: {}", reason.name())
}
