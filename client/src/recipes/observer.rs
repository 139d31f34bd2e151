//! Who leads.

use crate::wire::{Change, HolderView, Mode, Watch, Watched};
use crate::{Client, Error, Watcher};

/// Follows who leads, and what the leader says: the other half of an election. A candidate campaigns with
/// [`Client::lock`] and [`LockOptions::value`](crate::LockOptions::value), changes its value with
/// [`Guard::proclaim`](crate::Guard::proclaim), and resigns with [`Guard::release`](crate::Guard::release).
///
/// It needs the right to read the key, and no other. It is a watch, so it goes on at another node when its node stops,
/// and the leader that it shows may be a former one by then: a leader must send its token with each request, and a
/// resource must compare the tokens.
///
/// ```no_run
/// # async fn example(client: palisade_client::Client) -> Result<(), palisade_client::Error> {
/// use palisade_client::recipes::Observer;
///
/// let mut observer = Observer::new(&client, "billing/leader");
/// loop {
///     match observer.next().await? {
///         Some(leader) => println!("{} leads, at {:?}", leader.owner, leader.value),
///         None => println!("there is no leader"),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Observer {
    watcher: Watcher,
    key: String,
    /// The holder of the lock after all that the watch has told.
    present: Option<Leader>,
    /// What was returned last; nothing before the first call.
    shown: Option<Option<Leader>>,
}

/// A leader, and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The name that its client gave.
    pub owner: String,
    /// Its session's public number.
    pub session: u64,
    /// Its fencing token: greater than those of all leaders before it.
    pub token: u64,
    /// Its value, if it has given one.
    pub value: Option<String>,
}

impl From<HolderView> for Leader {
    fn from(HolderView { owner, session, token, value, .. }: HolderView) -> Leader {
        Leader { owner, session, token, value }
    }
}

impl Observer {
    /// An observer of the election that the lock of this key decides, held exclusively: other holders are no leaders. Asks
    /// the server nothing.
    pub fn new(client: &Client, key: impl Into<String>) -> Observer {
        let key = key.into();
        Observer { watcher: client.watch(Watch::key(&key)), key, present: None, shown: None }
    }

    /// The present leader at the first call, as soon as a node answers; then each other leader and each other value, in order, and `None`
    /// when a leadership has ended. Between two calls nothing is skipped that the nodes still have in their history
    /// (`serve --watch-history`); if they have it no more, the present state follows. So an observer that calls seldom
    /// learns of former leaders, too.
    ///
    /// Can be dropped and called anew: nothing is lost.
    ///
    /// # Errors
    /// As those of [`Watcher::next`].
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            let is_complete = match self.watcher.next().await? {
                Watched::Listing(listing) => {
                    if listing.begins {
                        self.present = None;
                    }
                    let lock = listing.locks.into_iter().find(|lock| lock.key == self.key);
                    let holder = lock.and_then(|lock| lock.holder).filter(|holder| holder.mode == Mode::Exclusive);
                    self.present = holder.map(Leader::from).or(self.present.take());
                    listing.complete
                }
                Watched::Event(event) => {
                    self.take_in(event.change);
                    true
                }
                Watched::Compacted { .. } => false,
            };
            if is_complete && self.shown.as_ref() != Some(&self.present) {
                self.shown = Some(self.present.clone());
                return Ok(self.present.clone());
            }
        }
    }

    fn take_in(&mut self, change: Change) {
        match change {
            Change::Granted { owner, session, token, value, mode: Mode::Exclusive, .. } => {
                self.present = Some(Leader { owner, session, token, value });
            }
            Change::Value { token, value, .. } => {
                if let Some(leader) = self.present.as_mut().filter(|leader| leader.token == token) {
                    leader.value = Some(value);
                }
            }
            Change::Released { token, .. } => drop(self.present.take_if(|leader| leader.token == token)),
            // `Released` follows an expiry and a break.
            _ => {}
        }
    }
}
