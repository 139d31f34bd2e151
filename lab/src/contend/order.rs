//! Arrival order against grant order.
//!
//! Attempt b *overtakes* attempt a of the same key if b arrived after a, and was granted while a still
//! waited. An attempt that waited in vain was overtaken too, by all that came later and were granted
//! before it gave up. Arrivals are seen by the clients: two requests that are sent close together may
//! reach the server in the other order, so that a first-come-first-served queue shows overtakings of
//! near neighbours as well. `margin` leaves those out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::attempt::Attempt;

/// How the order of grants differs from the order of arrivals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// By how much later the overtaking attempt arrived at least, in microseconds.
    pub margin_us: u64,
    /// Pairs of attempts in which the later arrival was granted while the earlier one waited.
    pub overtakings: u64,
    /// Attempts that were overtaken at least once.
    pub overtaken: u64,
    /// How often one attempt was overtaken at most.
    pub most_overtaken: u64,
    /// How many grants of its key an attempt has waited for at most, its own not counted.
    pub longest_wait_grants: u64,
}

impl Order {
    /// Compares the orders, key by key.
    #[must_use]
    pub fn of(attempts: &[Attempt], margin_us: u64) -> Order {
        let mut keys: BTreeMap<u64, Vec<&Attempt>> = BTreeMap::new();
        for attempt in attempts.iter().filter(|attempt| attempt.waited()) {
            keys.entry(attempt.key).or_default().push(attempt);
        }
        let mut order = Order { margin_us, ..Order::default() };
        keys.into_values().for_each(|attempts| order.add(attempts));
        order
    }

    fn add(&mut self, mut attempts: Vec<&Attempt>) {
        let mut arrivals: Vec<u64> = attempts.iter().map(|attempt| attempt.arrived_us).collect();
        arrivals.sort_unstable();
        let rank = |moment: u64| arrivals.partition_point(|&arrived| arrived <= moment);
        // In the order of the ends; how many of the granted attempts had arrived by each rank.
        attempts.sort_by_key(|attempt| (attempt.ended_us, attempt.arrived_us));
        let mut granted = Fenwick(vec![0; arrivals.len() + 1]);
        let mut grants: Vec<u64> = Vec::new();
        for attempt in attempts {
            let later = grants.len() as u64 - granted.up_to(rank(attempt.arrived_us.saturating_add(self.margin_us)));
            self.overtakings += later;
            self.overtaken += u64::from(later > 0);
            self.most_overtaken = self.most_overtaken.max(later);
            let before = grants.partition_point(|&moment| moment <= attempt.arrived_us);
            self.longest_wait_grants = self.longest_wait_grants.max((grants.len() - before) as u64);
            if attempt.granted() {
                granted.add(rank(attempt.arrived_us));
                grants.push(attempt.ended_us);
            }
        }
    }
}

/// Counts by rank, from 1; sums of the counts up to a rank in O(log n).
struct Fenwick(Vec<u64>);

impl Fenwick {
    fn add(&mut self, mut rank: usize) {
        while rank > 0 && rank < self.0.len() {
            self.0[rank] += 1;
            rank += rank & rank.wrapping_neg();
        }
    }

    fn up_to(&self, mut rank: usize) -> u64 {
        let mut sum = 0;
        while rank > 0 {
            sum += self.0[rank];
            rank &= rank - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::super::attempt::{Outcome, Release};
    use super::*;

    fn attempt(key: u64, arrived_us: u64, ended_us: u64, outcome: Outcome) -> Attempt {
        let release = Release::None;
        let finished_us = ended_us;
        Attempt { number: 0, key, intended_us: arrived_us, arrived_us, ended_us, finished_us, outcome, release }
    }

    fn granted(key: u64, arrived_us: u64, ended_us: u64) -> Attempt {
        attempt(key, arrived_us, ended_us, Outcome::Granted { token: 1 })
    }

    #[test]
    fn first_come_first_served_has_no_overtakings() {
        let attempts: Vec<_> = (0..100).map(|number| granted(0, number, 1_000 + number)).collect();
        // The last one waits for all others.
        assert_eq!(Order::of(&attempts, 0), Order { longest_wait_grants: 99, ..Order::default() });
    }

    #[test]
    fn overtakings_are_counted_by_pairs_of_one_key() {
        // Key 0: the arrivals 1, 2, 3, 4 are granted as 3, 1, 4, 2: 3 overtakes 1 and 2, 4 overtakes 2.
        let mut attempts = vec![granted(0, 1, 20), granted(0, 2, 40), granted(0, 3, 10), granted(0, 4, 30)];
        // Key 1 is granted while they wait, which is no overtaking.
        attempts.push(granted(1, 5, 6));
        let expected = Order { margin_us: 0, overtakings: 3, overtaken: 2, most_overtaken: 2, longest_wait_grants: 3 };
        assert_eq!(Order::of(&attempts, 0), expected);
        // With a margin of 1, neighbours do not count: 3 over 1 and 4 over 2 remain.
        let order = Order::of(&attempts, 1);
        assert_eq!((order.overtakings, order.overtaken, order.most_overtaken), (2, 2, 1));
    }

    #[test]
    fn the_counts_are_those_of_comparing_all_pairs() {
        use rand::rngs::StdRng;
        use rand::{Rng, SeedableRng};
        let mut rng = StdRng::seed_from_u64(3);
        for margin in [0, 5, 50] {
            let attempts: Vec<_> = (0..200)
                .map(|_| {
                    let arrived = rng.random_range(0..500);
                    granted(rng.random_range(0..2), arrived, arrived + rng.random_range(1..300))
                })
                .collect();
            let overtakes = |b: &Attempt, a: &Attempt| {
                let order = (b.ended_us, b.arrived_us) < (a.ended_us, a.arrived_us);
                a.key == b.key && order && b.arrived_us > a.arrived_us + margin
            };
            let pairs = attempts.iter().map(|a| attempts.iter().filter(|b| overtakes(b, a)).count() as u64);
            let pairs: Vec<u64> = pairs.collect();
            let order = Order::of(&attempts, margin);
            assert!(order.overtakings > 100, "{order:?}");
            assert_eq!(order.overtakings, pairs.iter().sum::<u64>());
            assert_eq!(order.most_overtaken, *pairs.iter().max().unwrap());
            assert_eq!(order.overtaken, pairs.iter().filter(|pairs| **pairs > 0).count() as u64);
        }
    }

    #[test]
    fn a_waiter_that_gives_up_was_overtaken() {
        let mut attempts = vec![attempt(0, 1, 100, Outcome::Timeout), granted(0, 2, 10), granted(0, 3, 20)];
        // Neither a grant after the waiter gave up, nor an arrival that was never started.
        attempts.push(granted(0, 4, 200));
        attempts.push(attempt(0, 5, 5, Outcome::Overflow));
        let order = Order::of(&attempts, 0);
        assert_eq!((order.overtakings, order.overtaken, order.most_overtaken), (2, 1, 2));
    }
}
