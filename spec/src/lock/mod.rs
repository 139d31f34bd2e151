//! The lock table: the state machine that Palisade replicates.
//!
//! A **session** is a client's lease: it lives until its deadline, which every sign of life puts off by its
//! time-to-live (TTL). A **lock** is a key that a session holds; whoever comes later stands in the key's queue, first
//! come, first served. Every grant has a **fencing token**, drawn from one counter for the whole cluster. When a
//! session ends, by its deadline or by its own wish, it lets go of everything: what it held goes to the next in the
//! queue *in the same step*, and its places in other queues are gone.
//!
//! Time is data. [`LockTable`] never looks at a clock: an entry happens at its stamp, and first everything expires
//! whose deadline lies before that. A deadline is the last moment at which the session still lives.
//!
//! Operations that carry a [`Sequence`] are done exactly once: the session remembers the greatest number it has seen,
//! and a repetition is answered from the state. The client sends a session's operations in the order of their numbers,
//! and uses a number again only to repeat that very operation.
//!
//! What is not here: limits on anything (the server refuses before it proposes), shared locks, semaphores.

mod claims;
mod command;
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
