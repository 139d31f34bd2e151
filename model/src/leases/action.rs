//! The adversary's actions.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Message, NodeId};

use crate::cluster::Request;
use crate::world::Ref;

/// A macro step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// One tick of real time passes.
    Tick,
    /// A leader's driver reports the time that passed since its last report, minus `lost`.
    Look {
        /// The leader.
        leader: NodeId,
        /// The lost time, in ticks.
        lost: u64,
    },
    /// A server wins an election. All its messages arrive at once, at this voter only.
    Elect {
        /// The winner.
        candidate: NodeId,
        /// The voter whose vote completes the majority.
        voter: NodeId,
    },
    /// A leader's AppendEntries arrives.
    Send {
        /// The leader.
        leader: NodeId,
        /// The receiver.
        follower: NodeId,
        /// Whether the message carries all entries and its answer arrives. Otherwise it is a
        /// heartbeat at the last entry that both logs have, and its answer is lost.
        full: bool,
    },
    /// A leader's AppendEntries is delayed: it stays in flight.
    Delay {
        /// The leader.
        leader: NodeId,
        /// The receiver.
        follower: NodeId,
        /// Whether the message carries all entries, or is a heartbeat.
        full: bool,
    },
    /// A delayed AppendEntries arrives. Its answer is lost.
    Arrive(Ref<Message<LockTable>>),
    /// A client's request arrives at a leader.
    Ask {
        /// The client, counted from 0.
        client: usize,
        /// The request.
        request: Request,
        /// The leader.
        leader: NodeId,
    },
    /// A server crashes and restarts.
    Crash {
        /// The server.
        server: NodeId,
        /// The number of its latest entries that a leader loses, because they were not yet on its
        /// disk.
        lost: u64,
        /// A follower that received these entries before.
        heard: Option<NodeId>,
    },
}

impl Action {
    /// The sentence for the action without its state.
    pub fn sentence(&self) -> String {
        match self {
            Action::Tick => "real time passes".to_string(),
            Action::Look { leader, lost: 0 } => format!("server {leader} looks at its clock"),
            Action::Look { leader, lost } => format!("server {leader} looks at its clock, which lost {lost}"),
            Action::Elect { candidate, voter } => {
                format!("server {candidate} wins an election with the vote of server {voter}")
            }
            Action::Send { leader, follower, full } => {
                format!("{} of server {leader} arrives at server {follower}", append(*full))
            }
            Action::Delay { leader, follower, full } => {
                format!("{} of server {leader} to server {follower} is delayed", append(*full))
            }
            Action::Arrive(message) => {
                format!("a delayed AppendEntries of server {} arrives at server {}", message.from, message.to)
            }
            Action::Ask { client, request, leader } => {
                let request = match request {
                    Request::Acquire => "acquire",
                    Request::Release => "release",
                    Request::KeepAlive => "keepalive",
                };
                format!("the {request} of client {} arrives at server {leader}", client + 1)
            }
            Action::Crash { server, lost: 0, .. } => format!("server {server} crashes and restarts"),
            Action::Crash { server, lost, heard } => {
                let has = heard.map_or(String::new(), |id| format!(", which server {id} has"));
                format!("server {server} crashes and restarts without its last {lost} entries{has}")
            }
        }
    }
}

fn append(full: bool) -> &'static str {
    if full { "an AppendEntries with all entries" } else { "a heartbeat" }
}
