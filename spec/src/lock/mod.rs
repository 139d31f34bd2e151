//! The lock table: the state machine that Palisade replicates.
//!
//! # The problem
//!
//! A client wants to be the only one that does something: write to a file, run a job. It asks for
//! the lock on a key, and expects three things. No other client holds the lock at the same time, or
//! only clients that may share it. Clients that come later get it in the order in which they came.
//! And a client that crashes while it holds the lock does not keep it for ever.
//!
//! No table can meet the last expectation and the first at the same time: no server can tell a
//! client that has crashed from one that is slow, so a client may lose its lock without noticing.
//! The table cannot prevent that, but it can make it harmless. Every grant has a **fencing token**,
//! a number greater than that of every earlier grant in the cluster. If a resource refuses every
//! token lower than the greatest it has seen, no former holder can touch it once its successor has.
//!
//! # How the parts play together
//!
//! A [`LockTable`] is a [`StateMachine`](crate::raft::StateMachine): it changes only when an entry
//! of the log is applied, by `apply` for a [`Command`] and by `advance` for a no-op. Every replica
//! applies the same entries in the same order, so every replica has the same table. The result is
//! an [`Outcome`]: the reply to the proposer, and the [`Event`]s for observers.
//!
//! **Time is data.** The table never reads a clock. An entry happens at its stamp, which the leader
//! gave it ([`raft::clock`](crate::raft::clock)); a deadline is the last stamp at which a session
//! still lives. A session whose deadline lies before the stamp of an entry is *due*: from that
//! entry on it cannot act and is granted nothing, even if its removal comes later.
//!
//! **A [`Session`]** is everything that the table knows of a client. It is a lease: each keepalive,
//! each grant, and each acquire of a lock that it already holds moves its deadline to a full
//! time-to-live (TTL) from then. It remembers the number of the last operation it has seen, so an
//! operation with a [`Sequence`] takes effect once. And it is the unit that ends: with it end all
//! its claims, that is the locks that it holds and the queue positions at which it waits.
//!
//! **A [`Lock`]** exists only while a session has a claim on its key. It has the holders, each with its
//! token and the number of its acquire, and the queue of the [`Waiter`]s. A free key is in no map, so
//! it costs no memory; for the same reason one token counter serves all keys.
//!
//! **A claim has a [`Mode`]**: how many permits of the lock it takes, and of how many. The holders of a
//! lock have at most all its permits: that one rule gives exclusive locks, locks that readers share,
//! and semaphores.
//!
//! **A claim is on one key or on several** ([`Keys`]). It stands in the queue of each of them, and is
//! granted when it is the first in all and each has room for it: then it gets one token for all, and it
//! gives them up together. No other claim overtakes it anywhere, so a free lock may have a queue. All queues
//! follow the order of the log, so no claims wait for one another in a circle
//! ([`invariants::no_deadlock`](crate::invariants::no_deadlock)), and a writer among readers does not
//! starve.
//!
//! **Sessions and locks point at each other**: a lock names the sessions that hold it and wait for
//! it, a session lists the keys on which it has a claim, each at most once. Two indexes order the
//! sessions by deadline: all of them, and the first holders of locks with waiters. Every command keeps the
//! four in step; [`invariants::table_is_sound`](crate::invariants::table_is_sound) says exactly how.
//!
//! # The life of a lock
//!
//! Sessions A and B, key `k`:
//!
//! 1. `Open` gives A an identity: the table's next number, which never comes back, and the proof
//!    that came with the command. Only requests with this proof are A's.
//! 2. A acquires `k`. No lock on `k` exists, so the table makes one: A becomes the holder with the
//!    next token, and its deadline moves ([`Event::Granted`]).
//! 3. B acquires `k` and is willing to wait. It becomes the last in the queue, and the reply says
//!    how many are ahead. Had it not been willing, the reply would name the holder. Waiting renews
//!    nothing: B keeps its session alive as A does.
//! 4. A's reply is lost, and A repeats its acquire with the same number. The number is not new, so
//!    nothing changes. The reply is computed from the state: A holds `k` by that very operation, so
//!    the reply has the same token.
//! 5. A releases `k` with its token. In the same entry the first waiter that is not due becomes the
//!    holder, with a new token and a full TTL ([`Event::Released`], [`Event::Granted`]). Nothing
//!    happens between the two, so no newcomer can overtake the queue.
//! 6. Or A falls silent. Once A is due, the lock passes on in one of two ways. A command that names
//!    `k` first ends A, so the command meets the next holder. (Of many due holders that share a lock, a
//!    command ends as many as a sweep.) Or the leader, whose clock has passed
//!    the table's earliest deadline, appends a no-op, which *sweeps*: it ends due sessions, first
//!    the first holders of locks with waiters, and only so many in one entry.
//!    A's end is [`Event::Expired`], then the events of step 5.
//! 7. B releases `k`, and no session waits. The lock is removed.
//!
//! A session that acquires what it holds gets its grant again. If it asks for that (`reentrant`), the
//! grant has one hold more, and only the last release gives the lock up.
//!
//! **A claim may have a value** for other clients, such as the address at which a leader serves. The
//! acquire sets the value, and it becomes that of the grant; the holder replaces it with `Proclaim`,
//! which names its token. An election is no more than that: a lock that candidates acquire, and whose
//! holder leads.
//!
//! An operator may break a grant (`Break`), for instance of a holder that hangs and keeps its session
//! alive: the lock passes on in the same entry, as in step 5.
//!
//! **Access rules** ([`Rules`]) are part of the table, so that every replica decides alike, and a
//! rule is in force from one entry of the log on. Without rules every client may do everything. With
//! them, an acquire is denied unless a rule permits it, and a waiter whose turn comes while no rule
//! permits it leaves the queue. A holder keeps what it holds, and every session may give back what it
//! has, whatever the rules say.
//!
//! **The store** has records beside the locks ([`Transaction`]). A transaction changes some of them, all
//! or none, if the grants that it names are held at that very entry. So a former holder writes nothing, and
//! what a holder has written is changed only by holders (`store/`).
//!
//! A client that wants a lock and no session uses `AcquireOnce`: the table opens a session for that
//! one claim, and ends it with the claim.
//!
//! # The rules and their files
//!
//! | what | file |
//! |---|---|
//! | commands, replies, events | `command.rs` |
//! | who may acquire, break and administer what; how the rules change | `access/` |
//! | identities and their proofs, keys, owners, tokens, operation numbers, TTLs | `ids.rs` |
//! | a session: its TTL, its deadline, its last number | `session.rs` |
//! | the keys on which a session has a claim | `claims.rs` |
//! | how much of a lock a claim takes: exclusive, shared, permits | `mode.rs` |
//! | the keys of one claim | `keys.rs` |
//! | a lock: its holders and its queue | `queue.rs` |
//! | a claim's further keys, and its value | `details.rs` |
//! | what each command does, and exactly once | `table.rs` |
//! | acquire, release and break; which session is granted a lock, and when | `grants.rs` |
//! | records, what changes them, and who may | `store/` |
//! | what ends a session, and how much one entry may end | `expiry.rs` |
//! | how a command is written in a log, for as long as there are logs | `encoding.rs` |
//! | how the locks are written in a snapshot | `stored.rs` |
//! | the table's maps: their copies share structure, so a snapshot need not stop the node | `shared_map.rs` |
//!
//! docs/protocol.md has the same rules in prose ("The lock table", "Exactly once").
//! `spec/tests/scripts/lock/` shows each at work, one behaviour a file.
//!
//! # What is left out
//!
//! - **Limits.** The table takes every command that is in the log: the server refuses what exceeds
//!   its limits before it proposes it, so raising a limit does not change what an entry means.
//! - **Reads.** A read is not a command. The server reads the table once Raft has confirmed the
//!   leader ([`raft::read`](crate::raft::read)).
//! - **Authentication.** The table compares a request's proof with that of the session, and a
//!   principal with the access rules. How a server makes a proof, and how it knows the principal, is
//!   the server's (docs/decisions/0023). An owner's name is shown to other clients and never compared.
//! - **Rights to read.** Reads are no commands: the server compares them with the rules of the table
//!   that it reads.
//! - **Deadlocks between claims of one session.** A session that holds one lock may wait for another
//!   one by a second claim, and two such sessions may wait for each other until one gives up or ends.
//!   Sessions that acquire both locks by one claim do not.
//! - **Upgrades.** A session that holds a shared lock cannot make it exclusive: two that did so would
//!   wait for each other. It releases the one and acquires the other.
//! - **Fairness between keys, and priorities.** Each queue is first come, first served, in the
//!   order of the log.
//! - **The resource.** The table gives out tokens. Whether another resource than its own store checks them is
//!   beyond it.
//!
//! # Where it differs from the dissertation
//!
//! §6.3 has sessions for exactly-once only; here a session is also the lease. It keeps no replies:
//! a repetition is answered from the state, as in step 4, or with [`Reply::Gone`] if nothing of the
//! operation is left. Sessions expire by the stamps of the log, and not because a server decides to
//! drop the oldest. A session that is opened twice, because the first reply was lost, is two
//! sessions: the first holds nothing, and expires.

mod access;
mod claims;
mod command;
mod details;
mod encoding;
mod expiry;
mod grants;
mod ids;
mod keys;
mod mode;
mod queue;
mod session;
mod shared_map;
mod store;
mod stored;
mod table;

pub use access::{Access, Decision, Right, Rights, RoleMembers, Rule, Rules, Subject};
pub use command::{Claim, Command, Event, LockRequest, Opening, Outcome, Reply};
pub use ids::{Key, Owner, Prefix, Principal, Proof, Revision, Role, Sequence, SessionId, Token, Ttl, Value, Version};
pub use keys::Keys;
pub use mode::Mode;
pub use queue::{ClaimIndex, Holder, Holders, Lock, Queue, Waiter};
pub use session::Session;
pub use shared_map::{Entries, SharedMap};
pub use store::{Bytes, Change, Condition, RECORD_BYTES, Record, Transaction, Writer};
pub use table::LockTable;
