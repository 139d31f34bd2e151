//! Small coordination, made of records and watches: nothing of it is known to the server.
//!
//! - [`Latch`]: closed until somebody opens it, and open from then on.
//! - [`Barrier`]: a group goes on when all of it have arrived.
//!
//! Both are records of the key-value store, so they outlive the processes that made them, and need the rights to write and
//! read these records where there are access rules. Waiting is a watch: it costs a connection, and no requests.

mod barrier;
mod latch;

pub use barrier::Barrier;
pub use latch::Latch;
