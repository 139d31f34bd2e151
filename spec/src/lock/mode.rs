//! The part of a lock that a claim takes.

use core::fmt;

use serde::{Deserialize, Serialize};

/// The permits that a claim takes, of all permits of its lock.
///
/// There is one rule: the claims that hold a lock take at most all its permits. The three modes that
/// a client can ask for are the same rule with other numbers.
///
/// | mode | permits | of |
/// |---|---|---|
/// | exclusive | all | [`ALL`](Mode::ALL) |
/// | shared | 1 | [`ALL`](Mode::ALL) |
/// | semaphore | n | N |
///
/// So an exclusive claim is compatible with no other claim, and shared claims with one another. A lock
/// has the size N of the claims on it: a claim of another size is refused while there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Encoded", into = "Encoded")]
pub struct Mode {
    permits: u32,
    of: u32,
}

impl Mode {
    /// The number of permits of a lock that is no semaphore: more than it can have holders.
    const ALL: u32 = u32::MAX;
    /// Takes the lock alone.
    pub const EXCLUSIVE: Mode = Mode { permits: Mode::ALL, of: Mode::ALL };
    /// Takes the lock together with other shared claims.
    pub const SHARED: Mode = Mode { permits: 1, of: Mode::ALL };
    /// The largest semaphore.
    pub const MAX_PERMITS: u32 = 1_000_000;

    /// Takes `permits` of the `of` permits of a semaphore: at least one, and at most all.
    pub fn semaphore(permits: u32, of: u32) -> Option<Mode> {
        (1 <= permits && permits <= of && of <= Mode::MAX_PERMITS).then_some(Mode { permits, of })
    }

    /// The permits that the claim takes.
    pub fn permits(self) -> u32 {
        self.permits
    }

    /// All permits of the lock.
    pub fn of(self) -> u32 {
        self.of
    }

    /// The numbers of a claim on a semaphore: the permits that it takes, and all of them.
    pub fn as_semaphore(self) -> Option<(u32, u32)> {
        (self.of != Mode::ALL).then_some((self.permits, self.of))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Mode::EXCLUSIVE => f.write_str("exclusive"),
            Mode::SHARED => f.write_str("shared"),
            Mode { permits, of } => write!(f, "{permits} of {of}"),
        }
    }
}

/// A serialized mode.
#[derive(Serialize, Deserialize)]
enum Encoded {
    Exclusive,
    Shared,
    Semaphore { permits: u32, of: u32 },
}

impl From<Mode> for Encoded {
    fn from(mode: Mode) -> Encoded {
        match mode {
            Mode::EXCLUSIVE => Encoded::Exclusive,
            Mode::SHARED => Encoded::Shared,
            Mode { permits, of } => Encoded::Semaphore { permits, of },
        }
    }
}

impl TryFrom<Encoded> for Mode {
    type Error = &'static str;

    fn try_from(encoded: Encoded) -> Result<Mode, &'static str> {
        match encoded {
            Encoded::Exclusive => Ok(Mode::EXCLUSIVE),
            Encoded::Shared => Ok(Mode::SHARED),
            Encoded::Semaphore { permits, of } => {
                Mode::semaphore(permits, of).ok_or("a semaphore has no such number of permits")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::Mode;

    #[test]
    fn semaphore_takes_at_least_one_permit_and_at_most_all() {
        let most = Mode::MAX_PERMITS;
        for (permits, of, exists) in
            [(0, 1, false), (1, 0, false), (1, 1, true), (2, 1, false), (most, most, true), (1, most + 1, false)]
        {
            assert_eq!(Mode::semaphore(permits, of).is_some(), exists, "{permits} of {of}");
        }
        assert_eq!(Mode::semaphore(2, 5).unwrap().as_semaphore(), Some((2, 5)));
        assert!(Mode::EXCLUSIVE.as_semaphore().is_none() && Mode::SHARED.as_semaphore().is_none());
    }

    #[test]
    fn mode_is_shown_as_clients_write_it() {
        let modes = [Mode::EXCLUSIVE, Mode::SHARED, Mode::semaphore(2, 5).unwrap()];
        assert_eq!(modes.map(|mode| format!("{mode}")), ["exclusive", "shared", "2 of 5"]);
    }
}
