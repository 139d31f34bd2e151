//! All have arrived.

use std::collections::BTreeSet;

use super::settled;
use crate::wire::{Change, Code, Event, Failure, ListRecords, RecordChange, Transaction, Watch, Watched};
use crate::{Client, Error};

/// The most changes of one transaction.
const CHANGES: usize = 32;

/// A barrier: a group of `parties` goes on when all of it have arrived.
///
/// Each participant has a name, and arrives by a record `KEY/NAME`. To arrive twice under a name counts once, so a
/// participant that starts anew arrives again without harm; one that dies after its arrival has arrived. **Use a key
/// once**, with the round in its name: a node that lags behind may show arrivals of a round that was removed.
///
/// ```no_run
/// # async fn example(client: palisade_client::Client, shard: u32) -> Result<(), palisade_client::Error> {
/// use palisade_client::recipes::Barrier;
///
/// let loaded = Barrier::new(&client, "import/2026-11-25/loaded", 8);
/// loaded.arrive(format!("shard-{shard}")).await?;
/// loaded.wait().await?; // all eight shards are loaded
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    client: Client,
    /// The key, and a slash.
    prefix: String,
    parties: usize,
}

impl Barrier {
    /// The barrier of this key, for so many participants. Asks the server nothing.
    pub fn new(client: &Client, key: impl Into<String>, parties: usize) -> Barrier {
        Barrier { client: client.clone(), prefix: key.into() + "/", parties }
    }

    /// The participant of this name has arrived: not empty and without a slash, with the key at most 511 bytes.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Code::Invalid`] for a name that is none. [`Error::Unreachable`] or
    /// [`Error::UnknownOutcome`] if no leader answered in time: it may have arrived, and may arrive again.
    /// [`Error::Closed`].
    pub async fn arrive(&self, name: impl AsRef<str>) -> Result<(), Error> {
        let name = name.as_ref();
        if name.is_empty() || name.contains('/') {
            let message = format!("{name:?} cannot arrive: a participant's name is not empty and has no slash");
            return Err(Error::Refused(Failure::new(Code::Invalid, message)));
        }
        let changes = vec![RecordChange::Put { key: format!("{}{name}", self.prefix), value: "arrived".into() }];
        settled(&self.client, Transaction { changes, ..Transaction::default() }).await.map(drop)
    }

    /// Waits until all have arrived, as long as that takes; a `tokio::time::timeout` around it gives up. Everything that a
    /// participant did before it arrived has happened then.
    ///
    /// # Errors
    /// As those of [`Watcher::next`](crate::Watcher::next).
    pub async fn wait(&self) -> Result<(), Error> {
        let mut watcher = self.client.watch(Watch::prefix(&self.prefix));
        let (mut arrived, mut is_listed) = (BTreeSet::new(), false);
        while !is_listed || arrived.len() < self.parties {
            match watcher.next().await? {
                Watched::Listing(listing) => {
                    if listing.begins {
                        arrived.clear();
                    }
                    arrived
                        .extend(listing.records.iter().filter_map(|record| self.name(&record.key)).map(str::to_owned));
                    is_listed = listing.complete;
                }
                Watched::Event(Event { key, change, .. }) => match (self.name(&key), change) {
                    (Some(name), Change::Put { .. }) => drop(arrived.insert(name.to_owned())),
                    (Some(name), Change::Deleted { .. }) => drop(arrived.remove(name)),
                    _ => {}
                },
                Watched::Compacted { .. } => is_listed = false,
            }
        }
        Ok(())
    }

    /// The names of those that have arrived, in order.
    ///
    /// # Errors
    /// As those of [`Client::list_records`].
    pub async fn arrived(&self) -> Result<Vec<String>, Error> {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let query =
                ListRecords { prefix: self.prefix.clone(), limit: Some(1_000), after, ..ListRecords::default() };
            let page = self.client.list_records(query).await?;
            names.extend(page.records.iter().filter_map(|record| self.name(&record.key)).map(str::to_owned));
            after = page.next_after;
            if after.is_none() {
                return Ok(names);
            }
        }
    }

    /// Removes the records of all that have arrived, when all have passed: a client that still waits would wait
    /// for ever.
    ///
    /// # Errors
    /// As those of [`Client::list_records`] and [`Client::transact`]; some records may be removed then.
    pub async fn remove(&self) -> Result<(), Error> {
        for names in self.arrived().await?.chunks(CHANGES) {
            let delete = |name: &String| RecordChange::Delete { key: format!("{}{name}", self.prefix) };
            let changes = names.iter().map(delete).collect();
            settled(&self.client, Transaction { changes, ..Transaction::default() }).await?;
        }
        Ok(())
    }

    /// The participant of a record; none if the record is not of this barrier.
    fn name<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.prefix).filter(|name| !name.is_empty() && !name.contains('/'))
    }
}
