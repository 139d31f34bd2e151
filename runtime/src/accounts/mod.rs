//! The accounts of clients: what each client uses of a node's limits.
//!
//! An account belongs to a client that has proved its name ([`AccountName::Principal`]), or to all
//! clients at an address that have proved none ([`AccountName::Address`]). A connection looks its
//! account up once, and each of its requests shares it. An account bounds
//!
//! - how many requests a second it sends ([`Account::take_request`]),
//! - how many of its requests are unanswered while other clients are active ([`Account::turn`]),
//! - how many connections it has ([`Account::connect`]).
//!
//! The leader counts its sessions and waits, under the same names (`core/openers.rs`,
//! `core/waits.rs`). Accounts are in memory, at each node by itself, and decide nothing that the
//! protocol knows of: a request that is refused or delayed here was never made.

mod rate;
mod turns;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::rate::Rate;
pub use self::turns::Turn;
use self::turns::{Share, Turns};
use crate::addresses::ClientAddress;
use crate::limits;
use crate::metrics::Metrics;
use crate::sync::Mutex;

/// Accounts are looked through for idle ones when there are so many, and then whenever their number
/// has doubled.
const MANY: usize = 1_024;

/// Whose account it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AccountName {
    /// The client that has proved this name.
    Principal(Arc<str>),
    /// The clients at this address that have proved no name.
    Address(ClientAddress),
}

impl AccountName {
    /// Whether these are clients of this machine without a name, or those of a proxy on it.
    pub fn is_loopback(&self) -> bool {
        matches!(self, AccountName::Address(address) if address.is_loopback())
    }

    fn is_principal(&self, principal: &str) -> bool {
        matches!(self, AccountName::Principal(name) if **name == *principal)
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccountName::Principal(name) => write!(f, "client `{name}`"),
            AccountName::Address(address) => write!(f, "address {address}"),
        }
    }
}

/// The limits of each account at one node.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Maximum number of requests a second, and of requests at once after a second without any; 0 for
    /// no limit.
    pub requests_per_second: u32,
    /// Maximum number of unanswered requests while other clients are active; 0 for no limit.
    pub unanswered_requests: usize,
    /// Maximum number of open connections; 0 for no limit, `None` for a share of all connections.
    pub connections: Option<usize>,
    /// Maximum number of watches; 0 for no limit, `None` for a share of all watches.
    pub watches: Option<usize>,
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        let unanswered_requests = limits::UNANSWERED_REQUESTS;
        ClientLimits { requests_per_second: 0, unanswered_requests, connections: None, watches: None }
    }
}

/// All accounts of a node.
#[derive(Debug)]
pub struct Accounts {
    table: Mutex<Table>,
    limits: ClientLimits,
    /// Maximum number of open connections of all clients.
    connections: usize,
    turns: Arc<Turns>,
    start: Instant,
}

#[derive(Debug)]
struct Table {
    accounts: HashMap<AccountName, Arc<Account>>,
    last_number: u64,
    /// Idle accounts are removed when there are so many.
    many: usize,
}

impl Accounts {
    /// The accounts of a node that may have so many connections of clients.
    pub fn new(limits: ClientLimits, connections: usize, metrics: &Metrics) -> Accounts {
        let start = Instant::now();
        let table = Table { accounts: HashMap::new(), last_number: 0, many: MANY };
        let turns = Turns::new(limits::SURPLUS_REQUESTS, start, &metrics.requests_delayed);
        Accounts { table: Mutex::new(table), limits, connections, turns: Arc::new(turns), start }
    }

    /// The account of this name.
    pub fn of(&self, name: AccountName) -> Arc<Account> {
        self.find(name, self.start.elapsed())
    }

    fn find(&self, name: AccountName, now: Duration) -> Arc<Account> {
        let mut table = self.table.lock();
        if let Some(account) = table.accounts.get(&name) {
            return Arc::clone(account);
        }
        if table.accounts.len() >= table.many {
            table.accounts.retain(|_, account| Arc::strong_count(account) > 1 || !account.rate.is_full(now));
            table.many = MANY.max(2 * table.accounts.len());
        }
        table.last_number += 1;
        let account = Arc::new(self.open(name.clone(), table.last_number));
        table.accounts.insert(name, Arc::clone(&account));
        account
    }

    /// The account of a request on a connection that has this account.
    pub(crate) fn of_request(&self, connection: &Arc<Account>, principal: &Arc<str>) -> Arc<Account> {
        if connection.name.is_principal(principal) {
            return Arc::clone(connection);
        }
        self.of(AccountName::Principal(Arc::clone(principal)))
    }

    fn open(&self, name: AccountName, number: u64) -> Account {
        let limit = |set: Option<usize>, all, shares| {
            Limit::of(set.unwrap_or_else(|| limits::part(all, shares, name.is_loopback())))
        };
        let connections = limit(self.limits.connections, self.connections, limits::CONNECTION_SHARE);
        let watches = limit(self.limits.watches, limits::WATCHES, limits::WATCH_SHARE);
        Account {
            name,
            rate: Rate::per_second(self.limits.requests_per_second),
            share: Share::new(number, self.limits.unanswered_requests, &self.turns),
            connections,
            watches,
            snapshot_reads: Arc::new(Semaphore::new(limits::CLIENT_SNAPSHOT_READS)),
            start: self.start,
        }
    }
}

/// What one client uses of a node's limits.
#[derive(Debug)]
pub struct Account {
    name: AccountName,
    rate: Rate,
    share: Share,
    connections: Limit,
    watches: Limit,
    /// Limits the number of snapshots that the client reads at once.
    pub(crate) snapshot_reads: Arc<Semaphore>,
    start: Instant,
}

impl Account {
    /// Whose account it is.
    pub fn name(&self) -> &AccountName {
        &self.name
    }

    /// Counts a request.
    ///
    /// # Errors
    /// If the account has no request left in this second; the time until it has one.
    pub fn take_request(&self) -> Result<(), Duration> {
        if self.rate.is_unlimited() {
            return Ok(());
        }
        self.rate.take(self.start.elapsed())
    }

    /// Number of requests that the account may send in a second.
    pub fn requests_per_second(&self) -> u32 {
        self.rate.requests_per_second()
    }

    /// Waits until the account may have one more unanswered request.
    pub async fn turn(&self) -> Option<Turn> {
        self.share.turn().await
    }

    /// Counts a connection, until the value is dropped.
    ///
    /// # Errors
    /// If the account has as many connections as it may have: that number.
    pub fn connect(self: &Arc<Account>) -> Result<Connected, usize> {
        Ok(Connected { account: Arc::clone(self), _permit: self.connections.take()? })
    }

    /// Counts a watch, until the permit is dropped.
    ///
    /// # Errors
    /// If the account has as many watches as it may have: that number.
    pub fn watch(&self) -> Result<OwnedSemaphorePermit, usize> {
        self.watches.take()
    }
}

/// How many an account may have of something.
#[derive(Debug)]
struct Limit {
    most: usize,
    room: Arc<Semaphore>,
}

impl Limit {
    /// 0 is no limit.
    fn of(most: usize) -> Limit {
        let most = if most == 0 { Semaphore::MAX_PERMITS } else { most.min(Semaphore::MAX_PERMITS) };
        Limit { most, room: Arc::new(Semaphore::new(most)) }
    }

    fn take(&self) -> Result<OwnedSemaphorePermit, usize> {
        Arc::clone(&self.room).try_acquire_owned().map_err(|_| self.most)
    }
}

/// A connection that counts on an account.
#[derive(Debug)]
pub struct Connected {
    account: Arc<Account>,
    _permit: OwnedSemaphorePermit,
}

impl Connected {
    /// The account.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(limits: ClientLimits) -> Accounts {
        Accounts::new(limits, 800, &Metrics::new())
    }

    fn address(text: &str) -> AccountName {
        AccountName::Address(ClientAddress::of(text.parse().unwrap()))
    }

    fn client(name: &str) -> AccountName {
        AccountName::Principal(name.into())
    }

    #[test]
    fn connections_of_an_account_are_limited() {
        let limited = |connections| {
            let accounts = accounts(ClientLimits { connections, ..ClientLimits::default() });
            ["10.0.0.1", "127.0.0.1"].map(|text| {
                let account = accounts.of(address(text));
                let open: Vec<Connected> = (0..1_000).map_while(|_| account.connect().ok()).collect();
                assert_eq!(account.connect().err(), (open.len() < 1_000).then_some(open.len()));
                let count = open.len();
                drop(open);
                assert!(account.connect().is_ok(), "what has ended makes room");
                count
            })
        };
        assert_eq!(limited(None), [100, 400], "an eighth of 800, and half of them for a loopback address");
        assert_eq!(limited(Some(7)), [7, 7]);
        assert_eq!(limited(Some(0)), [1_000, 1_000]);
    }

    /// Goal: clients with a name have an account for each name, wherever they connect from; the others
    /// have one for each address.
    #[test]
    fn request_belongs_to_its_principal_or_to_the_address() {
        let accounts = accounts(ClientLimits::default());
        let connection = accounts.of(address("10.0.0.1"));
        assert_eq!(*accounts.of_request(&connection, &"worker".into()).name(), client("worker"));
        let certified = accounts.of(client("worker"));
        assert!(Arc::ptr_eq(&certified, &accounts.of_request(&certified, &"worker".into())));
        assert!(Arc::ptr_eq(&certified, &accounts.of_request(&connection, &"worker".into())));
        assert_eq!(connection.name().to_string(), "address 10.0.0.1");
        assert_eq!(certified.name().to_string(), "client `worker`");
    }

    /// Goal: a client that connects anew for each request keeps its account until its requests have come
    /// back; accounts of addresses that come once take no memory for long.
    #[test]
    fn idle_accounts_are_forgotten() {
        let accounts = accounts(ClientLimits { requests_per_second: 1, ..ClientLimits::default() });
        let connected = accounts.of(address("10.0.0.1"));
        let used = address("10.0.0.2");
        accounts.of(used.clone()).rate.take(Duration::ZERO).unwrap();
        let strangers = |now| {
            for number in 0..3 * u32::try_from(MANY).unwrap() {
                let address = std::net::Ipv4Addr::from(0x0b00_0000 + number);
                drop(accounts.find(AccountName::Address(ClientAddress::of(address.into())), now));
            }
            let table = accounts.table.lock();
            assert!(table.accounts.len() <= MANY, "{} accounts", table.accounts.len());
            table.accounts.contains_key(&used)
        };
        assert!(strangers(Duration::from_millis(999)), "its second is not over");
        assert!(!strangers(Duration::from_secs(1)));
        assert!(Arc::ptr_eq(&connected, &accounts.of(address("10.0.0.1"))));
    }
}
