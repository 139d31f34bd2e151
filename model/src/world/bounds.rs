//! The limits of an exploration. They belong to the model, not to the protocol.

/// The limits of one configuration. The checker explores every behaviour within them.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The number of voters that found the cluster.
    pub servers: u32,
    /// The number of further servers, which initially know of no cluster. They have the highest
    /// numbers.
    pub joiners: u32,
    /// The last term in which a server may campaign on its own. A TimeoutNow may start a later one.
    pub terms: u64,
    /// The maximum length of a log, in entries, including the no-ops of new leaders.
    pub log: u64,
    /// The maximum number of crashes, at any point of a step. A server restarts at once; messages
    /// that arrive late stand for its downtime.
    pub crashes: u8,
    /// Whether a server that crashes between two steps loses its disk, and comes back under its old
    /// identity. The protocol forbids this; the bound shows the consequences.
    pub forgets: bool,
    /// The maximum number of snapshots, each of the server's applied state. The server may compact
    /// its log at any later time.
    pub snapshots: u8,
    /// The maximum number of repeated deliveries.
    pub repeats: Repeats,
    /// The maximum number of heartbeats; `None` for any number.
    pub heartbeats: Option<u8>,
    /// How messages between servers are delivered.
    pub delivery: Delivery,
    /// The maximum number of AppendEntries in flight from one server to another, and of answers to
    /// them.
    pub appends: usize,
    /// The maximum number of entries in an AppendEntries.
    pub batch: usize,
    /// The maximum number of unacknowledged entries that a leader sends to a follower.
    pub inflight: u64,
    /// The maximum number of entries that a node commits in one step.
    pub commits: u64,
    /// The maximum number of delayed messages with prompt delivery: they stay in the network, and
    /// arrive at any later time.
    pub late: u8,
    /// The maximum number of servers that are partitioned at the same time, each from all others.
    pub apart: usize,
    /// How elections are held.
    pub elections: Elections,
    /// Whether server 1 leads term 1 in the initial state, with its no-op committed on all servers.
    pub starts_with_leader: bool,
    /// Whether states that differ only in the servers' numbers count as one.
    pub symmetry: bool,
}

/// The number of messages that arrive more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// At most this many in a run.
    AtMost(u8),
    /// Every message may arrive any number of times.
    Unlimited,
}

/// How messages between servers are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Each message arrives at any time, or never.
    AnyTime {
        /// The maximum number of messages in flight. A message that finds no room displaces one of
        /// them, any one, which is lost.
        most: usize,
        /// How the answers are delivered.
        answers: Answers,
    },
    /// Each message arrives at once, in the order of sending, and so do the messages that it
    /// causes. Configurations with a smaller environment check delayed messages.
    Prompt {
        /// The maximum number of lost messages.
        losses: u8,
        /// How often a server may be partitioned from the others, each time for any duration.
        cuts: u8,
    },
}

/// How the answers to AppendEntries and to vote requests are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// As separate messages, which arrive at any time.
    Messages,
    /// At once or not at all. The server that waits for an answer cannot distinguish a late answer
    /// from a late request, except by the steps of the other server in between.
    AtOnce,
}

/// How elections are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elections {
    /// A campaign begins at any time, as if a majority had granted the PreVote, and the receivers
    /// of a RequestVote have lost contact with their leader. This allows more behaviours than the
    /// protocol, and needs fewer messages.
    AtWill,
    /// Every PreVote is a message, and each election timer runs out separately.
    StepByStep,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            servers: 3,
            joiners: 0,
            terms: 2,
            log: 2,
            crashes: 0,
            forgets: false,
            snapshots: 0,
            repeats: Repeats::AtMost(0),
            heartbeats: None,
            delivery: Delivery::AnyTime { most: 3, answers: Answers::Messages },
            appends: 1,
            batch: usize::MAX,
            inflight: 8192,
            commits: 8192,
            late: 0,
            apart: 1,
            elections: Elections::AtWill,
            starts_with_leader: false,
            symmetry: false,
        }
    }
}
