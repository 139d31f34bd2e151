//! The log's guarantee, tested on files: after any crash, recovery restores exactly the durable
//! state; after any other change of the files, it either restores everything or refuses and reports
//! the offset.
//!
//! [`RecordedLog`] makes all logs here from a seed, so a failure can be reproduced. The changes to
//! the files are exhaustive within the bounds that each test states.

mod disk;
mod earlier_versions;
mod evidence;
mod messages;
mod pinned;
mod power;
mod snapshots;
#[path = "../../src/storage/testing.rs"]
mod testing;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use palisade::storage::{DataDir, Identity, RecoveryReport, StorageError, Wal, Written};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Durable, Entry, HardState, Index, Members, NodeId, Payload, Persist, Stamp, Term};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use testing::Tape;

/// Small enough that a short log has several segments.
const SEGMENT: u64 = 3072;
const SECTOR: usize = 512;
/// Behind a segment's header are two sectors of evidence, and then the frames. docs/data-directory.md
/// describes the format.
const FRAMES_AT: usize = 3 * SECTOR;

type Opened = (Wal<Tape>, Durable<Tape>, RecoveryReport);

fn identity() -> Identity {
    Identity::of(0xC1, NodeId(2))
}

fn open(directory: &Path) -> Result<Opened, StorageError> {
    Wal::open_with_segments_of(
        SEGMENT,
        DataDir::open(directory, &identity())?,
        Durable::blank(Tape, Members::default()),
    )
}

/// A directory in memory, if the machine has one: the tests write thousands of tiny logs and do not
/// measure the disk.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn segment_name(number: usize) -> String {
    format!("wal-{number:020}.log")
}

/// The bytes of a new segment before its frames: this header sector, and twice the evidence of the
/// frame before its first.
fn new_segment_front(header: &[u8]) -> Vec<u8> {
    let first = u64::from_le_bytes(header[32..40].try_into().unwrap());
    let at = (FRAMES_AT as u64).to_le_bytes();
    let mut slot = [b"PLSYNCED", &header[508..512], &(first - 1).to_le_bytes(), &at, &at].concat();
    slot.resize(SECTOR - 4, 0);
    slot.extend(crc32c::crc32c(&slot).to_le_bytes());
    [&header[..SECTOR], &slot, &slot].concat()
}

/// The next batch of a node whose disk is `durable`: a new term, a vote, new entries, replaced
/// entries.
fn batch(rng: &mut SmallRng, durable: &Durable<Tape>, largest: usize) -> Vec<Persist<Tape>> {
    let mut durable = durable.clone();
    let writes = rng.random_range(1..=3);
    (0..writes)
        .map(|_| {
            let write = if rng.random_bool(0.3) { hard_state(rng, &durable) } else { entries(rng, &durable, largest) };
            durable.apply(&write);
            write
        })
        .collect()
}

fn hard_state(rng: &mut SmallRng, durable: &Durable<Tape>) -> Persist<Tape> {
    let vote = Some(NodeId(rng.random_range(1..=3)));
    let hard = durable.hard;
    Persist::HardState(match hard.vote {
        None => HardState { vote, ..hard },
        Some(_) => HardState { term: hard.term.next(), vote: vote.filter(|_| rng.random()) },
    })
}

fn entries(rng: &mut SmallRng, durable: &Durable<Tape>, largest: usize) -> Persist<Tape> {
    let log = &durable.log;
    let back = if rng.random_bool(0.2) { rng.random_range(0..=log.last().index.0.min(3)) } else { 0 };
    let first = Index(log.last().index.0 - back + 1);
    let before = log.get(Index(first.0 - 1));
    let (mut term, mut stamp) = before.map_or((Term(0), Stamp(0)), |entry| (entry.term, entry.stamp));
    let count = rng.random_range(1..=3);
    Persist::Entries(
        (0..count)
            .map(|offset| {
                term = Term(rng.random_range(term.0..=term.0.max(durable.hard.term.0)));
                stamp = stamp.plus(rng.random_range(0..50));
                let length = rng.random_range(0..=largest);
                // Zeros test a recovery that searches for zeros.
                let bytes: Vec<u8> =
                    if rng.random() { vec![0; length] } else { (0..length).map(|_| rng.random()).collect() };
                let payload = if length == 0 { Payload::Noop } else { Payload::Command(bytes.into()) };
                Entry { term, index: Index(first.0 + offset), stamp, payload }
            })
            .collect(),
    )
}

/// A log, and the durable state after each of its frames.
struct RecordedLog {
    /// The directory's files after the last write.
    files: BTreeMap<String, Vec<u8>>,
    /// Each frame's segment, and the offsets of its first byte and of the byte behind it there.
    frames: Vec<(usize, usize, usize)>,
    /// The evidence slots of each frame's segment after the write of the frame.
    slots: Vec<Vec<u8>>,
    /// The durable state before the first frame and after each.
    states: Vec<Durable<Tape>>,
}

impl RecordedLog {
    /// Writes `count` batches with payloads of up to `largest` bytes.
    fn write(seed: u64, count: usize, largest: usize) -> RecordedLog {
        let directory = directory();
        let rng = &mut SmallRng::seed_from_u64(seed);
        let (mut wal, durable, report) = open(directory.path()).unwrap();
        assert_eq!(report, RecoveryReport::default());
        let mut states = vec![durable];
        let mut frames: Vec<(usize, usize, usize)> = Vec::new();
        let mut slots = Vec::new();
        for _ in 0..count {
            let mut durable = states.last().unwrap().clone();
            let batch = batch(rng, &durable, largest);
            let written: Written = wal.write(&batch).unwrap();
            batch.iter().for_each(|write| durable.apply(write));
            states.push(durable);
            let (segment, at) = frames.last().map_or((1, FRAMES_AT), |&(segment, _, end)| (segment, end));
            let (segment, at) = if written.rotation.is_some() { (segment + 1, FRAMES_AT) } else { (segment, at) };
            frames.push((segment, at, at + written.bytes));
            slots.push(fs::read(directory.path().join(segment_name(segment))).unwrap()[SECTOR..FRAMES_AT].to_vec());
        }
        drop(wal);
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(directory.path()).unwrap().map(Result::unwrap) {
            files.insert(entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
        }
        files.retain(|name, _| !name.ends_with(".tmp") && name != "lock");
        RecordedLog { files, frames, slots, states }
    }

    fn segments(&self) -> usize {
        self.frames.last().unwrap().0
    }

    /// The durable state after the last frame.
    fn all(&self) -> &Durable<Tape> {
        self.states.last().unwrap()
    }

    /// The files at the time when `last` was the last segment.
    fn files_up_to(&self, last: usize) -> BTreeMap<String, Vec<u8>> {
        let mut files = self.files.clone();
        files.retain(|name, _| !name.starts_with("wal-") || *name <= segment_name(last));
        let mut identity: serde_json::Value = serde_json::from_slice(&files["identity.json"]).unwrap();
        identity["segments"]["last"] = last.into();
        files.insert("identity.json".into(), serde_json::to_vec(&identity).unwrap());
        files
    }

    /// Number of frames that end in `segment` at `byte` or before.
    fn whole_at(&self, segment: usize, byte: usize) -> usize {
        self.frames.iter().take_while(|&&(in_segment, _, end)| (in_segment, end) <= (segment, byte)).count()
    }

    /// The bytes of `segment` after a crash that left it zero from `byte` on, with the evidence of
    /// the frame with number `known` as the newest on the disk.
    fn crashed_at(&self, segment: usize, byte: usize, known: usize) -> Vec<u8> {
        let mut bytes = self.files[&segment_name(segment)].clone();
        bytes[byte..].fill(0);
        let has_evidence = known > 0 && self.frames[known - 1].0 == segment;
        let slots =
            if has_evidence { self.slots[known - 1].clone() } else { new_segment_front(&bytes).split_off(SECTOR) };
        bytes[SECTOR..FRAMES_AT].copy_from_slice(&slots);
        bytes
    }

    /// The durable state after all frames that end in `segment` at `byte` or before.
    fn durable_at(&self, segment: usize, byte: usize) -> &Durable<Tape> {
        &self.states[self.whole_at(segment, byte)]
    }
}

/// Writes files to a directory.
fn write_files(directory: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for (name, content) in files {
        fs::write(directory.join(name), content).unwrap();
    }
}

/// Opens the files that a crash left: the log must hold exactly `expected`, and accept writes from
/// then on.
fn assert_recovers(files: &BTreeMap<String, Vec<u8>>, expected: &Durable<Tape>, case: &str) -> RecoveryReport {
    let directory = directory();
    write_files(directory.path(), files);
    let (mut wal, mut durable, report) = open(directory.path()).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(&durable, expected, "{case}");
    let rng = &mut SmallRng::seed_from_u64(0);
    for _ in 0..2 {
        let batch = batch(rng, &durable, 200);
        wal.write(&batch).unwrap();
        batch.iter().for_each(|write| durable.apply(write));
    }
    drop(wal);
    let (_, again, second_report) = open(directory.path()).unwrap_or_else(|error| panic!("{case}, later: {error}"));
    assert_eq!(again, durable, "{case}, later");
    assert_eq!(second_report.cut, None, "{case}, later");
    report
}

/// Opens damaged files: the log must hold everything, or be refused. Returns the refusal.
fn assert_nothing_lost(directory: &Path, everything: &Durable<Tape>, case: &str) -> Option<StorageError> {
    match open(directory) {
        Ok((_, durable, _)) => {
            assert_eq!(&durable, everything, "{case}: silent loss");
            None
        }
        Err(error) => Some(error),
    }
}

#[test]
fn log_is_read_back_across_many_segments_and_starts() {
    for seed in 0..20 {
        let directory = directory();
        let rng = &mut SmallRng::seed_from_u64(seed);
        let mut expected = Durable::blank(Tape, Members::default());
        let mut rotations = 0;
        let mut frames = 0;
        for start in 0..6 {
            let (mut wal, durable, report) = open(directory.path()).unwrap();
            assert_eq!(durable, expected, "seed {seed}, start {start}");
            assert_eq!((report.frames, report.cut), (frames, None));
            for _ in 0..rng.random_range(0..30) {
                // Some frames are larger than a segment, and get a segment of their size.
                let largest = if rng.random_bool(0.05) { 5000 } else { 300 };
                let batch = batch(rng, &expected, largest);
                rotations += u32::from(wal.write(&batch).unwrap().rotation.is_some());
                batch.iter().for_each(|write| expected.apply(write));
                frames += 1;
            }
            assert_eq!(wal.write(&[]).unwrap(), Written::default(), "an empty batch writes nothing");
        }
        assert!(rotations > 5, "seed {seed}: {rotations} rotations");
    }
}

#[test]
fn crash_at_any_byte_keeps_exactly_the_frames_before_it() {
    let log = RecordedLog::write(1, 24, 150);
    assert!((3..=6).contains(&log.segments()), "{} segments", log.segments());
    let (mut torn, mut clean) = (0, 0);
    for last in 1..=log.segments() {
        let files = log.files_up_to(last);
        let used = log.frames.iter().filter(|frame| frame.0 == last).map(|frame| frame.2).max().unwrap();
        for cut in FRAMES_AT..=used {
            let expected = log.durable_at(last, cut);
            let whole = log.whole_at(last, cut);
            let is_boundary = log.frames.iter().any(|&(segment, _, end)| (segment, end) == (last, cut));
            // The frame before the torn one was synced, so the evidence of its predecessor is
            // durable. If the cut is at a frame's end, that frame itself may not have been synced.
            for behind in 0..=if is_boundary { 2 } else { 1 } {
                let mut files = files.clone();
                files.insert(segment_name(last), log.crashed_at(last, cut, whole.saturating_sub(behind)));
                let case = format!("segment {last} is zero from byte {cut} on, the evidence {behind} frames behind");
                let report = assert_recovers(&files, expected, &case);
                match report.cut {
                    Some(cut) if cut.bytes > 0 => torn += 1,
                    _ => clean += 1,
                }
            }
        }
    }
    assert!(torn > 5000 && clean > 40, "{torn} torn, {clean} clean");
}

#[test]
fn a_shortened_segment_is_refused_at_any_length() {
    let log = RecordedLog::write(1, 24, 150);
    let directory = directory();
    write_files(directory.path(), &log.files);
    for number in 1..=log.segments() {
        let path = directory.path().join(segment_name(number));
        let whole = &log.files[&segment_name(number)];
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let case = format!("segment {number} ends at byte {length}");
            let error = assert_nothing_lost(directory.path(), log.all(), &case).expect(&case);
            let StorageError::Damaged { path: named, offset, .. } = &error else { panic!("{case}: {error}") };
            assert_eq!(named, &path, "{case}");
            assert_eq!(*offset, if length < SECTOR { 0 } else { length as u64 }, "{case}");
        }
        fs::write(&path, whole).unwrap();
    }
    assert!(assert_nothing_lost(directory.path(), log.all(), "all bytes back").is_none());
}

#[test]
fn no_flipped_bit_causes_silent_loss() {
    // Every bit of every byte of three to five segments, including their zeros.
    let log = RecordedLog::write(2, 16, 150);
    assert!((3..=5).contains(&log.segments()), "{} segments", log.segments());
    let &(last, _, end) = log.frames.last().unwrap();
    let next_sector = end.next_multiple_of(SECTOR);
    let directory = directory();
    write_files(directory.path(), &log.files);
    let mut like_torn_evidence = 0;
    for number in 1..=log.segments() {
        let path = directory.path().join(segment_name(number));
        let mut bytes = log.files[&segment_name(number)].clone();
        for bit in 0..bytes.len() * 8 {
            let byte = bit / 8;
            bytes[byte] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            let case = format!("bit {bit} (byte {byte}) of segment {number}");
            match assert_nothing_lost(directory.path(), log.all(), &case) {
                Some(StorageError::Damaged { path: named, offset, what }) => {
                    assert_eq!(named, path, "{case}: {what}");
                    assert!(offset <= byte as u64, "{case}: {what} at byte {offset}");
                }
                Some(error) => panic!("{case}: {error}"),
                // A flipped bit may restore the last checksum byte of the slot's earlier content:
                // then the slot looks torn. That start has repaired the files, so restore them.
                None if (SECTOR..FRAMES_AT).contains(&byte) => {
                    like_torn_evidence += 1;
                    write_files(directory.path(), &log.files);
                }
                // Only a bit in the zeros that no frame has reached may stay undetected.
                None => assert!(number == last && byte >= next_sector, "{case} was overlooked"),
            }
            bytes[byte] ^= 1 << (bit % 8);
        }
        fs::write(&path, &bytes).unwrap();
    }
    assert!(like_torn_evidence <= 1, "{like_torn_evidence} damaged slots were taken for torn ones");
    assert_eq!(assert_nothing_lost(directory.path(), log.all(), "all bits back").map(|error| error.to_string()), None);
}

#[test]
fn any_lost_sector_is_damage() {
    for seed in 10..20 {
        let log = RecordedLog::write(seed, 30, 300);
        for &(number, from, to) in &log.frames {
            let directory = directory();
            write_files(directory.path(), &log.files);
            let path = directory.path().join(segment_name(number));
            let front = (0..FRAMES_AT).step_by(SECTOR).filter(|_| from == FRAMES_AT);
            for sector in front.chain((from / SECTOR * SECTOR..to).step_by(SECTOR)) {
                let mut bytes = log.files[&segment_name(number)].clone();
                let end = bytes.len().min(sector + SECTOR);
                bytes[sector..end].fill(0);
                fs::write(&path, bytes).unwrap();
                let case = format!("seed {seed}: sector at {sector} of segment {number}");
                assert!(assert_nothing_lost(directory.path(), log.all(), &case).is_some(), "{case}");
            }
        }
    }
}

#[test]
fn any_missing_segment_is_named() {
    let log = RecordedLog::write(1, 24, 150);
    for number in 1..=log.segments() {
        for with_all_after in [false, true] {
            let directory = directory();
            write_files(directory.path(), &log.files);
            let until = if with_all_after { log.segments() } else { number };
            for number in number..=until {
                fs::remove_file(directory.path().join(segment_name(number))).unwrap();
            }
            let error = open(directory.path()).unwrap_err();
            let StorageError::MissingSegment { path } = &error else { panic!("{error}") };
            assert_eq!(path, &directory.path().join(segment_name(number)));
        }
    }
}

#[test]
fn segment_under_another_segments_name_is_refused() {
    let log = RecordedLog::write(1, 24, 150);
    let directory = directory();
    write_files(directory.path(), &log.files);
    fs::write(directory.path().join(segment_name(1)), &log.files[&segment_name(2)]).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("this is segment 2, under the name of segment 1"), "{error}");
}

#[test]
fn crash_while_a_segment_is_created_keeps_the_log() {
    let log = RecordedLog::write(1, 24, 150);
    let &(_, from, _) = log.frames.iter().find(|frame| frame.0 == 2).unwrap();
    assert_eq!(from, FRAMES_AT);
    // The segment has its name, but the identity file does not count it yet.
    let mut files = log.files_up_to(2);
    files.insert("identity.json".into(), log.files_up_to(1)["identity.json"].clone());
    files.insert(segment_name(2), log.crashed_at(2, FRAMES_AT, 0));
    assert_recovers(&files, log.durable_at(2, 0), "uncounted segment 2");
    // The next start counts the segment, although it has no frame yet: from then on its absence is
    // detected.
    let directory = directory();
    write_files(directory.path(), &files);
    drop(open(directory.path()).unwrap());
    fs::remove_file(directory.path().join(segment_name(2))).unwrap();
    assert!(matches!(open(directory.path()), Err(StorageError::MissingSegment { .. })));
    // Segment 2 does not have its name yet.
    let mut files = log.files_up_to(1);
    files.insert(segment_name(2) + ".tmp", vec![7; 100]);
    let report = assert_recovers(&files, log.durable_at(2, 0), "unnamed segment 2");
    assert_eq!(report.leftovers.len(), 1);
    // Segment 1 does not have its name yet.
    let mut files = log.files_up_to(0);
    files.insert(segment_name(1) + ".tmp", vec![0; 100]);
    assert_recovers(&files, &log.states[0], "unnamed segment 1");
}

#[test]
fn impossible_record_is_damage_not_a_panic() {
    let directory = directory();
    let (mut wal, _, _) = open(directory.path()).unwrap();
    let entry = Entry { term: Term(1), index: Index(7), stamp: Stamp(0), payload: Payload::Noop };
    wal.write(&[Persist::Entries(vec![entry])]).unwrap();
    drop(wal);
    let error = open(directory.path()).unwrap_err();
    assert!(matches!(error, StorageError::Damaged { offset: 1536, .. }), "{error}");
    assert!(error.to_string().contains("it writes entry 7 after entry 0"), "{error}");
}

#[test]
fn frame_of_another_program_is_not_damage() {
    let directory = directory();
    let (mut wal, _, _) = open(directory.path()).unwrap();
    let payload = Payload::Command(vec![0xFF; 9].into());
    wal.write(&[Persist::Entries(vec![Entry { term: Term(1), index: Index(1), stamp: Stamp(0), payload }])]).unwrap();
    drop(wal);
    let directory = DataDir::open(directory.path(), &identity()).unwrap();
    let error = Wal::open(directory, Durable::blank(LockTable::default(), Members::default())).unwrap_err();
    assert!(matches!(error, StorageError::NotUnderstood { offset: 1536, .. }), "{error}");
    assert!(!error.is_damage(), "the node must not come back with nothing: a newer program can read its log");
}

#[test]
fn unprepared_segment_fails_the_write_that_needs_it() {
    let directory = directory();
    let (mut wal, mut durable, _) = open(directory.path()).unwrap();
    // A directory with the temporary name of segment 2, so that the file cannot be created.
    let obstacle = directory.path().join(segment_name(2) + ".tmp");
    fs::create_dir(&obstacle).unwrap();
    let rng = &mut SmallRng::seed_from_u64(0);
    let error = loop {
        let batch = batch(rng, &durable, 100);
        match wal.write(&batch) {
            Ok(written) => assert_eq!(written.rotation, None),
            Err(error) => break error,
        }
        batch.iter().for_each(|write| durable.apply(write));
    };
    assert!(error.to_string().contains("could not create"), "{error}");
    assert!(matches!(wal.write(&batch(rng, &durable, 100)), Err(StorageError::Poisoned { .. })));
    drop(wal);
    fs::remove_dir(obstacle).unwrap();
    assert_eq!(open(directory.path()).unwrap().1, durable);
}

#[test]
#[ignore = "a measurement, for a real disk: cargo test --release --test wal -- --ignored --nocapture"]
fn measure_small_appends() {
    let directory = tempfile::tempdir().unwrap();
    let (mut wal, mut durable, _) =
        Wal::open(DataDir::open(directory.path(), &identity()).unwrap(), Durable::blank(Tape, Members::default()))
            .unwrap();
    let rng = &mut SmallRng::seed_from_u64(0);
    for (title, count, size) in [("100 bytes", 5000, 100), ("30 kB", 3000, 30_000)] {
        let (mut write, mut sync, mut total, mut rotations) = (vec![], vec![], vec![], vec![]);
        for _ in 0..count {
            let index = durable.log.last().index.next();
            let payload = Payload::Command((0..size).map(|_| rng.random()).collect::<Vec<u8>>().into());
            let batch = [Persist::Entries(vec![Entry { term: Term(1), index, stamp: Stamp(0), payload }])];
            let before = std::time::Instant::now();
            let written = wal.write(&batch).unwrap();
            total.push(before.elapsed());
            write.push(written.write);
            sync.push(written.sync);
            rotations.extend(written.rotation);
            durable.apply(&batch[0]);
        }
        for (what, mut times) in [("write", write), ("sync", sync), ("whole call", total), ("rotation", rotations)] {
            times.sort_unstable();
            let at = |share: usize| times.get(times.len() * share / 10_000).copied().unwrap_or_default();
            println!(
                "{title}: {what}: n {}, median {:?}, p99 {:?}, max {:?}",
                times.len(),
                at(5_000),
                at(9_900),
                at(9_999)
            );
        }
    }
    drop(wal);
    let before = std::time::Instant::now();
    let (_, again, _) =
        Wal::open(DataDir::open(directory.path(), &identity()).unwrap(), Durable::blank(Tape, Members::default()))
            .unwrap();
    println!("recovery of {} entries: {:?}", again.log.entries().len(), before.elapsed());
    assert_eq!(again, durable);
}
