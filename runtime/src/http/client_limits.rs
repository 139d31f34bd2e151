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
        self.report_limit("requests", Some(limit.into()), account.name());
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
        let report = |most: &usize| self.report_limit("connections", Some(*most as u64), account.name());
        connected.inspect_err(report).ok()
    }

    /// Counts and logs that this client has reached a limit, which is `most` if it is a fixed number.
    pub(super) fn report_limit(&self, limit: &'static str, most: Option<u64>, client: &AccountName) {
        self.metrics.limit_reached(limit);
        let line = format!("{limit} {client}");
        if let Some(repeats) = self.log_pause.due(&line, REPORT_PAUSE, Instant::now()) {
            let remedy = remedy(limit);
            warn!(%client, limit, most, repeats, "a client has reached a limit, and is refused what exceeds it: {remedy}");
        }
    }
}

/// What to do if a client reaches this limit.
fn remedy(limit: &str) -> &'static str {
    match limit {
        "requests" => "let it send fewer requests a second, or raise --max-requests-per-second",
        "connections" => "let it close connections, or raise --max-connections-per-client",
        "watches" => "let it end watches, or raise --max-watches-per-client",
        "snapshot_reads" => "let it read one snapshot after the other",
        _ => "let it wait for answers, or send its requests to the leader, so that fewer are forwarded between nodes",
    }
}
