//! The client's patience, what it connects with, and what a lock is asked for with.

use std::time::Duration;

use crate::Security;

/// How patient a client is, and what it connects with. The defaults suit a cluster in one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a call looks for a leader that answers before it fails with [`Error::Unreachable`](crate::Error); calls
    /// that wait for a lock have their own bound, see [`Wait`]. 10 s.
    pub request_timeout: Duration,
    /// How long [`Client::connect`](crate::Client::connect) looks for a leader that answers before it fails with
    /// [`Error::Unreachable`](crate::Error). 10 s.
    pub connect_timeout: Duration,
    /// How long an answer may take before the request is sent again, under the same number. If nothing at all was
    /// answered after two attempts, the connection is given up. A request that would count twice, because it has no
    /// number, is sent again on another connection only. 1 s.
    pub attempt_timeout: Duration,
    /// How long a node may take to accept a connection, with all addresses of its name together: the next address is
    /// tried after 250 ms, or when one refuses. 1 s.
    pub dial_timeout: Duration,
    /// How long a waiting acquire goes unanswered before it is asked for again (under the same number, and with the
    /// same queue position), to notice an answer that was lost; doubled each time, up to 16 times as long (32 s). 2 s.
    pub ask_again: Duration,
    /// How long a connection in use may be silent before it is probed; if nothing is heard for an `attempt_timeout`
    /// after that, it is given up. 2 s.
    pub probe_after: Duration,
    /// Whether every node may forward this client's requests to the leader. By default the client goes to the leader
    /// itself, and lets a node forward its requests only if the leader's address leads nowhere. For a client that
    /// reaches the cluster at one address (a load balancer, a Kubernetes Service). `false`.
    pub forwarded: bool,
    /// What connections are secured with, to the endpoints and to every node that the cluster names. No TLS.
    pub security: Security,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            request_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            attempt_timeout: Duration::from_secs(1),
            dial_timeout: Duration::from_secs(1),
            ask_again: Duration::from_secs(2),
            probe_after: Duration::from_secs(2),
            forwarded: false,
            security: Security::plain(),
        }
    }
}

/// How long to stand in the queue for a lock that is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: a lock that is held is [`Error::Held`](crate::Error). Bounded by [`Options::request_timeout`].
    #[default]
    No,
    /// So long, then [`Error::TimedOut`](crate::Error). The call returns at the latest one
    /// [`Options::attempt_timeout`] after the wait, whether or not a node could be reached.
    For(Duration),
    /// Until the lock is granted or the server refuses, however long the cluster is out of reach.
    Forever,
}

/// What a lock is asked for with.
///
/// ```
/// use std::time::Duration;
/// use palisade_client::LockOptions;
///
/// let options = LockOptions::default().ttl(Duration::from_secs(5)).wait(Duration::from_secs(60)).owner("worker-7");
/// # let _ = options;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockOptions {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) owner: String,
    pub(crate) share: Share,
    pub(crate) max_queue: Option<u32>,
    pub(crate) value: Option<String>,
}

/// How much of a lock is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Share {
    /// All of it.
    #[default]
    Exclusive,
    /// It may be held by others that share it.
    Shared,
    /// So many permits of so many.
    Permits { permits: u32, of: u32 },
}

impl LockOptions {
    /// How long the lock outlives a holder that was not heard of: 100 ms to 24 h, whole milliseconds. 30 s by default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> LockOptions {
        self.ttl = ttl;
        self
    }

    /// Waits in the queue for at most so long. By default a lock that is held is an error at once.
    #[must_use]
    pub fn wait(mut self, at_most: Duration) -> LockOptions {
        self.wait = Wait::For(at_most);
        self
    }

    /// Waits in the queue until the lock is granted.
    #[must_use]
    pub fn wait_forever(mut self) -> LockOptions {
        self.wait = Wait::Forever;
        self
    }

    /// Shares the lock with others that ask for it so, as readers do: a shared holder excludes exclusive ones, and those
    /// that wait for the lock are served in the order in which they came. By default a lock has one holder.
    #[must_use]
    pub fn shared(mut self) -> LockOptions {
        self.share = Share::Shared;
        self
    }

    /// Takes `permits` of the `of` permits that the lock has, as a semaphore: its holders have at most all of them. All that
    /// ask for the lock at a time name the same `of`, 1 to 1,000,000.
    #[must_use]
    pub fn permits(mut self, permits: u32, of: u32) -> LockOptions {
        self.share = Share::Permits { permits, of };
        self
    }

    /// Waits only where fewer sessions wait already: a longer queue is [`Error::Held`](crate::Error), with its length.
    #[must_use]
    pub fn max_queue(mut self, sessions: u32) -> LockOptions {
        self.max_queue = Some(sessions);
        self
    }

    /// A value for other clients to read while this one holds the lock, at most 4,096 bytes: the address of a leader, for
    /// instance. [`Guard::proclaim`](crate::Guard::proclaim) replaces it.
    #[must_use]
    pub fn value(mut self, value: impl Into<String>) -> LockOptions {
        self.value = Some(value.into());
        self
    }

    /// A name to show to people, at most 256 bytes. Empty by default.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> LockOptions {
        self.owner = owner.into();
        self
    }
}

impl Default for LockOptions {
    fn default() -> LockOptions {
        LockOptions {
            ttl: Duration::from_secs(30),
            wait: Wait::No,
            owner: String::new(),
            share: Share::default(),
            max_queue: None,
            value: None,
        }
    }
}
