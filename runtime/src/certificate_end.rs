//! Warns in the log before a certificate ends.
//!
//! The end is a time of the wall clock, which others compare with theirs. A node only warns: its own clock may be wrong.

use std::time::{Duration, Instant};

use palisade_fence::unix_time;
use tracing::warn;

use crate::log_pause::LogPause;

/// How long before the end the warnings begin, in seconds.
const WARN_BEFORE: u64 = 7 * 86_400;
/// How often the log repeats them.
const WARN_EVERY: Duration = Duration::from_secs(6 * 3600);

/// What the warning says of a certificate.
#[derive(Debug)]
pub(crate) struct CertificateEnd {
    /// Whose certificate it is.
    pub(crate) of: &'static str,
    /// What happens when it has ended.
    pub(crate) then: &'static str,
    /// What to do.
    pub(crate) advice: &'static str,
}

impl CertificateEnd {
    /// Warns if the certificate ends soon, or has ended: at this second of Unix time.
    pub(crate) fn warn(&self, end: u64, pause: &LogPause) {
        if let Some(line) = self.line(end, unix_time())
            && let Some(repeats) = pause.due(self.of, WARN_EVERY, Instant::now())
        {
            warn!(repeats, "{line}");
        }
    }

    fn line(&self, end: u64, now: u64) -> Option<String> {
        let CertificateEnd { of, then, advice } = self;
        match end.checked_sub(now) {
            None | Some(0) => {
                Some(format!("the certificate of {of} has ended by this machine's clock, so {then}: {advice}"))
            }
            Some(left) if left < WARN_BEFORE => {
                Some(format!("the certificate of {of} ends in {} h, and then {then}: {advice}", left / 3600))
            }
            Some(_) => None,
        }
    }
}

#[test]
fn end_of_a_certificate_is_announced() {
    const END: u64 = 1_700_000_000;
    let certificate = CertificateEnd { of: "a node", then: "others refuse it", advice: "issue another one" };
    let line = |now| certificate.line(END, now);
    assert_eq!(line(END - WARN_BEFORE), None);
    assert!(line(END - WARN_BEFORE + 1).unwrap().contains("ends in 167 h, and then others refuse it: issue"));
    assert!(line(END - 1).unwrap().contains("ends in 0 h"));
    assert!(line(END).unwrap().contains("has ended") && line(END + 1).unwrap().contains("has ended"));
}
