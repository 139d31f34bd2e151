//! The wall clock. An audit log is compared with the records of other systems, and those have wall
//! clock times. Nothing but the text of the records depends on it.

use std::fmt;
use std::time::SystemTime;

/// A moment of the node's wall clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment(SystemTime);

impl Moment {
    #[expect(clippy::disallowed_methods, reason = "records have the time of the node's wall clock")]
    pub(super) fn now() -> Moment {
        Moment(SystemTime::now())
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_micros(self.0).fmt(f)
    }
}
