//! No crash makes a log look damaged. After a power failure at any moment, with any selection of
//! the sectors in flight written, and with further failures in the middle of the next start, the
//! log has all that was acknowledged.
//!
//! Frames, their evidence, and the sectors that a start writes again are in flight at different
//! times, and together.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::batch;
use super::disk::{RecordedDisk, State};

/// Up to this number of sectors in flight all selections are tried; above it, a random sample.
const MAX_EXHAUSTIVE: usize = 6;
/// Number of random selections in the sample.
const SAMPLES: usize = 40;

/// Selections of the sectors in flight that the disk may have written, as bit masks.
fn selections(pending: usize, rng: &mut SmallRng) -> Vec<u64> {
    let all = (1_u64 << pending) - 1;
    if pending <= MAX_EXHAUSTIVE {
        return (0..=all).collect();
    }
    let one_or_all_but_one = (0..pending).flat_map(|sector| [1 << sector, all ^ (1 << sector)]);
    [0, all].into_iter().chain(one_or_all_but_one).chain((0..SAMPLES).map(|_| rng.random_range(0..=all))).collect()
}

struct Trial<'a> {
    log: &'a RecordedDisk,
    rng: SmallRng,
    starts: usize,
}

impl Trial<'_> {
    /// A process starts on `state`: it must find at least `least` frames.
    ///
    /// Further failures happen in the middle of that start, `depth` of them one after the other.
    fn start(&mut self, state: &State, least: usize, depth: u32, case: &str) {
        let (opened, disk) = state.open(self.log.segment_bytes);
        let (mut wal, durable, report) = opened.unwrap_or_else(|error| panic!("{case}: {error}"));
        self.starts += 1;
        let found = self.log.frames_of(&durable).unwrap_or_else(|| panic!("{case}: no state of this log"));
        assert!(found >= least, "{case}: {found} frames of {least} that were acknowledged");
        if depth > 0 {
            // Until the start has ended, content that is only in the system's memory may be lost.
            let least = if state.is_durable() { found } else { least };
            let moments = disk.moments();
            for (number, moment) in moments.iter().enumerate() {
                let is_over = number + 1 == moments.len();
                let least = if is_over { found } else { least };
                self.crash(&moment.state, least, depth, &format!("{case}, in step {number} of the start"));
                // Not after a start that cut off a torn write: if its sync fails, the system shows
                // zeros where the disk may still have the remains. A later start refuses that,
                // independently of evidence.
                if report.cut.is_none() && moments.get(number + 1).is_some_and(|next| next.is_sync) {
                    self.failed_sync(&moment.state, least, depth, &format!("{case}, step {number} of the start"));
                }
            }
        }
        // The log accepts writes and reads them back.
        let next = batch(&mut SmallRng::seed_from_u64(0), &durable, 100);
        wal.write(&next).unwrap();
        drop(wal);
        let mut expected = durable;
        next.iter().for_each(|write| expected.apply(write));
        for state in [disk.state(), disk.state().power_failure(0)] {
            let again = state.open(self.log.segment_bytes).0.unwrap_or_else(|error| panic!("{case}, later: {error}"));
            assert_eq!(again.1, expected, "{case}, later");
        }
    }

    /// The process is killed, or the power fails.
    fn crash(&mut self, state: &State, least: usize, depth: u32, case: &str) {
        self.start(state, least, depth - 1, &format!("{case}: killed"));
        for selection in selections(state.pending(), &mut self.rng) {
            let case = format!("{case}: of {} sectors {selection:b} were written", state.pending());
            self.start(&state.power_failure(selection), least, depth - 1, &case);
        }
    }

    /// A sync fails. The system continues to show content that the disk may not have.
    fn failed_sync(&mut self, state: &State, least: usize, depth: u32, case: &str) {
        for selection in selections(state.pending(), &mut self.rng) {
            let case = format!("{case}: the sync failed, and {selection:b} were written");
            self.start(&state.failed_sync(selection), least, depth - 1, &case);
        }
    }
}

/// A failure at every moment of several logs, and then at every moment of the next start.
#[test]
fn power_failure_recovers_with_any_selection_of_sectors() {
    let mut starts = 0;
    for (seed, count, largest, segment_bytes) in [(1, 6, 100, 8192), (2, 4, 700, 8192), (3, 7, 150, 2560)] {
        let log = RecordedDisk::write(seed, count, largest, segment_bytes);
        let mut trial = Trial { log: &log, rng: SmallRng::seed_from_u64(seed), starts: 0 };
        for (number, moment) in log.moments.iter().enumerate() {
            let least = log.acknowledged[number];
            trial.crash(&moment.state, least, 2, &format!("seed {seed}, moment {number}"));
            if log.moments.get(number + 1).is_some_and(|next| next.is_sync) {
                trial.failed_sync(&moment.state, least, 2, &format!("seed {seed}, moment {number}"));
            }
        }
        starts += trial.starts;
    }
    assert!(starts > 5000, "{starts} starts");
}

/// Any byte of any write may be the last one that reached the disk.
#[test]
fn torn_write_recovers_at_any_byte() {
    let log = RecordedDisk::write(4, 4, 300, 4608);
    let mut trial = Trial { log: &log, rng: SmallRng::seed_from_u64(4), starts: 0 };
    for (number, moment) in log.moments.iter().enumerate().filter(|(_, moment)| !moment.is_sync) {
        let pending = moment.state.pending();
        for selection in selections(pending - 1, &mut trial.rng) {
            for bytes in 0..512 {
                let state = moment.state.torn(selection | 1 << (pending - 1), bytes);
                let case = format!("moment {number}: sectors {selection:b}, and {bytes} bytes of the last");
                trial.start(&state, log.acknowledged[number], 0, &case);
            }
        }
    }
    assert!(trial.starts > 5_000, "{} starts", trial.starts);
}
