//! The limits of one client at this node, on the way of its requests and connections.

use std::time::{Duration, Instant};

use palisade_client::wire::{Code, Failure, Op};
use tracing::warn;

use super::App;
use super::snapshot_limits::TooSoon;
use crate::accounts::{AccountName, Connected, Turn};

/// Minimum time between two log lines about one client that has reached a limit.
const REPORT_PAUSE: Duration = Duration::from_secs(10);

/// Whether the operation gives back or keeps what its client has. A client must always be able to do
/// that, so no limit on requests refuses it.
pub(super) fn gives_back(op: &Op) -> bool {
    match op {
        Op::Release { .. }
        | Op::KeepAlive { .. }
        | Op::CloseSession { .. }
        | Op::Withdraw { .. }
        | Op::Unwatch { .. } => true,
        Op::OpenSession(_)
        | Op::ShowSession { .. }
        | Op::Acquire { .. }
        | Op::Proclaim { .. }
        | Op::ShowLock { .. }
        | Op::ListLocks(_)
        | Op::ShowRecord { .. }
        | Op::ListRecords(_)
        | Op::Transact { .. }
        | Op::Status
        | Op::ChangeMembers(_)
        | Op::Transfer(_)
        | Op::Break { .. }
        | Op::ShowAccess
        | Op::SetAccess(_)
        | Op::TestAccess(_)
        | Op::Watch(_) => false,
    }
}

impl App {
    /// The account whose limits the requests of this client count towards.
    pub(super) fn account_name(&self) -> Option<AccountName> {
        self.account.as_ref().map(|account| account.name().clone())
    }

    /// Counts a request of this client, and refuses it if the client has sent as many in this second as
    /// it may send. A request that gives something back is counted, and not refused.
    pub(super) fn within_rate(&self, gives_back: bool) -> Result<(), TooSoon> {
        let Some(account) = &self.account else { return Ok(()) };
        let Err(wait) = account.take_request() else { return Ok(()) };
        if gives_back {
            return Ok(());
        }
        let (limit, seconds) = (account.requests_per_second(), wait.as_secs() + 1);
        self.report_limit("requests", account.name());
        let message = format!(
            "the limit of {limit} requests a second of one client is reached by {}: try again in {seconds} s, or let the \
             operator raise --max-requests-per-second",
            account.name()
        );
        Err((Failure::new(Code::TooSoon, message), seconds))
    }

    /// Waits until this client may have one more unanswered request.
    pub(super) async fn turn(&self) -> Option<Turn> {
        match &self.account {
            Some(account) => account.turn().await,
            None => None,
        }
    }

    /// Counts a connection of this client. One that exceeds the limit is to be closed at once: an answer
    /// would need what the limit saves.
    pub(super) fn connect(&self, name: AccountName) -> Option<Connected> {
        let account = self.accounts.of(name);
        let connected = account.connect();
        if connected.is_err() {
            self.report_limit("connections", account.name());
        }
        connected.ok()
    }

    /// Counts and logs that this client has reached a limit.
    pub(super) fn report_limit(&self, limit: &'static str, client: &AccountName) {
        self.metrics.limit_reached(limit);
        let line = format!("{limit} {client}");
        if let Some(repeats) = self.log_pause.due(&line, REPORT_PAUSE, Instant::now()) {
            warn!(%client, limit, repeats, "a client has reached a limit");
        }
    }
}
