//! The lock table: the state machine that Palisade replicates.
//!
//! A **session** is a client's lease: it lives until its deadline, which every keepalive,
//! every grant, and every new acquire of a lock that it already holds moves to a full time-to-live
//! (TTL) from then. A **lock** is a key that a session holds; later
//! sessions wait in the key's queue, first come, first served. Every grant has a **fencing token**,
//! drawn from one counter for the whole cluster. When a session expires or is closed, it loses all
//! its claims: its locks go to the next waiters *in the same step*, and its positions in other
//! queues are removed.
//!
//! Time is data. [`LockTable`] never reads a clock: an entry happens at its stamp. A session whose
//! deadline lies before the stamp is due and cannot act. A deadline is the last moment at which the
//! session still lives.
//!
//! Operations that carry a [`Sequence`] take effect exactly once: the session remembers the
//! greatest number that it has seen, and a repetition is answered from the state. The client sends
//! a session's operations in the order of their numbers, and reuses a number only to repeat the
//! same operation.
//!
//! Out of scope: limits (the server rejects before it proposes), shared locks, semaphores.

mod claims;
mod command;
mod expiry;
mod ids;
mod queue;
mod session;
mod shared_map;
mod table;

pub use command::{Claim, Command, Event, Opening, Outcome, Reply};
pub use ids::{Key, Owner, Sequence, SessionId, Token, Ttl};
pub use queue::{Holder, Lock, Waiter};
pub use session::Session;
pub use shared_map::SharedMap;
pub use table::LockTable;
