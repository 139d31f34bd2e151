//! The history of a sample of a fill's keys: their acquires, a second client that asks for them while they are held, and one
//! that asks when they have ended.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use palisade_history::Recorder;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::text;
use crate::generate::fill::{Fill, Lasts};
use crate::generate::taken::{Sample, Taken};
use crate::history::{self, Judgement, by_key};
use crate::metrics::Metrics;

/// Keys of a sample.
pub(super) const KEYS: u64 = 100;
/// The second client, which asks for the keys while they are held.
pub(super) const RIVAL: &str = "rival";
/// How long the locks of the second client and the later one last.
const TTL: Duration = Duration::from_secs(1);

/// What the checkers say of a sample.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// Keys of the sample that were locked.
    pub keys: u64,
    /// Those that were granted to a second client while they were held; none: locks had ended before all were asked for.
    pub rivals: Option<u64>,
    /// Those that were refused to the second client because they were held.
    #[serde(default)]
    pub refused: u64,
    /// Those that were granted again when all locks had ended; none: not all had.
    pub again: Option<u64>,
    /// Operations that were judged.
    pub operations: usize,
    /// Violations that the checkers of histories found, each key judged by itself.
    pub violations: Vec<String>,
}

impl Sampled {
    /// Whether the sample shows that its keys were held until they ended.
    pub(super) fn sound(&self) -> bool {
        let again = self.again.is_none_or(|again| again == self.keys);
        let rivals = self.rivals == Some(0) && self.refused == self.keys;
        self.keys > 0 && self.operations > 0 && rivals && again && self.violations.is_empty()
    }

    /// In words.
    pub(super) fn words(&self) -> String {
        let count = |count: Option<u64>| count.map_or_else(|| "not asked".to_owned(), |count| count.to_string());
        format!(
            "{} keys: to a second client {}, refused {}, again {}; {} violations in {} operations",
            self.keys,
            count(self.rivals),
            self.refused,
            count(self.again),
            self.violations.len(),
            self.operations
        )
    }
}

/// The record of a sample.
pub(super) struct Record {
    /// Each key whose number is a multiple of this.
    every: u64,
    recorder: Recorder,
    grants: Arc<AtomicU64>,
    metrics: Arc<Metrics>,
}

impl Record {
    /// Of a fill with so many keys.
    pub(super) fn new(keys: u64, metrics: &Arc<Metrics>) -> Record {
        let recorder = history::in_memory();
        let grants = Arc::new(AtomicU64::new(1));
        Record { every: (keys / KEYS).max(1), recorder, grants, metrics: metrics.clone() }
    }

    /// What records the fill.
    pub(super) fn of_fill(&self) -> Arc<Taken> {
        self.taken("gen", self.every)
    }

    fn taken(&self, owner: &'static str, every: u64) -> Arc<Taken> {
        let (recorder, grants, pending) = (self.recorder.clone(), self.grants.clone(), Mutex::default());
        let rival = owner == RIVAL;
        Taken::new(&self.metrics, Some(Sample { every, owner, rival, recorder, grants, pending }))
    }

    /// Asks for the sample's keys among the first `keys` of a fill; returns how many were granted, and how many refused
    /// because they are held.
    pub(super) async fn ask(&self, owner: &'static str, fill: &Fill, keys: u64) -> Result<(u64, u64), String> {
        let keys = keys.div_ceil(self.every);
        let fill = Fill { keys, step: self.every, lasts: Lasts::For(TTL), share: 1, until: None, ..fill.clone() };
        let taken = self.taken(owner, 1);
        if let Some(reason) = fill.run(&taken).await?.ended {
            eprintln!("ten-million: {}: the client {owner} got no answer for some keys: {reason}", fill.backend);
        }
        Ok((taken.count(), taken.refused()))
    }

    /// What the checkers say.
    pub(super) fn judge(&self, rivals: Option<(u64, u64)>, again: Option<u64>, keys: u64) -> Result<Sampled, String> {
        let history = self.recorder.history().map_err(text)?;
        let judged: Vec<_> = by_key(history).values().map(Judgement::without_search).collect();
        Ok(Sampled {
            keys: keys.div_ceil(self.every),
            rivals: rivals.map(|(granted, _)| granted),
            refused: rivals.map_or(0, |(_, refused)| refused),
            again,
            operations: judged.iter().map(|judgement| judgement.operations).sum(),
            violations: judged.into_iter().flat_map(|judgement| judgement.service).collect(),
        })
    }
}
