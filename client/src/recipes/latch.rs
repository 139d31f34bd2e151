//! Open once.

use super::settled;
use crate::wire::{Change, Code, Condition, Consistency, Event, Failure, RecordChange, Transaction, Watch, Watched};
use crate::{Client, Error};

/// A latch: closed until a client opens it, and open from then on. It is the record of its key: open when there is one.
///
/// ```no_run
/// # async fn example(client: palisade_client::Client) -> Result<(), palisade_client::Error> {
/// use palisade_client::recipes::Latch;
///
/// let migrated = Latch::new(&client, "schema/7");
/// migrated.wait().await?; // in every worker; the one that migrates calls `migrated.open()`
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Latch {
    client: Client,
    key: String,
}

impl Latch {
    /// The latch of this key, 1 to 512 bytes. Asks the server nothing.
    pub fn new(client: &Client, key: impl Into<String>) -> Latch {
        Latch { client: client.clone(), key: key.into() }
    }

    /// Opens it. To open it again changes nothing.
    ///
    /// # Errors
    /// [`Error::Unreachable`] or [`Error::UnknownOutcome`] if no leader answered in time: it may be open, and may be opened
    /// again. [`Error::Refused`], [`Error::Closed`].
    pub async fn open(&self) -> Result<(), Error> {
        let key = || self.key.clone();
        let transaction = Transaction {
            session: None,
            conditions: vec![Condition::Version { key: key(), version: 0 }],
            changes: vec![RecordChange::Put { key: key(), value: "open".into() }],
        };
        match settled(&self.client, transaction).await {
            Ok(_) | Err(Error::Refused(Failure { error: Code::OtherVersion, .. })) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether it is open.
    ///
    /// # Errors
    /// As those of [`Client::record`].
    pub async fn is_open(&self) -> Result<bool, Error> {
        Ok(self.client.record(&self.key, Consistency::Linearizable).await?.is_some())
    }

    /// Waits until it is open, as long as that takes; a `tokio::time::timeout` around it gives up.
    ///
    /// # Errors
    /// As those of [`Watcher::next`](crate::Watcher::next).
    pub async fn wait(&self) -> Result<(), Error> {
        let mut watcher = self.client.watch(Watch::key(&self.key));
        loop {
            match watcher.next().await? {
                Watched::Listing(listing) if !listing.records.is_empty() => return Ok(()),
                Watched::Event(Event { change: Change::Put { .. }, .. }) => return Ok(()),
                Watched::Listing(_) | Watched::Event(_) | Watched::Compacted { .. } => {}
            }
        }
    }

    /// Removes its record, when no client waits for it any more. Use a key once: a node that lags behind may show a
    /// removed latch as open.
    ///
    /// # Errors
    /// As those of [`Client::transact`].
    pub async fn remove(&self) -> Result<(), Error> {
        let changes = vec![RecordChange::Delete { key: self.key.clone() }];
        settled(&self.client, Transaction { changes, ..Transaction::default() }).await.map(drop)
    }
}
