//! What a run explores. Bounds are the model's, never the protocol's.

/// The limits of one configuration. Within them every behaviour is explored.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// How many servers found the cluster, as voters.
    pub servers: u32,
    /// How many more there are, which know of no cluster at the beginning. They have the highest numbers.
    pub joiners: u32,
    /// The last term in which anybody may campaign, unless its leader calls it.
    pub terms: u64,
    /// How long a log may become, the no-ops of new leaders included.
    pub log: u64,
    /// How many crashes may happen, each at any place in a step. A server comes back at once: that it was away shows
    /// as messages that arrive late.
    pub crashes: u8,
    /// Whether a server that crashes between two steps has lost its disk, and comes back under its old identity. No server may:
    /// this shows what comes of it.
    pub forgets: bool,
    /// How many snapshots servers may take, each of all that they have applied. Their logs give way at any time after.
    pub snapshots: u8,
    /// How many messages may arrive once more.
    pub repeats: Repeats,
    /// How many heartbeats there may be; without a number, as many as the adversary likes.
    pub heartbeats: Option<u8>,
    /// How messages between servers travel.
    pub delivery: Delivery,
    /// How many AppendEntries may be on their way from one server to another, and how many answers.
    pub appends: usize,
    /// How many entries an AppendEntries may have.
    pub batch: usize,
    /// How many entries a leader may have sent to a follower that has not acknowledged them.
    pub inflight: u64,
    /// How many entries a node may commit in one step.
    pub commits: u64,
    /// How many messages may be late where messages are prompt: they stay on their way, and arrive at any later time.
    pub late: u8,
    /// How many servers may be cut off at the same time, each from all others.
    pub apart: usize,
    /// How elections go.
    pub elections: Elections,
    /// Whether server 1 leads term 1 at the beginning, with its no-op committed everywhere.
    pub starts_with_leader: bool,
    /// Whether states that differ only in the servers' names count as one.
    pub symmetry: bool,
}

/// How many messages arrive more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// So many in a run.
    AtMost(u8),
    /// Every message may arrive as often as the network likes.
    Unlimited,
}

/// How messages between servers travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Each arrives whenever it does, or never.
    AnyTime {
        /// How many may be on their way at once. Where there is no room for what is to be said, something that is on
        /// its way is lost first: whatever it is.
        most: usize,
        /// How the answers travel.
        answers: Answers,
    },
    /// Each arrives at once, in the order in which they are sent, with all that it brings about. What comes of late
    /// messages is for configurations that have less around the servers.
    Prompt {
        /// How many may be lost.
        losses: u8,
        /// How often a server may be cut off from the others, for as long as the adversary likes.
        cuts: u8,
    },
}

/// How the answers to AppendEntries and to requests for votes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// As messages of their own, which arrive whenever they do.
    Messages,
    /// At once or not at all. Whoever waits for an answer cannot tell a late one from a request that arrived late, but
    /// for what the other one did in between.
    AtOnce,
}

/// How elections go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elections {
    /// A campaign begins whenever the adversary likes, as if a majority had answered the PreVote, and whoever is asked
    /// for a vote has stopped hearing from its leader. That is more than the protocol allows, and fewer messages.
    AtWill,
    /// Every PreVote is a message, and election timers run out one by one.
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
