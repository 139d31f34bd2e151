//! Limits on what clients may request. A limit bounds the memory that one client, or all of them,
//! can make a node use. The leader checks the limits before it proposes, and its error names the
//! limit. Limits are not part of the protocol: the replicated state has the same meaning under any
//! of them.

use std::time::Duration;

/// Maximum length of a key, in bytes of UTF-8.
pub const KEY_BYTES: usize = 512;
/// Maximum length of a node's address, in bytes: a host name has at most 253.
pub const ADDRESS_BYTES: usize = 260;
/// Maximum length of a cluster's name, in bytes of UTF-8.
pub const CLUSTER_NAME_BYTES: usize = 64;
/// Maximum length of an owner, in bytes of UTF-8.
pub const OWNER_BYTES: usize = 256;
/// How far the counters of a restored cluster are advanced, so that no fencing token, version of a
/// record or revision of the access rules that was given out after the snapshot is given out again.
/// The gap is more than three years of tokens at ten thousand grants a second.
pub const RESTORE_GAP: u64 = 1_000_000_000_000;
/// Maximum length of the reason for a break, in bytes of UTF-8.
pub const REASON_BYTES: usize = 256;
/// Maximum size of the access rules, in bytes of JSON: they fit in one message, in either encoding.
pub const ACCESS_BYTES: usize = 15 * 1024;
/// Maximum number of access rules.
pub const ACCESS_RULES: usize = 256;
/// Maximum number of roles in the access rules.
pub const ACCESS_ROLES: usize = 64;
/// Minimum time-to-live, in milliseconds.
pub const TTL_MIN_MS: u64 = 100;
/// Maximum time-to-live, in milliseconds: one day.
pub const TTL_MAX_MS: u64 = 24 * 60 * 60 * 1000;
/// Maximum wait in a queue, in milliseconds: one day.
pub const WAIT_MAX_MS: u64 = 24 * 60 * 60 * 1000;
/// Maximum number of live sessions, unless `--max-sessions` sets another one.
pub const SESSIONS: usize = 1_000_000;
/// The first session number that is not given out. A session's credential has 48 bits for the
/// number; the margin is for opens in flight, which may exceed a limit.
pub const SESSION_NUMBERS: u64 = (1 << 48) - (1 << 20);
/// The part of all sessions that one client may have, unless `--max-sessions-per-client` sets a
/// number: one of so many.
pub const SESSION_SHARE: usize = 10;
/// Maximum number of unanswered requests of one client (a principal, or an address) while other
/// clients are active, unless `--max-unanswered-requests` sets another one. Enough to keep the core
/// and the disk busy between two syncs, and few enough that another client's request waits little
/// longer for them (docs/client-limits.md, "Fairness").
pub const UNANSWERED_REQUESTS: usize = 32;
/// How many more unanswered requests the client may have that is the only active one.
pub const SURPLUS_REQUESTS: usize = 1_024;
/// The part of all client connections that one client may have open at a node, unless
/// `--max-connections-per-client` sets a number: one of so many.
pub const CONNECTION_SHARE: usize = 8;
/// Maximum number of members, learners included.
pub const MEMBERS: usize = 31;
/// Time for which a leader must have led, and after a client's last request for a transfer, before
/// it transfers leadership for a client: every transfer interrupts all other requests.
pub const TRANSFER_PAUSE: Duration = Duration::from_secs(3);
/// Time after which a node that has lost its leadership and knows no other leader answers a request for a transfer.
pub const TRANSFER_ANSWER: Duration = Duration::from_secs(5);
/// Number of holders of one lock from which no more are admitted. The waiters that are admitted already
/// may become holders all the same.
pub const HOLDERS: usize = 1_000;
/// Maximum length of all keys of one claim on several keys, in bytes: each of its keys shows and stores
/// them all.
pub const CLAIM_KEY_BYTES: usize = 2 * 1024;
/// Maximum length of a claim's value, in bytes.
pub const VALUE_BYTES: usize = 4 * 1024;
/// Maximum length of all values in one page of a list, in bytes; of one lock a page shows them all.
pub const PAGE_VALUE_BYTES: usize = 1024 * 1024;
/// Maximum length of the keys and contents of one transaction of the store, in bytes: with the entries of
/// the largest transactions, the largest message between nodes is smaller than [`PEER_FRAME_BYTES`] and
/// [`STRANGER_BYTES`].
pub const TRANSACTION_BYTES: usize = 72 * 1024;
/// Maximum size of a transaction as JSON, and of a WebSocket message, in bytes: bytes that are no text, and some texts, take more as
/// JSON than by themselves.
pub const TRANSACTION_JSON_BYTES: usize = 256 * 1024;
/// Maximum length of the contents in all transactions that are not answered yet, in bytes. The others wait.
pub const UNANSWERED_CONTENTS: usize = 64 * 1024 * 1024;
/// Maximum length of all records, in bytes, unless `--max-store-bytes` sets another one: keys, contents, and
/// 64 bytes for each. The store is in memory, on every node.
pub const STORE_BYTES: u64 = 256 * 1024 * 1024;
/// Maximum length of all claims, in bytes, unless `--max-claim-bytes` sets another one: at each key of a claim, that
/// key, all keys of a claim on several, the value, and 64 bytes more. Twelve million locks with short keys.
pub const CLAIM_BYTES: u64 = 1024 * 1024 * 1024;
/// Maximum number of waiters for one lock, of which a request for several keys finds room for a part: one of as many as it
/// has keys.
pub const QUEUE: usize = 10_000;
/// Maximum number of keys that one session may hold or wait for.
pub const CLAIMS: usize = 10_000;
/// Maximum number of locks in one page of a list.
pub const PAGE: usize = 1_000;
/// Maximum number of holders and waiters in one page of a list, each once for each of its keys, so that long queues
/// make short pages.
pub const PAGE_CLAIMS: usize = 10_000;
/// Memory for the newest events, which watches show, in bytes, unless `--watch-history` sets another one.
pub const WATCH_HISTORY_BYTES: usize = 32 * 1024 * 1024;
/// Maximum number of watches at a node.
pub const WATCHES: usize = 20_000;
/// The part of them that one client may have, unless `--max-watches-per-client` sets a number: one of so
/// many.
pub const WATCH_SHARE: usize = 8;
/// Maximum number of watches on a WebSocket.
pub const CONNECTION_WATCHES: usize = 1_024;
/// Maximum number of frames of its watches that wait for a WebSocket's client to read them.
pub const WATCH_FRAMES: usize = 64;
/// Watchers of keys with many watchers that may be woken at once, after a pause.
pub const WATCH_BURST: f64 = 20_000.0;
/// How many of them are woken in a second after that: a wake is a write to a socket.
pub const WATCH_WAKES_PER_SECOND: f64 = 20_000.0;
/// How often a watch without events says that it lives.
pub const WATCH_KEEPALIVE: Duration = Duration::from_secs(10);
/// Maximum size of an HTTP body, in bytes, except for those of the store.
pub const REQUEST_BYTES: usize = 16 * 1024;
/// Bytes that a WebSocket reads at a time. Every connection allocates them, even an idle one, and each
/// attempt to read fills them with zeros first.
pub const READ_BUFFER: usize = 4 * 1024;
/// Maximum size of an HTTP request's head, in bytes.
pub const HEAD_BYTES: usize = 16 * 1024;
/// Maximum number of unanswered requests on a WebSocket; the node reads nothing more from it until
/// one is answered. An acquire that waits in a queue does not count: its answer may be hours away,
/// and must not delay the requests after it.
pub const OPEN_REQUESTS: usize = 1_024;
/// Maximum number of waiting acquires of one connection.
pub const CONNECTION_WAITS: usize = 10_000;
/// Maximum number of answers that may wait for a WebSocket's client to read them: one for every
/// request that it may have open at once, those included that became waits while the limit of waits
/// was reached, frames of watches, and one that says why the connection ends. The node closes a
/// connection that exceeds it.
pub const UNREAD_ANSWERS: usize = CONNECTION_WAITS + 2 * OPEN_REQUESTS + WATCH_FRAMES + CONNECTION_WATCHES + 1;
/// Maximum number of unanswered reads of locks and sessions on a WebSocket; the node reads nothing
/// more from it until one is answered. Their answers can be large: 4 MiB for a lock with 1,000 holders
/// and their values.
pub const OPEN_READS: usize = 4;
/// Maximum number of waiting acquires whose connection was lost and whose client may resume them (`http/hold.rs`). The
/// others leave their queues when their connections are lost.
pub const DESERTED_WAITS: usize = 10_000;
/// Maximum number of values that the client of a held lock has sent and that are not answered yet.
pub const OPEN_VALUES: usize = 16;
/// Maximum number of open client connections, if the limit of open files allows that many
/// (`descriptors.rs`).
pub const CONNECTIONS: usize = 20_000;
/// Maximum number of open connections to the address for administration, out of those of all clients.
pub const ADMIN_CONNECTIONS: usize = 256;
/// Maximum number of open connections to the peer port that have not completed the handshake, if
/// the limit of open files allows that many. Half of them are for connections from addresses of members only.
pub const UNIDENTIFIED_CONNECTIONS: usize = 256;
/// Memory for what unknown programs have sent to a port and the node has not handled yet, in bytes:
/// unfinished frames of nodes that are no members at one port, unfinished requests of clients at the
/// other. The largest frame of a leader that this node does not know yet fits: 512 entries, each a
/// transaction of [`TRANSACTION_BYTES`], have some 37 MiB.
pub const STRANGER_BYTES: usize = 48 * 1024 * 1024;
/// Maximum number of bytes of large answers over HTTP that clients have not read yet. An answer has at most some 30 MB: a
/// lock with 10,000 waiters, their keys and owners.
pub const UNREAD_BYTES: usize = 512 * 1024 * 1024;
/// An answer of so many bytes is a large one. Of smaller ones, each connection has at most one.
pub const LARGE_ANSWER: usize = 64 * 1024;
/// The part of what unknown programs may use of a port that those at one address may use: one of so
/// many.
pub const STRANGER_SHARE: usize = 8;
/// Maximum number of handshakes of TLS at the port for clients that are in progress: each may have
/// 64 KiB in memory. The others wait.
pub const HANDSHAKES: usize = 512;
/// The same at the port for administration, so that strangers at the port for clients keep no operator out.
pub const ADMIN_HANDSHAKES: usize = HANDSHAKES / 8;
/// Maximum number of TLS handshakes in progress at the peer port with other addresses than the members'. They share a
/// thread with the members' messages.
pub const PEER_HANDSHAKES: usize = 32;
/// Time within which a node that is no member must complete its next frame.
pub const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of nodes that are no members, as far as this node knows, that it remembers and
/// dials: as many as a cluster that it has just joined may have.
pub const UNKNOWN_NODES: usize = MEMBERS;
/// Maximum number of clients that read a snapshot at the same time: each keeps its file open.
pub const SNAPSHOT_READS: usize = 4;
/// How many of them one client may read.
pub const CLIENT_SNAPSHOT_READS: usize = 2;
/// Bytes per second at which a client must read a snapshot at least, after
/// [`SNAPSHOT_READ_GRACE`]: so long the file takes space on the disk, although newer snapshots have
/// replaced it.
pub const SNAPSHOT_READ_RATE: u64 = 1024 * 1024;
/// Time that every client has for reading a snapshot, beside the time by its size.
pub const SNAPSHOT_READ_GRACE: Duration = Duration::from_secs(10);
/// Pause after a snapshot that a client has requested before the next request, unless the log has
/// grown by the snapshot's size or the snapshot is small.
pub const SNAPSHOT_REQUEST_PAUSE: Duration = Duration::from_secs(10);
/// The same between the requests of two clients. Shorter, so that a client that requests snapshots in a
/// loop leaves time for the request of another one.
pub const SNAPSHOT_CLIENTS_PAUSE: Duration = Duration::from_secs(2);
/// Maximum size of a snapshot that may be requested again at once, in bytes: it costs little more
/// than a sync.
pub const SNAPSHOT_SMALL: u64 = 64 * 1024;
/// Maximum size of a snapshot that a node receives, in bytes: more than that of fifty million locks.
pub const SNAPSHOT_BYTES: u64 = 16 * 1024 * 1024 * 1024;
/// Time within which a client must send an HTTP request's head.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which a client must read the answers on a WebSocket, or some part of an HTTP answer,
/// before the node closes its connection.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which all writes together may wait for a client that reads slowly, beside the time for what it reads
/// ([`ANSWER_RATE`]). It comes back while no write waits.
pub const ANSWER_GRACE: Duration = Duration::from_secs(10);
/// Bytes per second at which a client must read at least while there is more for it, after [`ANSWER_GRACE`]: so long an
/// answer is in memory.
pub const ANSWER_RATE: u64 = 64 * 1024;
/// Number of events waiting for the core from which on requests are refused.
pub const CORE_QUEUE: usize = 65_536;
/// Capacity of the core's channel of batches of peer messages.
pub const CORE_MESSAGES: usize = 4_096;
/// Maximum number of inputs that the core takes between two syncs.
pub const CORE_BATCH: usize = 4_096;
/// Maximum number of sessions that one log entry keeps alive.
pub const KEEPALIVES: usize = 1_024;
/// Pause before a leader repeats a rejected proposal of its own (to withdraw a wait or to renew a
/// session): short for the client that waits for it, and long enough that the core does other work.
pub const OWN_PROPOSAL_RETRY: Duration = Duration::from_millis(20);
/// Maximum number of holders and waiters in the read answers of one iteration of the core, each once for each of its
/// keys, and of 100 bytes of values; the remaining reads are answered in the next iteration.
pub const ITERATION_CLAIMS: usize = 10_000;
/// Maximum number of uncommitted entries in a leader's log. Above it the leader rejects requests;
/// clients repeat them later.
pub const UNCOMMITTED: u64 = 65_536;
/// Maximum number of messages that wait for a peer's connection.
pub const PEER_OUTBOX: usize = 4_096;
/// Maximum size of a frame between nodes, in bytes.
pub const PEER_FRAME_BYTES: usize = 64 * 1024 * 1024;
/// Bytes written to the log that make the next snapshot due, unless configured otherwise.
pub const SNAPSHOT_LOG_BYTES: u64 = 64 * 1024 * 1024;
/// Age of the newest snapshot that makes the next one due, unless configured otherwise.
pub const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Number of entries that stay in the log although the newest snapshot includes them: as many as
/// may be in flight to a follower.
pub const SNAPSHOT_MARGIN: u64 = 8_192;
/// Pause before the next attempt after a failed snapshot.
pub const SNAPSHOT_RETRY: Duration = Duration::from_secs(10);
/// Maximum number of entries that one iteration of the core removes from the log.
pub const ITERATION_COMPACTION: u64 = 16_384;
/// Size of the pieces in which snapshots are read, sent and written, in bytes.
pub const SNAPSHOT_PIECE: usize = 256 * 1024;
/// Time within which the other node must continue a snapshot transfer.
pub const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(10);
/// How long after an interruption a transfer resumes with the same snapshot, and the log after that
/// snapshot is kept. Later transfers send the newest snapshot.
pub const SNAPSHOT_RESUMED_WITHIN: Duration = Duration::from_secs(60);
/// Bytes that may be written to a leader's log while the leader keeps the entries that a follower
/// needs after a snapshot; or twice the newest snapshot's size if that is more. Above it the log is
/// compacted, and the follower is sent the newest snapshot: a follower that needs longer than that
/// much log for a snapshot receives more slowly than the cluster writes, and would not catch up
/// from the log either. The kept log also occupies memory.
pub const CATCH_UP_LOG_BYTES: u64 = 4 * SNAPSHOT_LOG_BYTES;

/// The clients at a loopback address may have a half of each limit: many may come through a proxy on this machine.
const LOOPBACK_SHARE: usize = 2;

/// The part of a limit that one client may have: one of so many shares, or a half if it is at a loopback address.
pub fn part(limit: usize, shares: usize, is_loopback: bool) -> usize {
    (limit / if is_loopback { LOOPBACK_SHARE } else { shares }).max(1)
}
