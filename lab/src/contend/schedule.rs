//! Schedules of attempts. A schedule is made of the seed alone: it does not know of answers, so slow answers delay no
//! arrival.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The gaps between arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Gaps {
    /// Exponential, as of many independent clients: arrivals are a Poisson process.
    Exponential,
    /// All alike.
    Even,
}

/// An attempt that is meant to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When, since the start of the run.
    pub at: Duration,
    /// The number of the key.
    pub key: u64,
}

/// The arrivals of a run, without an end.
#[derive(Debug, Clone)]
pub struct Schedule {
    rng: StdRng,
    mean: f64,
    gaps: Gaps,
    keys: u64,
    now: f64,
}

impl Schedule {
    /// Arrivals at `rate` a second, on `keys` keys. `rate` is above zero.
    #[must_use]
    pub fn new(rate: f64, gaps: Gaps, keys: u64, seed: u64) -> Schedule {
        Schedule { rng: StdRng::seed_from_u64(seed), mean: 1.0 / rate, gaps, keys: keys.max(1), now: 0.0 }
    }
}

impl Iterator for Schedule {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        // 1 - random is above zero, and its logarithm finite.
        let gap = match self.gaps {
            Gaps::Exponential => -(1.0 - self.rng.random::<f64>()).ln(),
            Gaps::Even => 1.0,
        };
        self.now += gap * self.mean;
        let at = Duration::try_from_secs_f64(self.now).unwrap_or(Duration::MAX);
        Some(Arrival { at, key: self.rng.random_range(0..self.keys) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_keep_to_the_rate_and_depend_on_the_seed_only() {
        let arrivals = |seed| Schedule::new(200.0, Gaps::Exponential, 4, seed).take(20_000).collect::<Vec<_>>();
        let some = arrivals(7);
        assert_eq!(some, arrivals(7));
        assert_ne!(some, arrivals(8));
        let last = some.last().unwrap().at.as_secs_f64();
        assert!((95.0..105.0).contains(&last), "20,000 arrivals at 200 a second end after {last} s");
        // Of exponential gaps, 1/e are longer than the mean; of even gaps, none or all.
        let gaps = some.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64());
        let long = gaps.filter(|gap| *gap > 1.0 / 200.0).count();
        assert!((6_900..7_800).contains(&long), "{long} of 20,000 gaps are longer than the mean");
        for key in 0..4 {
            let of = some.iter().filter(|arrival| arrival.key == key).count();
            assert!((4_700..5_300).contains(&of), "key {key} has {of} of 20,000 arrivals");
        }
    }

    #[test]
    fn even_gaps_are_even() {
        let at: Vec<_> = Schedule::new(100.0, Gaps::Even, 1, 1).take(3).map(|arrival| arrival.at.as_millis()).collect();
        assert_eq!(at, [10, 20, 30]);
    }
}
