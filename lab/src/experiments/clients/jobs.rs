//! The clients' jobs, their outcomes, and what follows from them.

use serde::{Deserialize, Serialize};

use crate::contend::attempt::Release;
use crate::worker::job;

/// What became of a client's job. Times are in microseconds since the start of the round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The client's name.
    pub owner: String,
    /// When it asked for the lock first.
    pub asked_us: u64,
    /// Its grant.
    pub granted: Option<Grant>,
    /// What the resource said to its write.
    pub wrote: Option<Wrote>,
    /// When it asked for the release.
    pub release_us: Option<u64>,
    /// What the release did.
    pub release: Option<Release>,
    /// Acquires that failed and were repeated: the first error.
    pub error: Option<String>,
}

/// A grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// When the client had it.
    pub at_us: u64,
    /// Its fencing token.
    pub token: u64,
}

/// What the resource said to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrote {
    /// Accepted.
    Accepted {
        /// When the client had the answer.
        at_us: u64,
    },
    /// Refused: the resource has seen a token that is not lower.
    Refused {
        /// When the client had the answer.
        at_us: u64,
        /// The highest token seen.
        seen: u64,
    },
}

impl Job {
    /// The grant's token and time.
    fn grant(&self) -> Option<(u64, u64)> {
        self.granted.map(|grant| (grant.at_us, grant.token))
    }

    /// Whether it was granted the lock.
    #[must_use]
    pub fn granted(&self) -> bool {
        self.granted.is_some()
    }

    /// Whether another client was granted the lock before this one asked for its release.
    #[must_use]
    pub fn overlaps(&self, other: &Job) -> bool {
        let (Some(held), Some(other)) = (self.granted, other.granted) else { return false };
        held.at_us < other.at_us && self.release_us.is_none_or(|release| other.at_us < release)
    }

    /// The token of an accepted write.
    #[must_use]
    pub fn accepted(&self) -> Option<u64> {
        matches!(self.wrote, Some(Wrote::Accepted { .. })).then(|| self.granted.map(|grant| grant.token))?
    }

    /// Whether its write was refused.
    #[must_use]
    pub fn refused(&self) -> bool {
        matches!(self.wrote, Some(Wrote::Refused { .. }))
    }
}

/// Grants whose token is not above those of all grants before it.
#[must_use]
pub fn tokens_not_above<'a>(jobs: impl IntoIterator<Item = &'a Job>) -> usize {
    let mut grants: Vec<_> = jobs.into_iter().filter_map(Job::grant).collect();
    grants.sort_unstable();
    let (mut highest, mut not_above) = (0, 0);
    for (_, token) in grants {
        not_above += usize::from(token <= highest);
        highest = highest.max(token);
    }
    not_above
}

/// Whether the value has the line of each accepted write.
#[must_use]
pub fn whole<'a>(value: &str, jobs: impl IntoIterator<Item = &'a Job>) -> bool {
    let mut accepted: Vec<_> = jobs.into_iter().filter_map(Job::accepted).collect();
    let mut stored = job::lines(value);
    accepted.sort_unstable();
    stored.sort_unstable();
    stored == accepted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(at_us: u64, token: u64, release_us: u64) -> Job {
        let granted = Some(Grant { at_us, token });
        let wrote = Some(Wrote::Accepted { at_us });
        Job { granted, wrote, release_us: Some(release_us), ..Job::default() }
    }

    #[test]
    fn grant_before_the_release_of_another_overlaps() {
        let held = job(10, 1, 50);
        assert!(held.overlaps(&job(49, 2, 90)) && !held.overlaps(&job(50, 2, 90)));
        assert!(!job(49, 2, 90).overlaps(&held), "the earlier grant is no second holder");
        assert!(!held.overlaps(&Job::default()), "a job without a grant holds nothing");
        assert!(Job { release_us: None, ..held }.overlaps(&job(60, 2, 90)));
    }

    #[test]
    fn tokens_that_do_not_grow_are_counted_in_the_order_of_grants() {
        assert_eq!(tokens_not_above(&[job(3, 9, 0), job(1, 4, 0), job(2, 8, 0)]), 0);
        assert_eq!(tokens_not_above(&[job(1, 4, 0), job(2, 5, 0), job(3, 4, 0), job(4, 5, 0), job(5, 6, 0)]), 2);
    }

    #[test]
    fn lost_line_is_found() {
        let jobs = [job(1, 4, 0), job(2, 5, 0)];
        assert!(whole("a job 1 token 4\nb job 1 token 5\n", &jobs));
        assert!(!whole("a job 1 token 4\n", &jobs));
        let refused = Job { wrote: Some(Wrote::Refused { at_us: 1, seen: 9 }), ..job(3, 6, 0) };
        assert!(whole("a job 1 token 4\nb job 1 token 5\n", jobs.iter().chain([&refused])));
    }
}
