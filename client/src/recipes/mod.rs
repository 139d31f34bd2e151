//! Small coordination, made of locks, records and watches: nothing of it is known to the server.
//!
//! - [`Latch`]: closed until a client opens it, and open from then on.
//! - [`Barrier`]: a group goes on when all of it have arrived.
//! - [`Observer`]: who leads, and what the leader says.
//!
//! Latch and barrier are records of the key-value store, so they outlive the processes that made them. Waiting is a
//! watch: it costs a connection, and no requests. Where there are access rules, a client that opens or arrives needs the
//! right to write the records, and a client that waits the right to read all of them: records that a client may not read
//! do not exist for it.

mod barrier;
mod latch;
mod observer;

pub use barrier::Barrier;
pub use latch::Latch;
pub use observer::{Leader, Observer};

use crate::wire::Transaction;
use crate::{Client, Error};

/// How often changes are asked for whose outcome is unknown.
const ATTEMPTS: usize = 5;

/// Makes changes that may as well be made twice: asks for them again when an answer was lost.
async fn settled(client: &Client, transaction: Transaction) -> Result<u64, Error> {
    for _ in 1..ATTEMPTS {
        match client.transact(transaction.clone()).await {
            Err(Error::UnknownOutcome { .. }) => {}
            settled => return settled,
        }
    }
    client.transact(transaction).await
}
