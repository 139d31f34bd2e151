//! Histories of rounds with one resource for `renew` and `ttl`, judged key by key, beside what that resource has
//! counted.

use std::collections::BTreeMap;

use palisade_history::{Answer, Call, End, History, Key};
use serde::{Deserialize, Serialize};

use super::processes::{Counts, Resource};
use crate::history::{Judgement, by_key, merge, seen_by_resource};
use crate::report::table::Table;
use crate::report::{Prediction, Results};
use crate::resource::rule::Fence;

/// What the checkers say of all keys of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// The resource's rule.
    pub fence: Fence,
    /// What the resource counted.
    pub counts: Counts,
    /// Number of keys.
    pub keys: usize,
    /// Operations of the workers.
    pub operations: usize,
    /// Violations that the checker `resource` found in the workers' histories.
    pub workers: usize,
    /// Violations that it found in the same grants with the accesses as the resource saw them.
    pub resource: usize,
    /// Accepted accesses that overlap an earlier one of their key, as the workers know. Which of the two was first, the
    /// resource alone knows.
    #[serde(default)]
    pub overlapping: usize,
    /// Violations of the lock service, in either.
    pub service: Vec<String>,
}

impl Judged {
    /// Ends a resource, and judges the workers' history of each of its keys.
    ///
    /// # Errors
    /// The resource fails, or its history cannot be read.
    pub async fn of(fence: Fence, resource: Resource, workers: BTreeMap<Key, History>) -> Result<Judged, String> {
        let counts = resource.counts().await?;
        let seen = by_key(merge(&[&resource.end().await?])?);
        Ok(Judged::from_histories(fence, counts, workers, seen))
    }

    fn from_histories(
        fence: Fence,
        counts: Counts,
        workers: BTreeMap<Key, History>,
        mut seen: BTreeMap<Option<Key>, History>,
    ) -> Judged {
        let keys = workers.len();
        let mut judged =
            Judged { fence, counts, keys, operations: 0, workers: 0, resource: 0, overlapping: 0, service: Vec::new() };
        for (key, workers) in workers {
            let accesses = seen.remove(&Some(key)).unwrap_or_default();
            let [of_workers, of_resource] = [&workers, &seen_by_resource(&workers, accesses)].map(Judgement::of);
            judged.operations += of_workers.operations;
            judged.workers += of_workers.resource.len();
            judged.resource += of_resource.resource.len();
            judged.overlapping += overlapping(&workers);
            judged.service.extend(of_workers.service.into_iter().chain(of_resource.service));
        }
        judged
    }

    /// Whether both histories have as many violations as the resource has counted stale writes. The workers' may have
    /// fewer by the accesses that overlap.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let missing = self.resource.checked_sub(self.workers);
        self.resource as u64 == self.counts.stale_accepted && missing.is_some_and(|missing| missing <= self.overlapping)
    }
}

/// The number of accepted accesses that begin before an earlier one has ended.
fn overlapping(workers: &History) -> usize {
    let mut accesses: Vec<_> = workers
        .operations
        .iter()
        .filter_map(|operation| match (&operation.call, &operation.end) {
            (Call::Access { .. }, Some((end, End::Ok(Answer::Accepted)))) => Some((operation.invoked, *end)),
            _ => None,
        })
        .collect();
    accesses.sort_unstable();
    let mut last = None;
    let mut overlaps = |&(invoked, end): &_| {
        let overlaps = last.is_some_and(|last| invoked < last);
        last = last.max(Some(end));
        overlaps
    };
    accesses.iter().filter(|access| overlaps(access)).count()
}

/// What is predicted of all histories.
pub(super) fn predictions(judged: &[Judged]) -> Vec<Prediction> {
    let mut predictions = Vec::new();
    for of in judged {
        let fence = of.fence.name();
        predictions.push(Prediction {
            predicted: format!(
                "fence {fence}: both histories have as many violations as the resource counts stale writes, the workers' \
                 without some of the writes that overlap"
            ),
            seen: format!(
                "{} and {}, {} counted, {} overlap, in {} keys",
                of.workers, of.resource, of.counts.stale_accepted, of.overlapping, of.keys
            ),
            holds: of.keys > 0 && of.agrees(),
        });
    }
    let operations = judged.iter().map(|of| of.operations).sum();
    let accused = judged.iter().map(|of| of.service.len()).sum();
    predictions.push(Prediction::none("violations of the lock service in the histories", operations, accused));
    predictions
}

/// The histories of all runs as a table.
pub(super) fn histories<T>(results: &Results<T>, of: fn(&T) -> &[Judged]) -> String {
    let mut table = Table::of(
        "backend | fence | keys | operations | violations, workers | violations, resource | \
         stale writes that the resource accepted | violations, lock service",
    );
    let (mut some, mut none) = (false, Vec::new());
    for run in &results.runs {
        let judged = of(&run.figures);
        if judged.is_empty() {
            none.push(run.backend.as_str());
        }
        for of in judged {
            some = true;
            table.row([
                run.backend.clone(),
                of.fence.name().to_owned(),
                of.keys.to_string(),
                of.operations.to_string(),
                of.workers.to_string(),
                of.resource.to_string(),
                of.counts.stale_accepted.to_string(),
                of.service.len().to_string(),
            ]);
        }
    }
    let mut text = String::new();
    if some {
        text += "Two histories of each round are recorded and judged by the checkers of\n\
                 docs/conformance/histories.md: the workers', and the same grants with the accesses as the resource\n\
                 saw them.\n\n";
        text += &table.markdown();
        text += "\n";
    }
    if !none.is_empty() {
        text += "The checkers of histories judge nothing of these runs, which are older than the records:\n";
        text += &none.join(", ");
        text += ".\n\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use palisade_history::{Answer, Call, Client, Recorder, Refusal};

    use super::*;

    /// The writes of a key, in their order; refused ones are false.
    fn accesses(key: &str, writes: &[(u64, bool)]) -> History {
        let recorder = Recorder::in_memory();
        for &(token, accepted) in writes {
            let pending = recorder.invoke(&Client::from("a"), Call::write(Key::from(key), token));
            if accepted { pending.ok(Answer::Accepted) } else { pending.fail(Refusal::Refused) }
        }
        recorder.history().unwrap()
    }

    fn judged(stale_accepted: u64, workers: &[(u64, bool)], resource: &[(u64, bool)]) -> Judged {
        let counts = Counts { stale_accepted, ..Counts::default() };
        let (one, other) = (Key::from("k"), Key::from("whole"));
        let of = |writes| [(one.clone(), accesses("k", writes)), (other.clone(), accesses("whole", &[(9, true)]))];
        let seen = of(resource).into_iter().map(|(key, history)| (Some(key), history)).collect();
        Judged::from_histories(Fence::Off, counts, of(workers).into(), seen)
    }

    #[test]
    fn stale_write_is_found_in_both_histories() {
        let stale = [(1, true), (3, true), (2, true)];
        let found = judged(1, &stale, &stale);
        assert_eq!((found.workers, found.resource, found.keys), (1, 1, 2));
        assert!(found.agrees() && predictions(&[found]).iter().all(|prediction| prediction.holds));
    }

    #[test]
    fn sources_that_disagree_are_found() {
        let (stale, refused) = ([(3, true), (2, true)], [(3, true), (2, false)]);
        assert!(judged(0, &refused, &refused).agrees());
        for of in [judged(0, &stale, &stale), judged(1, &refused, &stale), judged(1, &stale, &refused)] {
            assert!(!of.agrees() && !predictions(&[of])[0].holds);
        }
        assert!(!predictions(&[])[0].holds, "no history proves nothing");
    }

    /// The workers cannot tell which of two writes was first that overlap; the resource can.
    #[test]
    fn workers_may_miss_a_stale_write_that_overlaps_another() {
        let recorder = Recorder::in_memory();
        let [first, stale] =
            [3, 2].map(|token| recorder.invoke(&Client::from("a"), Call::write(Key::from("k"), token)));
        first.ok(Answer::Accepted);
        stale.ok(Answer::Accepted);
        let counts = Counts { stale_accepted: 1, ..Counts::default() };
        let workers = [(Key::from("k"), recorder.history().unwrap())].into();
        let resource = [(Some(Key::from("k")), accesses("k", &[(3, true), (2, true)]))].into();
        let found = Judged::from_histories(Fence::Off, counts, workers, resource);
        assert_eq!((found.workers, found.resource, found.overlapping), (0, 1, 1));
        assert!(found.agrees());
        assert!(!Judged { overlapping: 0, ..found }.agrees());
    }
}
