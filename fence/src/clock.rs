//! The time against which a certificate's window is compared.
//!
//! Everything else in Palisade avoids the wall clock; a window of days on a certificate cannot. An
//! error of the clock changes only which certificates count: tokens are compared without it.

/// Where a verifier takes the time from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The system's wall clock.
    #[default]
    System,
    /// This moment, in seconds since 1970-01-01 00:00 UTC: for a resource with a time source of its
    /// own, which sets it anew.
    At(u64),
    /// There is no clock: windows are not checked. A key then ends only by a higher epoch or by
    /// [`Verifier::refusing`](crate::Verifier::refusing).
    None,
}

impl Clock {
    /// The time in seconds since 1970, if there is a clock.
    pub(crate) fn now(self) -> Option<u64> {
        match self {
            Clock::System => Some(unix_time()),
            Clock::At(seconds) => Some(seconds),
            Clock::None => None,
        }
    }
}

/// The system's wall clock, in seconds since 1970-01-01 00:00 UTC. A clock before that counts as 0,
/// at which no certificate is valid yet.
#[expect(clippy::disallowed_methods, reason = "validity windows of certificates are wall-clock times")]
pub fn unix_time() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
