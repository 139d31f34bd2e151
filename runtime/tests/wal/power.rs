//! No crash makes a log look damaged: whenever the power fails, whichever of the sectors in flight were written, and
//! whatever happens in the middle of the start after that, the log has what was acknowledged.
//!
//! Frames, their evidence, and what a start writes once more are in flight at different times, and together.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::batch;
use super::disk::{State, Told};

/// Power failures with more sectors in flight than this are tried by chance.
const ALL: usize = 6;
/// How many of those.
const SOME: usize = 40;

/// What the disk may have written of so many sectors in flight.
fn selections(pending: usize, rng: &mut SmallRng) -> Vec<u64> {
    let all = (1_u64 << pending) - 1;
    if pending <= ALL {
        return (0..=all).collect();
    }
    let one_or_all_but_one = (0..pending).flat_map(|sector| [1 << sector, all ^ (1 << sector)]);
    [0, all].into_iter().chain(one_or_all_but_one).chain((0..SOME).map(|_| rng.random_range(0..=all))).collect()
}

struct Trial<'a> {
    told: &'a Told,
    rng: SmallRng,
    starts: usize,
}

impl Trial<'_> {
    /// A process starts on `state`: it must find at least so many frames. Says how many it found.
    ///
    /// In the middle of that start other things may happen, `depth` times one after the other.
    fn start(&mut self, state: &State, least: usize, depth: u32, scene: &str) {
        let (opened, disk) = state.open(self.told.segment_bytes);
        let (mut wal, durable, report) = opened.unwrap_or_else(|error| panic!("{scene}: {error}"));
        self.starts += 1;
        let found = self.told.frames_of(&durable).unwrap_or_else(|| panic!("{scene}: no state of this log"));
        assert!(found >= least, "{scene}: {found} frames of {least} that were acknowledged");
        if depth > 0 {
            // What was only in the system's memory may be lost until the start is over.
            let least = if state.is_durable() { found } else { least };
            let moments = disk.moments();
            for (number, moment) in moments.iter().enumerate() {
                let is_over = number + 1 == moments.len();
                let least = if is_over { found } else { least };
                self.crash(&moment.state, least, depth, &format!("{scene}, in step {number} of the start"));
                // A start that cuts off a torn write, and whose sync fails, leaves zeros to see where the disk may still have
                // the remains: that is a refusal later on, and not one that evidence has to do with.
                if report.cut.is_none() && moments.get(number + 1).is_some_and(|next| next.is_sync) {
                    self.failed_sync(&moment.state, least, depth, &format!("{scene}, step {number} of the start"));
                }
            }
        }
        // It is a log like any other.
        let next = batch(&mut SmallRng::seed_from_u64(0), &durable, 100);
        wal.write(&next).unwrap();
        drop(wal);
        let mut expected = durable;
        next.iter().for_each(|write| expected.apply(write));
        for state in [disk.state(), disk.state().power_failure(0)] {
            let again = state.open(self.told.segment_bytes).0.unwrap_or_else(|error| panic!("{scene}, later: {error}"));
            assert_eq!(again.1, expected, "{scene}, later");
        }
    }

    /// The process is killed, or the power fails.
    fn crash(&mut self, state: &State, least: usize, depth: u32, scene: &str) {
        self.start(state, least, depth - 1, &format!("{scene}: killed"));
        for selection in selections(state.pending(), &mut self.rng) {
            let scene = format!("{scene}: of {} sectors {selection:b} were written", state.pending());
            self.start(&state.power_failure(selection), least, depth - 1, &scene);
        }
    }

    /// A sync fails. The system goes on to show what the disk may not have.
    fn failed_sync(&mut self, state: &State, least: usize, depth: u32, scene: &str) {
        for selection in selections(state.pending(), &mut self.rng) {
            let scene = format!("{scene}: the sync failed, and {selection:b} were written");
            self.start(&state.failed_sync(selection), least, depth - 1, &scene);
        }
    }
}

/// Every moment of several logs; then every moment of the start after that.
#[test]
fn any_selection_of_the_sectors_in_flight_is_a_log() {
    let mut starts = 0;
    for (seed, count, largest, segment_bytes) in [(1, 6, 100, 8192), (2, 4, 700, 8192), (3, 7, 150, 2560)] {
        let told = Told::tell(seed, count, largest, segment_bytes);
        let mut trial = Trial { told: &told, rng: SmallRng::seed_from_u64(seed), starts: 0 };
        for (number, moment) in told.moments.iter().enumerate() {
            let least = told.acknowledged[number];
            trial.crash(&moment.state, least, 2, &format!("seed {seed}, moment {number}"));
            if told.moments.get(number + 1).is_some_and(|next| next.is_sync) {
                trial.failed_sync(&moment.state, least, 2, &format!("seed {seed}, moment {number}"));
            }
        }
        starts += trial.starts;
    }
    assert!(starts > 5000, "{starts} starts");
}

/// Every byte of every write may be the last that reached the disk.
#[test]
fn any_prefix_of_a_write_is_a_log() {
    let told = Told::tell(4, 4, 300, 4608);
    let mut trial = Trial { told: &told, rng: SmallRng::seed_from_u64(4), starts: 0 };
    for (number, moment) in told.moments.iter().enumerate().filter(|(_, moment)| !moment.is_sync) {
        let pending = moment.state.pending();
        for selection in selections(pending - 1, &mut trial.rng) {
            for bytes in 0..512 {
                let state = moment.state.torn(selection | 1 << (pending - 1), bytes);
                let scene = format!("moment {number}: sectors {selection:b}, and {bytes} bytes of the last");
                trial.start(&state, told.acknowledged[number], 0, &scene);
            }
        }
    }
    assert!(trial.starts > 5_000, "{} starts", trial.starts);
}
