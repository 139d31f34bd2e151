//! What a client may ask for at the most. A limit bounds the memory that a client, or all of them, can make a node
//! use; the leader checks it before it proposes, and its answer names it. Limits are not part of the protocol: the
//! replicated state means the same under any of them.

use std::time::Duration;

/// A key's longest, in bytes of UTF-8.
pub const KEY_BYTES: usize = 512;
/// A node's address' longest, in bytes: a host name has 253 at the most.
pub const ADDRESS_BYTES: usize = 260;
/// An owner's longest, in bytes of UTF-8.
pub const OWNER_BYTES: usize = 256;
/// The shortest time-to-live, in milliseconds.
pub const TTL_MIN_MS: u64 = 100;
/// The longest time-to-live, in milliseconds: a day.
pub const TTL_MAX_MS: u64 = 24 * 60 * 60 * 1000;
/// The longest wait in a queue, in milliseconds: a day.
pub const WAIT_MAX_MS: u64 = 24 * 60 * 60 * 1000;
/// How many sessions there may be at once, unless `--max-sessions` says otherwise.
pub const SESSIONS: usize = 1_000_000;
/// How many may wait for one lock.
pub const QUEUE: usize = 10_000;
/// On how many keys one session may have a claim.
pub const CLAIMS: usize = 10_000;
/// The most locks in one page of a list.
pub const PAGE: usize = 1_000;
/// The most holders and waiters in one page of a list, so that long queues make short pages.
pub const PAGE_CLAIMS: usize = 10_000;
/// The most bytes in an HTTP body or a WebSocket message.
pub const REQUEST_BYTES: usize = 16 * 1024;
/// The most bytes in an HTTP request's head.
pub const HEAD_BYTES: usize = 16 * 1024;
/// How many requests a WebSocket may have unanswered before nothing more is read from it. An acquire that stands in
/// a queue does not count: its answer may be hours away, and must not hold up what comes behind it.
pub const OPEN_REQUESTS: usize = 1_024;
/// In how many queues one connection may stand.
pub const CONNECTION_WAITS: usize = 10_000;
/// The most answers that may wait for a WebSocket's client to read them: to all that it may have asked at once, waits
/// that were under way when their limit was reached included, and the one that says why the connection ends. Past it
/// the connection is closed.
pub const UNREAD_ANSWERS: usize = CONNECTION_WAITS + 2 * OPEN_REQUESTS + 1;
/// How many reads of locks and sessions a WebSocket may have unanswered before nothing more is read from it: their answers can be
/// large, a MiB and more.
pub const OPEN_READS: usize = 4;
/// How many connections from clients may be open, if the limit of open files leaves that many (`descriptors.rs`).
pub const CONNECTIONS: usize = 20_000;
/// How many connections to the peer port may be open that have not said yet who they are, with the same condition.
pub const STRANGERS: usize = 256;
/// How many clients may read a snapshot at once: each has its file open.
pub const SNAPSHOT_READS: usize = 4;
/// How long a client may take to send an HTTP request's head.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to read the answers on a WebSocket, or go without reading any of an answer over HTTP,
/// before its connection is closed.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many requests may stand before the core.
pub const CORE_QUEUE: usize = 65_536;
/// How many batches of messages from peers may stand before the core.
pub const CORE_MESSAGES: usize = 4_096;
/// How many inputs the core takes between two syncs.
pub const CORE_BATCH: usize = 4_096;
/// How many sessions one log entry keeps alive at the most.
pub const KEEPALIVES: usize = 1_024;
/// How long after a leader refused what it had proposed for itself (to withdraw a wait, to renew its session) it proposes
/// that again: soon for the client that waits for it, and not so soon that the core does nothing else.
pub const OWN_PROPOSAL_RETRY: Duration = Duration::from_millis(20);
/// How many holders and waiters one round shows to those who read; who has to wait longer is answered in the next.
pub const ROUND_CLAIMS: usize = 10_000;
/// How many entries may stand in a leader's log without a majority having them. Past it clients are told to come back.
pub const UNCOMMITTED: u64 = 65_536;
/// How many messages may wait for a peer's connection.
pub const PEER_OUTBOX: usize = 4_096;
/// The most bytes in a frame between nodes.
pub const PEER_FRAME_BYTES: usize = 64 * 1024 * 1024;
/// How much is written to the log before a snapshot is taken, unless told otherwise.
pub const SNAPSHOT_LOG_BYTES: u64 = 64 * 1024 * 1024;
/// How old a snapshot becomes before the next one is taken, unless told otherwise.
pub const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// How many entries stay in the log that a snapshot includes: as many as may be in flight to a follower.
pub const SNAPSHOT_MARGIN: u64 = 8_192;
/// How long after a snapshot could not be written the next one is tried.
pub const SNAPSHOT_RETRY: Duration = Duration::from_secs(10);
/// How many entries a log loses in one round.
pub const ROUND_COMPACTION: u64 = 16_384;
/// How much of a snapshot is read, sent and written at once.
pub const SNAPSHOT_PIECE: usize = 256 * 1024;
/// How long a node may take to go on with a snapshot that it sends or receives.
pub const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(10);
/// How long a snapshot that was broken off is still the one to be sent, and the log behind it is kept; after that it is the
/// newest again.
pub const SNAPSHOT_RESUMED_WITHIN: Duration = Duration::from_secs(60);
/// How much may be written to a leader's log while it keeps what a follower needs behind a snapshot, or twice the newest
/// snapshot's size if that is more. Past it the log is shortened, and the follower is sent the newest snapshot: a follower
/// to which a snapshot takes longer than that much log receives more slowly than the cluster writes, and would not catch up
/// with the log either. This is memory too.
pub const CATCH_UP_LOG_BYTES: u64 = 4 * SNAPSHOT_LOG_BYTES;
