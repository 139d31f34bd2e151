//! Small coordination, made of records and watches: nothing of it is known to the server.
//!
//! - [`Latch`]: closed until a client opens it, and open from then on.
//! - [`Barrier`]: a group goes on when all of it have arrived.
//!
//! Both are records of the key-value store, so they outlive the processes that made them. Waiting is a watch: it costs a
//! connection, and no requests. Where there are access rules, a client that opens or arrives needs the right to write
//! the records, and a client that waits the right to read all of them: records that a client may not read do not exist
//! for it.

mod barrier;
mod latch;

pub use barrier::Barrier;
pub use latch::Latch;
