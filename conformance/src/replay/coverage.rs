//! Counts what was exercised on live nodes: actions, messages, outputs, crashes, and which inputs a
//! node took in which role.

use std::collections::BTreeMap;
use std::fmt;

use palisade_spec::lock::{Command, LockRequest, LockTable, Mode};
use palisade_spec::raft::{Body, Input, Message, Node, Output, Payload, Persist};

/// Counts, by subject and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<&'static str, BTreeMap<String, usize>>);

/// What a replay of all saved traces must exercise, by subject.
pub const WANTED: &[(&str, &[&str])] = &[
    (
        "action",
        &[
            "apply",
            "campaign",
            "change",
            "clock",
            "compact",
            "crash",
            "cut",
            "deliver",
            "election timeout",
            "heal",
            "heartbeat timeout",
            "rejected input",
            "lose",
            "propose",
            "read",
            "snapshot",
            "tick",
            "transfer",
        ],
    ),
    (
        "message",
        &[
            "AppendAccepted",
            "AppendEntries",
            "AppendRejected",
            "InstallSnapshot",
            "PreVote",
            "PreVoteReply",
            "RequestVote",
            "RequestVoteReply",
            "TimeoutNow",
        ],
    ),
    (
        "output",
        &[
            "Accepted",
            "Applied",
            "ArmElectionTimer",
            "ArmHeartbeatTimer",
            "ChangeRefused",
            "Dropped",
            "Persist Compact",
            "Persist Entries",
            "Persist HardState",
            "Persist Snapshot",
            "ReadReady",
            "ReadRefused",
            "Refused",
            "Send",
            "SendSnapshot",
            "TransferRefused",
        ],
    ),
    ("dropped", &["leader_is_alive", "malformed", "stale", "stranger"]),
    (
        "command",
        &[
            "Acquire",
            "AcquireOnce",
            "Break",
            "Close",
            "KeepAlive",
            "Open",
            "Proclaim",
            "Release",
            "SetAccess",
            "Transact",
        ],
    ),
    ("request", &["bounded queue", "reentrant", "semaphore", "several keys", "shared", "value", "without wait"]),
];

impl Coverage {
    /// Counts an occurrence.
    pub fn note(&mut self, subject: &'static str, name: impl Into<String>) {
        *self.0.entry(subject).or_default().entry(name.into()).or_default() += 1;
    }

    /// Number of occurrences.
    pub fn count(&self, subject: &str, name: &str) -> usize {
        self.0.get(subject).and_then(|names| names.get(name)).copied().unwrap_or(0)
    }

    /// Counts an input that a node in this state takes, and its outputs.
    pub fn stepped(&mut self, node: &Node<LockTable>, input: &Input<LockTable>, outputs: &[Output<LockTable>]) {
        if let Input::Receive(message) = input {
            self.note("message", message.body.name());
        }
        if let Input::Propose { payloads, .. } = input {
            payloads.iter().for_each(|payload| self.proposed(payload));
        }
        self.note("branch", format!("{} takes {}", node.role().name(), taken(node, input)));
        for output in outputs {
            self.note("output", name(output));
            if let Output::Dropped { reason, .. } = output {
                self.note("dropped", reason.name());
            }
        }
    }

    /// Counts a proposed command, and what its request for locks asks for beside one exclusive lock.
    fn proposed(&mut self, payload: &Payload<Command>) {
        let Payload::Command(command) = payload else { return };
        self.note("command", command_name(command));
        let (Command::Acquire { request, .. } | Command::AcquireOnce { request, .. }) = command else { return };
        let asked_for = [
            ("bounded queue", request.waits() && request.max_queue != LockRequest::ANY_QUEUE),
            ("reentrant", request.reentrant),
            ("semaphore", request.mode.of() != Mode::EXCLUSIVE.of()),
            ("several keys", request.keys.as_slice().len() > 1),
            ("shared", request.mode == Mode::SHARED),
            ("value", request.value.is_some()),
            ("without wait", !request.waits()),
        ];
        asked_for.iter().filter(|(_, asks)| *asks).for_each(|(name, _)| self.note("request", *name));
    }

    /// Adds the counts of another replay.
    pub fn add(&mut self, other: Coverage) {
        for (subject, names) in other.0 {
            for (name, count) in names {
                *self.0.entry(subject).or_default().entry(name).or_default() += count;
            }
        }
    }

    /// What is in [`WANTED`] and was not exercised.
    pub fn missing(&self) -> Vec<String> {
        let names = WANTED.iter().flat_map(|(subject, names)| names.iter().map(move |name| (*subject, *name)));
        names
            .filter(|(subject, name)| self.count(subject, name) == 0)
            .map(|(subject, name)| format!("{subject} {name}"))
            .collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (subject, names) in &self.0 {
            writeln!(f, "{subject}: {} kinds", names.len())?;
            for (name, count) in names {
                writeln!(f, "  {count:>6}  {name}")?;
            }
        }
        Ok(())
    }
}

/// The input's kind, as far as a node distinguishes inputs before it reads their contents.
fn taken(node: &Node<LockTable>, input: &Input<LockTable>) -> String {
    match input {
        Input::Receive(Message { term, body, .. }) => {
            let age = match term.cmp(&node.term()) {
                std::cmp::Ordering::Less => " of an earlier term",
                std::cmp::Ordering::Equal => "",
                std::cmp::Ordering::Greater => " of a later term",
            };
            let detail = match body {
                Body::PreVoteReply { granted } | Body::RequestVoteReply { granted } => {
                    if *granted {
                        " (granted)"
                    } else {
                        " (refused)"
                    }
                }
                Body::AppendEntries { entries, .. } if entries.is_empty() => " (no entries)",
                Body::RequestVote { transfer: true, .. } => " (called)",
                _ => "",
            };
            format!("{}{detail}{age}", body.name())
        }
        Input::Propose { .. } => "Propose".into(),
        Input::Read(_) => "Read".into(),
        Input::Change { .. } => "Change".into(),
        Input::Transfer { .. } => "Transfer".into(),
        Input::ElectionTimeout => "ElectionTimeout".into(),
        Input::HeartbeatTimeout => "HeartbeatTimeout".into(),
        Input::ClockAdvanced(_) => "ClockAdvanced".into(),
        Input::Compact(_) => "Compact".into(),
    }
}

fn command_name(command: &Command) -> &'static str {
    match command {
        Command::Open { .. } => "Open",
        Command::Close { .. } => "Close",
        Command::KeepAlive { .. } => "KeepAlive",
        Command::Acquire { .. } => "Acquire",
        Command::AcquireOnce { .. } => "AcquireOnce",
        Command::Release { .. } => "Release",
        Command::Proclaim { .. } => "Proclaim",
        Command::Break { .. } => "Break",
        Command::SetAccess { .. } => "SetAccess",
        Command::Transact { .. } => "Transact",
    }
}

fn name(output: &Output<LockTable>) -> &'static str {
    match output {
        Output::Persist(Persist::HardState(_)) => "Persist HardState",
        Output::Persist(Persist::Entries(_)) => "Persist Entries",
        Output::Persist(Persist::Snapshot(_)) => "Persist Snapshot",
        Output::Persist(Persist::Compact(_)) => "Persist Compact",
        Output::Send(_) => "Send",
        Output::Accepted { .. } => "Accepted",
        Output::Refused { .. } => "Refused",
        Output::ChangeRefused { .. } => "ChangeRefused",
        Output::TransferRefused { .. } => "TransferRefused",
        Output::ReadReady(_) => "ReadReady",
        Output::ReadRefused { .. } => "ReadRefused",
        Output::Applied { .. } => "Applied",
        Output::LostEntries { .. } => "LostEntries",
        Output::SendSnapshot { .. } => "SendSnapshot",
        Output::ArmElectionTimer => "ArmElectionTimer",
        Output::ArmHeartbeatTimer => "ArmHeartbeatTimer",
        Output::Dropped { .. } => "Dropped",
    }
}
