//! The handle: what a program calls. Every call becomes one command to the background task and waits for its answer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::clock::BootInstant;
use crate::engine::{Command, Engine, LONGEST_CLAIM, LockRequest, LockSpec};
use crate::error::{check_length, unexpected};
use crate::route::Route;
use crate::wire::{
    self, AccessRules, AccessVerdict, Answer, Broken, Code, Consistency, Failure, Keys, ListLocks, ListRecords,
    LockPage, LockView, MemberChange, MembersView, Op, RecordPage, RecordView, SessionId, SessionView, Stale,
    StatusView, TestAccess, Transaction, Watch,
};
use crate::{Error, Guard, LockOptions, Options, Watcher, codec, task};

/// In bytes.
const LONGEST_KEY: usize = 512;
/// What a frame may have beside its operation, in bytes: the request's ID.
const FRAME_HEAD: usize = 16;

/// A client of one cluster. Cheap to clone; all clones share one connection, which is kept to the leader and made anew
/// as long as there is a request or a guard that needs it.
#[derive(Clone)]
pub struct Client {
    commands: mpsc::UnboundedSender<Command>,
    next_claim: Arc<AtomicU64>,
    endpoints: Arc<[String]>,
    options: Options,
}

impl Client {
    /// Finds the cluster's leader through any of its nodes' endpoints (`HOST:PORT`, see
    /// [`parse_endpoints`](crate::parse_endpoints)) and starts the background task on the current Tokio runtime.
    ///
    /// # Errors
    /// [`Error::BadEndpoint`], also if there is none; [`Error::Tls`]; [`Error::Unauthenticated`] if every
    /// node refused this client, or was refused by it; [`Error::Unreachable`] if no leader answered within
    /// [`Options::connect_timeout`]; [`Error::Refused`] if one answered that it does not serve. A node that has too many
    /// requests at the moment, of this client or of all, serves.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub async fn connect(endpoints: &[impl AsRef<str>], options: Options) -> Result<Client, Error> {
        let targets = endpoints.iter().map(|endpoint| options.security.address(endpoint.as_ref()));
        let endpoints: Vec<String> = targets.collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(Error::BadEndpoint { endpoint: String::new() });
        }
        options.security.check()?;
        let (commands, inbox) = mpsc::unbounded_channel();
        let route = Route::new(endpoints.clone()).forwarded(options.forwarded);
        tokio::spawn(task::run(Engine::new(options.clone(), BootInstant::now), route, inbox));
        let client = Client { commands, next_claim: Arc::new(AtomicU64::new(0)), endpoints: endpoints.into(), options };
        match client.call_within(Op::ListLocks(nothing()), client.options.connect_timeout).await {
            Ok(_) | Err(Error::Refused(Failure { error: Code::TooSoon | Code::Overloaded, .. })) => Ok(client),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock on a key (1 to 512 bytes), or waits for it as `options` say. Of several keys, up to 32 and each
    /// once, it takes all locks together, under one token, or none: calls that name the same keys in another order do not
    /// wait for one another in a circle.
    ///
    /// Dropping the future gives the claim up, in the background: a queue position is withdrawn, a lock that was
    /// granted just then is released.
    ///
    /// # Errors
    /// [`Error::Held`] if it is held and the call does not wait, or only in a shorter queue; [`Error::TimedOut`] if the
    /// wait ended; [`Error::Unreachable`] if no leader answered in time, see [`Wait`](crate::Wait); [`Error::Refused`]
    /// if the key, an option or a limit forbids it; [`Error::Closed`] after [`Client::close`].
    pub async fn lock(&self, keys: impl Into<Keys>, options: LockOptions) -> Result<Guard, Error> {
        let LockOptions { ttl, wait, owner, share, max_queue, value } = options;
        let keys: Keys = keys.into();
        // An encoded key has one byte more at least.
        let key_bytes: usize = keys.iter().map(|key| key.len() + 1).sum();
        check_length(key_bytes + owner.len() + value.as_ref().map_or(0, String::len), LONGEST_CLAIM)?;
        let claim = self.next_claim.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        let spec = LockSpec { keys, share, max_queue, value };
        let request = LockRequest { claim, spec, ttl, wait, owner, reply, commands: self.commands.clone() };
        self.commands.send(Command::Lock(request)).map_err(|_| Error::Closed)?;
        let mut abandon = Abandon { client: self, claim, armed: true };
        let outcome = answer.await.unwrap_or(Err(Error::Closed));
        abandon.armed = false;
        outcome
    }

    /// Reads the lock on `key`: its holder and its queue. A stale read shows whatever the node that this client is
    /// connected to has applied.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Refused`], [`Error::Closed`].
    pub async fn show_lock(&self, key: impl Into<String>, consistency: Consistency) -> Result<LockView, Error> {
        match self.call(Op::ShowLock { key: key.into(), consistency }).await? {
            Answer::Lock(lock) | Answer::StaleLock(Stale { view: lock, .. }) => Ok(lock),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Reads a page of the held locks, in the order of their keys.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Refused`], [`Error::Closed`].
    pub async fn list_locks(&self, query: ListLocks) -> Result<LockPage, Error> {
        match self.call(Op::ListLocks(query)).await? {
            Answer::Locks(page) | Answer::StaleLocks(Stale { view: page, .. }) => Ok(page),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Reads a record of the key-value store; `None` if there is no such record.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Refused`], [`Error::Closed`].
    pub async fn record(&self, key: impl Into<String>, consistency: Consistency) -> Result<Option<RecordView>, Error> {
        match self.call(Op::ShowRecord { key: key.into(), consistency }).await {
            Ok(Answer::Record(record) | Answer::StaleRecord(Stale { view: record, .. })) => Ok(Some(record)),
            Ok(other) => Err(Error::Refused(unexpected(&other))),
            Err(Error::Refused(Failure { error: Code::NoRecord, .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a page of the records that there are, without their contents, in the order of their keys.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Refused`], [`Error::Closed`].
    pub async fn list_records(&self, query: ListRecords) -> Result<RecordPage, Error> {
        match self.call(Op::ListRecords(query)).await? {
            Answer::Records(page) | Answer::StaleRecords(Stale { view: page, .. }) => Ok(page),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Changes records, all or none, and returns the version that they have then. The holder of a lock names its token
    /// in a [`wire::Condition::Held`]: the changes are made only if it still holds the lock at that very moment.
    ///
    /// A transaction has no number. If the connection is lost before the answer, the client sends it again only if it
    /// compares a version above 0 of a record that it changes ([`wire::Condition::Version`]), for then it is not made
    /// twice. [`Guard::transact`] numbers its transactions, and so repeats each of them.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Code::StaleToken`], [`Code::OtherVersion`], [`Code::StoreFull`], [`Code::TooLarge`] or
    /// [`Code::Denied`], [`Error::Unreachable`] if no node has taken it in time: nothing was changed.
    /// [`Error::UnknownOutcome`] if an answer was lost. [`Error::Closed`].
    pub async fn transact(&self, transaction: Transaction) -> Result<u64, Error> {
        match self.call(Op::Transact { transaction, number: None }).await? {
            Answer::Written { version } => Ok(version),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Follows the events of a key or a prefix, at any of the endpoints, over a connection of its own. The watcher
    /// outlives the client.
    pub fn watch(&self, watch: Watch) -> Watcher {
        Watcher::new(self.endpoints.to_vec(), self.options.clone(), watch)
    }

    /// The public numbers of the sessions with which this client and its clones wait for the lock on `key`: a waiter finds
    /// its position in [`LockView::queue`] with them.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn waiting_sessions(&self, key: impl Into<String>) -> Result<Vec<u64>, Error> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::WaitingSessions { key: key.into(), reply }).map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)
    }

    /// Reads the view that the node that this client is connected to has of its cluster.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Refused`], [`Error::Closed`].
    pub async fn status(&self) -> Result<StatusView, Error> {
        match self.call(Op::Status).await? {
            Answer::Status(status) => Ok(*status),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Ends a session that another process opened and whose credential it handed over: the cluster releases the locks
    /// that the session holds, and withdraws its waits. A guard of that session learns at its next renewal that its
    /// lock is lost, so call this only when the holder has certainly stopped its work, or must lose the lock. A session
    /// that has already ended is no error.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Refused`], [`Error::Closed`].
    pub async fn close_session(&self, session: SessionId) -> Result<(), Error> {
        match self.call(Op::CloseSession { session }).await? {
            Answer::SessionClosed => Ok(()),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Renews a session whose credential another process handed over: it lives for a full time-to-live from now. Returns
    /// that time.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Code::NoSession`] if it has ended; [`Error::Unreachable`], [`Error::Closed`].
    pub async fn renew_session(&self, session: SessionId) -> Result<Duration, Error> {
        match self.call(Op::KeepAlive { session }).await? {
            Answer::Session(lease) => Ok(Duration::from_millis(lease.ttl_ms)),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Reads a session: its owner, what it holds or waits for, and when it expires.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Code::NoSession`] if it has ended; [`Error::Unreachable`], [`Error::Closed`].
    pub async fn show_session(&self, session: SessionId) -> Result<SessionView, Error> {
        match self.call(Op::ShowSession { session }).await? {
            Answer::SessionView(view) => Ok(view),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Releases all locks of a grant of a session whose credential another process handed over. A guard's own locks are
    /// released with [`Guard::release`]. Returns how many holds of the session are left: 0, unless it took the locks
    /// several times. Such a release has no number: if the connection is lost before the answer, the client sends it
    /// again, and of several holds two are released.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Code::NotHolder`] if the session does not hold the locks with this token (any more); with
    /// [`Code::NoSession`] if it has ended. [`Error::UnknownOutcome`] if a repetition is refused so: an attempt whose answer
    /// was lost may have released them. [`Error::Unreachable`], [`Error::Closed`].
    pub async fn release(&self, keys: impl Into<Keys>, session: SessionId, token: u64) -> Result<u32, Error> {
        let (keys, grant) = (keys.into(), wire::Release { session, token });
        match self.call(Op::Release { keys, grant, number: None }).await? {
            Answer::Released => Ok(0),
            Answer::StillHeld { holds } => Ok(holds),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Takes a lock from its holder: the grant with this token, and no other. The next waiter is granted the lock, and
    /// the holder is told ([`Guard::lost`] resolves). The server logs the `reason` (1 to 256 bytes).
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Code::NotHolder`] if no session holds the lock by that grant any more.
    /// [`Error::UnknownOutcome`] if a repetition is refused so: an attempt whose answer was lost may have broken it.
    /// [`Error::Unreachable`], [`Error::Closed`].
    pub async fn break_lock(
        &self,
        key: impl Into<String>,
        token: u64,
        reason: impl Into<String>,
    ) -> Result<Broken, Error> {
        let order = wire::Break { token, reason: reason.into() };
        match self.call(Op::Break { key: key.into(), order }).await? {
            Answer::Broken(broken) => Ok(broken),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Changes the cluster's members, and waits until that is committed. A change that was made already counts as done.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Closed`]; [`Error::Refused`] with the reason: [`Code::ChangeNotReady`] and
    /// [`Code::NotCaughtUp`] pass by themselves.
    pub async fn change_members(&self, change: MemberChange) -> Result<MembersView, Error> {
        match self.call(Op::ChangeMembers(change)).await? {
            Answer::Members(members) => Ok(members),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Reads the access rules, with their revision.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Closed`]; [`Error::Refused`] with [`Code::Denied`] if this client may not
    /// administer the cluster.
    pub async fn access_rules(&self) -> Result<AccessRules, Error> {
        self.call_access(Op::ShowAccess).await
    }

    /// Replaces the access rules of the revision that the new ones name. Returns those in force, with their revision.
    /// Rules that are in force already are no change.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Closed`]; [`Error::Refused`] with [`Code::Denied`] if this client may not
    /// administer the cluster, before or after the change; with [`Code::AccessChanged`] if the rules in force have
    /// another revision; with [`Code::Invalid`] if a rule is none.
    pub async fn set_access_rules(&self, rules: AccessRules) -> Result<AccessRules, Error> {
        self.call_access(Op::SetAccess(rules)).await
    }

    async fn call_access(&self, op: Op) -> Result<AccessRules, Error> {
        match self.call(op).await? {
            Answer::Access(rules) => Ok(rules),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Asks whether the access rules permit something.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Closed`]; [`Error::Refused`] with [`Code::Denied`] if it is about another client
    /// and this one may not administer the cluster.
    pub async fn test_access(&self, test: TestAccess) -> Result<AccessVerdict, Error> {
        match self.call(Op::TestAccess(test)).await? {
            Answer::AccessVerdict(verdict) => Ok(verdict),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    /// Ends the client, for all its clones: calls that wait for a lock, for another hold or for an answer, and new calls,
    /// get [`Error::Closed`]. The client closes idle sessions, and waits for the releases and withdrawals that are under
    /// way in the background. It keeps the guards that live alive until their holders release or drop them, and they can
    /// still write. Gives up after [`Options::request_timeout`]; what is left then expires by itself.
    pub async fn close(&self) {
        let (reply, done) = oneshot::channel();
        if self.commands.send(Command::Close { reply }).is_ok() {
            let _ = timeout(self.options.request_timeout, done).await;
        }
    }

    async fn call(&self, op: Op) -> Result<Answer, Error> {
        self.call_within(op, self.options.request_timeout).await
    }

    async fn call_within(&self, op: Op, within: Duration) -> Result<Answer, Error> {
        check_length(codec::encoded_length(&op) + FRAME_HEAD, wire::FRAME_BYTES)?;
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Call { op, within, reply }).map_err(|_| Error::Closed)?;
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Tells the background task when a `lock` future is dropped before its answer.
struct Abandon<'a> {
    client: &'a Client,
    claim: u64,
    armed: bool,
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if self.armed {
            // If the background task is gone, the session expires.
            let _ = self.client.commands.send(Command::Abandon { claim: self.claim });
        }
    }
}

/// A read that only a leader answers, and that has a small answer whatever locks there are: no key is so long that it
/// could begin like this.
fn nothing() -> ListLocks {
    ListLocks { prefix: "\u{10ffff}".repeat(LONGEST_KEY / 4 + 1), limit: Some(1), ..ListLocks::default() }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::wire::{Content, RecordChange};

    /// What the call returns without waiting for anything.
    fn at_once<T>(call: impl Future<Output = Result<T, Error>>) -> Option<Result<(), Error>> {
        call.now_or_never().map(|done| done.map(drop))
    }

    /// Goal: a request that a node would answer with the end of the connection is refused, and not sent; the longest one that
    /// a node reads is sent.
    #[test]
    fn what_no_node_reads_is_not_sent() {
        let (commands, mut inbox) = mpsc::unbounded_channel();
        let endpoints = Vec::<String>::new().into();
        let client = Client { commands, next_claim: Arc::default(), endpoints, options: Options::default() };
        let put = |bytes| Transaction {
            changes: vec![RecordChange::Put { key: "record".into(), value: Content(vec![7; bytes]) }],
            ..Transaction::default()
        };
        let long = || "k".repeat(LONGEST_CLAIM);
        let refused = [
            at_once(client.transact(put(wire::FRAME_BYTES))),
            at_once(client.show_lock("k".repeat(wire::FRAME_BYTES), Consistency::Stale)),
            at_once(client.lock(long(), LockOptions::default())),
            at_once(client.lock("key", LockOptions::default().owner(long()))),
            at_once(client.lock("key", LockOptions::default().value(long()))),
            at_once(client.lock(vec![String::new(); LONGEST_CLAIM + 1], LockOptions::default())),
        ];
        for refused in refused {
            let Some(Err(Error::Refused(failure))) = refused else { panic!("{refused:?}") };
            assert_eq!(failure.error, Code::TooLarge, "{failure}");
        }
        assert!(inbox.try_recv().is_err(), "nothing is sent");

        let longest = wire::FRAME_BYTES - 64;
        assert!(at_once(client.transact(put(longest))).is_none());
        let Ok(Command::Call { op, .. }) = inbox.try_recv() else { panic!("it is sent") };
        let request = wire::Request { id: wire::UNASKED - 1, op };
        assert!((longest..=wire::FRAME_BYTES).contains(&codec::encoded_length(&request)));
    }
}
