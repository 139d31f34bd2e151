//! The log with snapshots: a snapshot allows the log to be compacted, and a leader's snapshot
//! replaces the log. After a crash at any point in between, the next start finds the state that the
//! model's disk would hold.
//!
//! The state machine here hashes all that was applied to it, so that a difference of one entry is
//! detected.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use palisade::storage::{DataDir, RecoveryReport, StorageError, Wal};
use palisade_spec::lock::{Bytes, Command, Key, LockRequest, LockTable, Opening, Owner, Principal, Proof, Ttl};
use palisade_spec::raft::{
    Durable, Entry, HardState, Index, Members, NodeId, Payload, Persist, Position, Snapshot, Stamp, StateMachine, Term,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::{FRAMES_AT, SECTOR, SEGMENT, directory, identity, new_segment_front, segment_name, write_files};

/// A hash of all that was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Digest(u64);

impl StateMachine for Digest {
    type Command = Bytes;
    type Outcome = ();

    fn apply(&mut self, at: Stamp, command: &Bytes) {
        let mut hasher = DefaultHasher::new();
        (self.0, at, command).hash(&mut hasher);
        self.0 = hasher.finish();
    }

    fn advance(&mut self, at: Stamp) {
        self.apply(at, &Bytes::from(""));
    }

    fn next_deadline(&self) -> Option<Stamp> {
        None
    }
}

type Files = BTreeMap<String, Vec<u8>>;

fn open(directory: &Path) -> Result<(Wal<Digest>, Durable<Digest>, RecoveryReport), StorageError> {
    Wal::open_with_segments_of(
        SEGMENT,
        DataDir::open(directory, &identity())?,
        Durable::blank(Digest::default(), Members::default()),
    )
}

/// All files in a directory that a start reads.
fn files(directory: &Path) -> Files {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    // A segment may be removed while the directory is read.
    let read = entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, fs::read(entry.path()).ok()?)));
    let mut files: Files = read.filter(|(name, _)| !name.ends_with(".tmp") && name != "lock").collect();
    let identity: serde_json::Value = serde_json::from_slice(&files["identity.json"]).unwrap();
    let first = segment_name(serde_json::from_value(identity["segments"]["first"].clone()).unwrap());
    files.retain(|name, _| !name.starts_with("wal-") || *name >= first);
    files
}

/// A segment before its first frame was written.
fn as_new(segment: &[u8]) -> Vec<u8> {
    let mut new = new_segment_front(segment);
    new.resize(segment.len(), 0);
    new
}

/// One write of a node: its files and its durable state before and after.
struct Step {
    what: &'static str,
    before: Files,
    after: Files,
    /// The durable state before.
    was: Durable<Digest>,
    /// The durable state between the publication of a snapshot and its record in the log.
    torn: Durable<Digest>,
    /// The durable state after.
    is: Durable<Digest>,
}

/// A generator of a node's writes.
struct Writer {
    rng: SmallRng,
    /// The node's commit index.
    committed: Index,
    durable: Durable<Digest>,
}

impl Writer {
    fn entries(&mut self) -> Persist<Digest> {
        let (log, rng) = (&self.durable.log, &mut self.rng);
        let end = log.last().index.0;
        let back = if rng.random_bool(0.4) { rng.random_range(0..=(end - self.committed.0).min(4)) } else { 0 };
        let first = end - back + 1;
        let before = log.term_at(Index(first - 1)).unwrap();
        let term = if back > 0 { self.durable.hard.term } else { before };
        let mut stamp = log.get(Index(first - 1)).map_or(self.durable.snapshot.stamp, |entry| entry.stamp);
        stamp = if first - 1 == log.base().index.0 { log.last_stamp().max(stamp) } else { stamp };
        let entries = (first..first + rng.random_range(1..=4)).map(|index| {
            stamp = stamp.plus(rng.random_range(0..9));
            let command = (0..rng.random_range(1..200)).map(|_| rng.random()).collect::<Vec<u8>>().into();
            Entry { term, index: Index(index), stamp, payload: Payload::Command(command) }
        });
        Persist::Entries(entries.collect())
    }

    fn hard_state(&mut self) -> Persist<Digest> {
        let vote = self.rng.random::<bool>().then_some(NodeId(2));
        Persist::HardState(HardState { term: self.durable.hard.term.next(), vote })
    }

    /// A leader's snapshot: its last entry is in the log, conflicts with the log, or lies behind
    /// the log's end.
    fn leader_snapshot(&mut self) -> Persist<Digest> {
        let index = Index(self.committed.0 + self.rng.random_range(1..8));
        let same = self.durable.log.term_at(index).filter(|_| self.rng.random());
        let term = same.unwrap_or(self.durable.hard.term).max(self.durable.log.term_at(self.committed).unwrap());
        let stamp = self.durable.log.get(index).map_or(self.durable.log.last_stamp(), |entry| entry.stamp);
        let machine = Digest(self.rng.random());
        Persist::Snapshot(Arc::new(Snapshot {
            last: Position { term, index },
            stamp,
            members: Arc::default(),
            machine,
        }))
    }
}

/// Writes a log in this number of steps, and records the disk before and after each.
fn write_log(seed: u64, count: usize) -> Vec<Step> {
    let directory = directory();
    let (mut wal, durable, _) = open(directory.path()).unwrap();
    let mut writer = Writer { rng: SmallRng::seed_from_u64(seed), committed: Index(0), durable };
    let mut steps = Vec::new();
    for _ in 0..count {
        let (before, was) = (files(directory.path()), writer.durable.clone());
        let last = writer.durable.log.last().index;
        writer.committed = Index(writer.rng.random_range(writer.committed.0..=last.0));
        let own = writer.durable.snapshot.last.index;
        let (what, write) = match writer.rng.random_range(0..10) {
            0 => ("term", writer.hard_state()),
            1 | 2 if writer.committed > own => {
                let snapshot = writer.durable.snapshot_at(writer.committed);
                wal.snapshots().write(&snapshot).unwrap();
                writer.durable.snapshot = snapshot;
                let is = writer.durable.clone();
                let after = files(directory.path());
                steps.push(Step { what: "snapshot", before, after, was, torn: is.clone(), is });
                continue;
            }
            3 | 4 if own > writer.durable.log.base().index => {
                let through = writer.rng.random_range(writer.durable.log.base().index.0 + 1..=own.0);
                ("compaction", Persist::Compact(Index(through)))
            }
            5 => ("installation", writer.leader_snapshot()),
            _ => ("entries", writer.entries()),
        };
        wal.write(std::slice::from_ref(&write)).unwrap();
        writer.durable.apply(&write);
        let mut torn = was.clone();
        if let Persist::Snapshot(snapshot) = &write {
            writer.committed = snapshot.last.index;
            torn.snapshot = Snapshot::clone(snapshot);
            torn.settle();
        }
        let is = writer.durable.clone();
        steps.push(Step { what, before, after: files(directory.path()), was, torn, is });
    }
    steps
}

/// Opens the files that a crash left: the log must hold exactly `expected`, and accept writes from
/// then on.
fn assert_recovers(files: &Files, expected: &Durable<Digest>, case: &str) {
    let directory = directory();
    write_files(directory.path(), files);
    let (mut wal, mut durable, _) = open(directory.path()).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(&durable, expected, "{case}");
    let committed = durable.snapshot.last.index;
    let mut writer = Writer { rng: SmallRng::seed_from_u64(0), committed, durable: durable.clone() };
    for _ in 0..2 {
        for write in [writer.entries(), writer.hard_state()] {
            wal.write(std::slice::from_ref(&write)).unwrap();
            durable.apply(&write);
            writer.durable.apply(&write);
        }
    }
    drop(wal);
    let (_, again, report) = open(directory.path()).unwrap_or_else(|error| panic!("{case}, later: {error}"));
    assert_eq!((again, report.cut), (durable, None), "{case}, later");
}

/// The segments among some files.
fn segments(files: &Files) -> Vec<&String> {
    files.keys().filter(|name| name.starts_with("wal-")).collect()
}

#[test]
fn log_with_snapshots_is_read_back_across_many_segments_and_starts() {
    let (mut removed, mut shortest) = (0, usize::MAX);
    for seed in 0..20 {
        let steps = write_log(seed, 120);
        for (number, step) in steps.iter().enumerate() {
            let directory = directory();
            write_files(directory.path(), &step.after);
            let (_, durable, report) = open(directory.path()).unwrap();
            assert_eq!(durable, step.is, "seed {seed}, step {number}: {}", step.what);
            assert_eq!(report.snapshot.unwrap_or_default(), step.is.snapshot.last);
            let goes_on = step.is.log.last().index > step.is.snapshot.last.index;
            assert_eq!(report.log_bytes > 0, goes_on, "seed {seed}, step {number}");
        }
        let last = &steps.last().unwrap().after;
        let first: usize = segments(last)[0][4..24].parse().unwrap();
        removed += first - 1;
        shortest = shortest.min(steps.len());
        assert!(last.keys().filter(|name| name.starts_with("snapshot-")).count() <= 2);
    }
    assert!(removed > 50, "{removed} segments were removed");
}

/// A crash at any byte of any write leaves the durable state before or after the write. If the
/// write is the record of a leader's snapshot, a crash leaves the snapshot and the settled log.
/// `SEEDS=3` tries three logs.
#[test]
fn log_with_snapshots_recovers_from_a_crash_at_any_byte() {
    let seeds: u64 = std::env::var("SEEDS").map_or(1, |count| count.parse().expect("SEEDS must be a number"));
    let cases = thread::scope(|scope| {
        let logs: Vec<_> = (0..seeds).map(|seed| scope.spawn(move || crash_at_any_byte(seed))).collect();
        logs.into_iter().map(|log| log.join().expect("every crash is recovered from")).collect::<Vec<_>>()
    });
    assert!(!cases.is_empty(), "SEEDS must be at least 1");
    for cases in cases {
        assert!(cases["entries"] > 600 && cases["installation"] > 100 && cases["compaction"] > 100, "{cases:?}");
    }
}

/// Tries it with the log of this seed, and returns the number of crashes in each kind of write.
fn crash_at_any_byte(seed: u64) -> BTreeMap<&'static str, usize> {
    let mut cases = BTreeMap::new();
    for (number, step) in write_log(seed, 60).iter().enumerate() {
        let last = (*segments(&step.after).last().unwrap()).clone();
        let (new, old) = (&step.after[&last], step.before.get(&last));
        // The write changed bytes behind the earlier frames, or behind the front of a new
        // segment. Its evidence came later.
        let old = old.cloned().unwrap_or_else(|| as_new(new));
        let changed: Vec<usize> = (FRAMES_AT..new.len()).filter(|&at| old[at] != new[at]).collect();
        let Some((&from, &to)) = changed.first().zip(changed.last()) else { continue };
        for cut in from..=to + 1 {
            let mut files = step.after.clone();
            files.insert(last.clone(), [&old[..FRAMES_AT], &new[FRAMES_AT..cut], &vec![0; new.len() - cut]].concat());
            let expected = if cut > to { &step.is } else { &step.torn };
            assert_recovers(&files, expected, &format!("seed {seed}, step {number}: {} cut at {cut}", step.what));
            *cases.entry(step.what).or_insert(0) += 1;
        }
    }
    cases
}

/// A start that finds a leader's snapshot beside the old log may crash at any byte while it records
/// the installation. That includes a log without room, where a new segment begins, which the
/// identity file counts or does not count yet.
#[test]
fn start_that_finishes_an_installation_may_crash_at_any_byte() {
    let (mut cases, mut begun) = (0, 0);
    for seed in 0..40 {
        for (number, step) in write_log(seed, 60).iter().enumerate() {
            if step.what != "installation" || step.torn.log.last() == step.was.log.last() {
                continue;
            }
            let case = format!("seed {seed}, step {number}");
            let snapshots = step.after.iter().filter(|(name, _)| name.starts_with("snapshot-"));
            let mut before = step.before.clone();
            before.extend(snapshots.map(|(name, bytes)| (name.clone(), bytes.clone())));
            let directory = directory();
            write_files(directory.path(), &before);
            drop(open(directory.path()).unwrap());
            let after = files(directory.path());
            let last = (*segments(&after).last().unwrap()).clone();
            let begins = !before.contains_key(&last);
            begun += usize::from(begins);
            let new = &after[&last];
            let header = as_new(new);
            let old = before.get(&last).unwrap_or(&header);
            let changed: Vec<usize> = (FRAMES_AT..new.len()).filter(|&at| old[at] != new[at]).collect();
            let (&from, &to) = changed.first().zip(changed.last()).unwrap();
            for cut in (from..=to + 1).step_by(if begins { 1 } else { 9 }) {
                let mut files = before.clone();
                files.extend(after.clone());
                files.insert(
                    last.clone(),
                    [&old[..FRAMES_AT], &new[FRAMES_AT..cut], &vec![0; new.len() - cut]].concat(),
                );
                assert_recovers(&files, &step.torn, &format!("{case}, cut at {cut}"));
                cases += 1;
            }
            if begins {
                let mut files = before.clone();
                files.insert(last, header);
                assert_recovers(&files, &step.torn, &format!("{case}, a segment that is not counted"));
            }
        }
    }
    assert!(cases > 1000 && begun >= 3, "{cases} cases, {begun} segments begun");
}

/// Segments are removed in any order, after the identity file has ceased to count them. A start
/// does not read those that a crash left; and while a segment is counted, it must not be missing.
#[test]
fn uncounted_segments_are_not_read() {
    let mut cases = 0;
    for seed in 0..6 {
        for step in write_log(seed, 120) {
            let removed: Vec<&String> =
                segments(&step.before).into_iter().filter(|name| !step.after.contains_key(*name)).collect();
            if removed.is_empty() {
                continue;
            }
            for selection in 0..1_usize << removed.len().min(4) {
                let mut files = step.after.clone();
                for (position, name) in
                    removed.iter().enumerate().filter(|(position, _)| selection & (1 << position) != 0)
                {
                    // The file may also be truncated: a removal is not atomic.
                    let content = &step.before[*name];
                    files.insert((*name).clone(), content[..content.len() / (1 + position)].to_vec());
                }
                assert_recovers(&files, &step.is, &format!("seed {seed}: {selection:b} of {removed:?} are left"));
                cases += 1;
            }
            // The new segment has its name, but the identity file does not count it yet.
            let mut files = step.before.clone();
            let new = *segments(&step.after).last().unwrap();
            files.insert(new.clone(), as_new(&step.after[new]));
            assert_recovers(&files, &step.was, &format!("seed {seed}: {removed:?} are still counted"));
            // A missing segment that is counted is an error.
            let mut files = step.after.clone();
            let first = segments(&step.after)[0].clone();
            files.remove(&first);
            let directory = directory();
            write_files(directory.path(), &files);
            let error = open(directory.path()).unwrap_err();
            assert!(matches!(&error, StorageError::MissingSegment { path } if path.ends_with(&first)), "{error}");
        }
    }
    assert!(cases > 50, "{cases} cases");
}

/// A compacted log without the snapshot it was compacted for is refused. An older snapshot replaces
/// it only if the log still has all entries behind that one; a damaged snapshot is always refused.
#[test]
fn compacted_log_without_its_snapshot_is_refused() {
    let (mut none, mut older) = (0, 0);
    for (seed, position) in (0..6).zip([0, 9, 17, 25, 33, 59]) {
        for step in write_log(seed, 80) {
            let own: Vec<String> = step.after.keys().filter(|name| name.starts_with("snapshot-")).cloned().collect();
            let is_shortened = step.is.log.base().index > Index(0);
            let Some(newest) = own.last().filter(|_| is_shortened) else { continue };
            let directory = directory();
            write_files(directory.path(), &step.after);
            let path = directory.path().join(newest);
            // The error names the damaged snapshot, whatever other files there are.
            let mut damaged = step.after[newest].clone();
            damaged[position] ^= 1;
            fs::write(&path, damaged).unwrap();
            let error = open(directory.path()).unwrap_err();
            assert!(matches!(&error, StorageError::Damaged { path: named, .. } if *named == path), "{error}");
            fs::remove_file(&path).unwrap();
            match open(directory.path()) {
                // The log was not compacted since the older snapshot, so the two have everything.
                Ok((_, durable, _)) => {
                    assert_eq!(durable.log, step.is.log);
                    assert!(durable.log.base().index <= durable.snapshot.last.index);
                    older += 1;
                }
                Err(StorageError::SnapshotUnfit { .. } | StorageError::Damaged { .. }) => none += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(none > 20 && older > 20, "{none} refused, {older} recovered");
}

/// A snapshot in the middle of a batch is installed after the writes before it and before those
/// behind it.
#[test]
fn snapshot_is_installed_in_batch_order() {
    for seed in 0..50 {
        let directory = directory();
        let (mut wal, durable, _) = open(directory.path()).unwrap();
        let mut writer = Writer { rng: SmallRng::seed_from_u64(seed), committed: Index(0), durable };
        let mut batch = Vec::new();
        for kind in 0..7 {
            let write = match kind % 3 {
                0 => writer.hard_state(),
                1 => writer.entries(),
                _ => writer.leader_snapshot(),
            };
            writer.durable.apply(&write);
            writer.committed = writer.durable.snapshot.last.index;
            batch.push(write);
        }
        wal.write(&batch).unwrap();
        drop(wal);
        let (_, durable, report) = open(directory.path()).unwrap();
        assert_eq!((durable, report.frames), (writer.durable, 3), "seed {seed}");
    }
}

/// A directory in an old format is refused with the format's number, not misread: format 4 is that
/// of sessions without proofs, format 5 that of sessions without principals.
#[test]
fn segment_of_another_format_is_refused() {
    for format in [1, 4, 5, 7] {
        let directory = directory();
        drop(open(directory.path()).unwrap());
        let path = directory.path().join(segment_name(1));
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = format;
        let sum = crc32c::crc32c(&bytes[..SECTOR - 4]);
        bytes[SECTOR - 4..SECTOR].copy_from_slice(&sum.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        let error = open(directory.path()).unwrap_err();
        let reads =
            format!("is in format {format}; this program (Palisade {}) reads format 6.", env!("CARGO_PKG_VERSION"));
        assert!(error.to_string().starts_with(&format!("{} {reads}", path.display())), "{error}");
        assert!(!error.is_damage(), "another version can read it");
    }
}

#[test]
#[ignore = "a measurement, for a real disk: cargo test --release --test wal -- --ignored --nocapture"]
fn measure_snapshots() {
    for sessions in [100_000, 1_000_000] {
        let directory = tempfile::tempdir().unwrap();
        let mut machine = LockTable::default();
        for number in 0..sessions {
            let opening = Opening {
                proof: Proof::from(number),
                owner: Owner::from("worker-1234567"),
                principal: Principal::default(),
                ttl: Ttl(30_000),
            };
            let key = Key::from(format!("a/key/of/some/length/{number}").as_str());
            machine.apply(Stamp(1), &Command::AcquireOnce { opening, request: LockRequest::exclusive(key, false) });
        }
        let open = || {
            Wal::open(
                DataDir::open(directory.path(), &identity()).unwrap(),
                Durable::blank(LockTable::default(), Members::default()),
            )
            .unwrap()
        };
        let (mut wal, _, _) = open();
        let before = Instant::now();
        let copy = machine.clone();
        println!("{sessions} sessions with a lock each: copied in {:?}", before.elapsed());
        let hard = HardState { term: Term(1), vote: None };
        wal.write(&[Persist::HardState(hard)]).unwrap();
        let snapshots = Arc::clone(wal.snapshots());
        let last = Position { term: Term(1), index: Index(1) };
        let before = Instant::now();
        let writer = std::thread::spawn(move || {
            snapshots.write(&Snapshot { last, stamp: Stamp(1), members: Arc::default(), machine: copy })
        });
        // The latency of log writes meanwhile.
        let mut syncs = Vec::new();
        while !writer.is_finished() {
            let before = Instant::now();
            wal.write(&[Persist::HardState(hard)]).unwrap();
            syncs.push(before.elapsed());
        }
        let info = writer.join().unwrap().unwrap();
        println!("written in {:?}, {} bytes", before.elapsed(), info.bytes);
        syncs.sort_unstable();
        let at = |share: usize| syncs.get(syncs.len() * share / 10_000).copied().unwrap_or_default();
        let (median, p99, max) = (at(5_000), at(9_900), at(9_999));
        println!("the log meanwhile: {} writes, median {median:?}, p99 {p99:?}, max {max:?}", syncs.len());
        drop(wal);
        let before = Instant::now();
        let (_, durable, _) = open();
        println!("read back in {:?}", before.elapsed());
        assert!(durable.snapshot.machine == machine);
    }
}
