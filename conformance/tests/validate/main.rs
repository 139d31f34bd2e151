//! Recordings of a correct driver are valid; edited recordings and recordings of a faulty driver
//! are not.

mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use palisade::recording::format::{EXTENSION, FRAME_HEADER, MAGIC, cut_mark};
use palisade::recording::{Digest, Flaw, Record};
use palisade_conformance::validate::{Failure, Options, Report, validate, validate_each};
use palisade_spec::raft::{Body, Input};

use world::{Bug, World, edit, read};

/// Number of events in a run.
const ACTIONS: u32 = 6_000;

fn recorded(seed: u64) -> World {
    let mut world = World::new(seed, Bug::None, false);
    world.run(ACTIONS);
    world
}

fn check(world: &World) -> Result<Report, Failure> {
    validate(world.directory.path(), Options::default())
}

/// The property that does not hold.
fn broken(world: &World) -> &'static str {
    match check(world) {
        Err(Failure::Violation { violation, .. }) => violation.property.name(),
        other => panic!("no violation: {other:?}"),
    }
}

/// The first recording of the run that contains a matching record, and the record's index.
fn find(world: &World, what: impl Fn(&Record) -> bool) -> (PathBuf, usize) {
    let found = |path: PathBuf| read(&path).iter().position(&what).map(|index| (path, index));
    world.recordings().into_iter().find_map(found).expect("a matching record exists")
}

/// Goal: recordings of a correct driver are valid, and everything that the validator judges occurs
/// in them.
#[test]
fn recordings_of_a_correct_driver_are_valid() {
    let mut total = Report::default();
    for seed in 1..=8 {
        let report = check(&recorded(seed)).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        assert_eq!((report.clusters, report.nodes, report.torn, report.uncounted), (1, 3, 0, 0));
        assert!(report.cut.is_empty() && report.inputs > u64::from(ACTIONS) / 2 && report.states >= 3);
        total.elections += report.elections;
        total.restarts += report.restarts;
        total.snapshots += report.snapshots;
        total.commits += report.commits;
        total.events += report.events;
        total.tables += report.tables;
    }
    let happened = (total.elections, total.restarts, total.snapshots);
    assert!(total.elections > 20 && total.restarts > 50 && total.snapshots > 5, "{happened:?}");
    assert!(total.commits > 100 && total.events > 100 && total.tables > 100);
}

/// Goal: a node whose outputs differ from the spec's is found at that very step.
#[test]
fn differing_outputs_are_found() {
    let world = recorded(1);
    let (path, index) = find(&world, |record| matches!(record, Record::Stepped { input: Input::Propose { .. }, .. }));
    edit(&path, |records| {
        let Record::Stepped { outputs, .. } = &mut records[index] else { unreachable!() };
        *outputs = Digest::of(&0);
    });
    let Err(Failure::Violation { violation, path: named, record, input, .. }) = check(&world) else {
        panic!("no violation was found")
    };
    assert_eq!((violation.property.name(), named, record), ("same outputs", path, index as u64));
    assert!(input.starts_with("Propose {") && violation.detail.contains("--record-verbose"), "{input}: {violation}");
}

/// Goal: a verbose recording contains the node's outputs.
#[test]
fn verbose_recording_contains_the_outputs() {
    let mut world = World::new(1, Bug::None, true);
    world.run(ACTIONS);
    check(&world).unwrap();
    let (path, index) = find(&world, |record| matches!(record, Record::Stepped { input: Input::Propose { .. }, .. }));
    edit(&path, |records| {
        let Record::Stepped { outputs, words, .. } = &mut records[index] else { unreachable!() };
        (*outputs, *words) = (Digest::of(&0), Some("Accepted and more".into()));
    });
    let Err(Failure::Violation { violation, .. }) = check(&world) else { panic!("no violation was found") };
    assert!(violation.detail.ends_with("and the node's were Accepted and more"), "{violation}");
}

/// Goal: a state that differs is found even before an output shows it.
#[test]
fn differing_state_is_found() {
    let world = recorded(2);
    let (path, index) = find(&world, |record| matches!(record, Record::Stepped { state: Some(_), .. }));
    edit(&path, |records| {
        let Record::Stepped { state, .. } = &mut records[index] else { unreachable!() };
        *state = Some(Digest::of(&0));
    });
    assert_eq!(broken(&world), "same state");
}

/// Goal: an input that the node took cannot be left out.
#[test]
fn missing_input_is_found() {
    let world = recorded(3);
    let with_entries = |record: &Record| match record {
        Record::Stepped { input: Input::Receive(message), .. } => {
            matches!(&message.body, Body::AppendEntries { entries, .. } if !entries.is_empty())
        }
        _ => false,
    };
    let (path, index) = find(&world, with_entries);
    edit(&path, |records| drop(records.remove(index)));
    assert_eq!(broken(&world), "writes match outputs");
}

/// Goal: every node is judged by its own recording.
#[test]
fn swapped_recordings_are_found() {
    let world = recorded(4);
    let files = world.recordings();
    let last = files.iter().position(|path| path.to_string_lossy().contains("node-2-")).unwrap();
    let (one, two) = (read(&files[0]), read(&files[last]));
    edit(&files[0], |records| records.splice(1.., two[1..].iter().cloned()).for_each(drop));
    edit(&files[last], |records| records.splice(1.., one[1..].iter().cloned()).for_each(drop));
    let property = broken(&world);
    assert!(["same outputs", "no spurious message"].contains(&property), "{property}");
}

/// Goal: a node that has forgotten its vote is found when it restarts.
#[test]
fn vote_forgotten_in_a_restart_is_found() {
    let world = recorded(5);
    let voted = |record: &Record| matches!(record, Record::Recovered { durable, .. } if durable.hard.vote.is_some());
    let (path, index) = find(&world, voted);
    edit(&path, |records| {
        let Record::Recovered { durable, .. } = &mut records[index] else { unreachable!() };
        durable.hard.vote = None;
    });
    assert_eq!(broken(&world), "acknowledged writes survive");
}

/// Goal: every message that a node receives was sent by a node.
#[test]
fn message_that_no_node_sent_is_found() {
    let world = recorded(6);
    let heard = |record: &Record| match record {
        Record::Stepped { input: Input::Receive(message), .. } => matches!(message.body, Body::AppendAccepted { .. }),
        _ => false,
    };
    let (path, index) = find(&world, heard);
    edit(&path, |records| {
        let Record::Stepped { input: Input::Receive(message), .. } = &mut records[index] else { unreachable!() };
        let Body::AppendAccepted { matched, .. } = &mut message.body else { unreachable!() };
        matched.0 += 1;
    });
    assert_eq!(broken(&world), "no spurious message");
}

/// Goal: a snapshot comes from a leader that was asked to send it in that term.
#[test]
fn unrequested_snapshot_is_found() {
    let (world, (path, index)) = (1..).map(recorded).find_map(with_snapshot).expect("some run sends a snapshot");
    edit(&path, |records| {
        let Record::Stepped { input: Input::Receive(message), .. } = &mut records[index] else { unreachable!() };
        message.term.0 += 1;
    });
    assert_eq!(broken(&world), "no spurious message");
}

fn with_snapshot(world: World) -> Option<(World, (PathBuf, usize))> {
    let installs = |record: &Record| match record {
        Record::Stepped { input: Input::Receive(message), .. } => matches!(message.body, Body::InstallSnapshot { .. }),
        _ => false,
    };
    let found = |path: PathBuf| read(&path).iter().position(installs).map(|index| (path, index));
    let index = world.recordings().into_iter().find_map(found)?;
    Some((world, index))
}

/// Goal: a failure in one cluster does not hide the results of the others, and progress is
/// reported.
#[test]
fn every_cluster_is_validated() {
    let (bad, good) = (recorded(1), recorded(2));
    let (path, index) = find(&bad, |record| matches!(record, Record::Stepped { .. }));
    edit(&path, |records| {
        let Record::Stepped { outputs, .. } = &mut records[index] else { unreachable!() };
        *outputs = Digest::of(&0);
    });
    let both = tempfile::tempdir().unwrap();
    for (world, name) in [(&bad, "bad"), (&good, "good")] {
        std::os::unix::fs::symlink(world.directory.path(), both.path().join(name)).unwrap();
    }
    let mut progressed = Vec::new();
    let judged = validate_each(both.path(), Options::default(), |progress| {
        progressed.push((progress.directory.file_name().unwrap().to_owned(), progress.cluster, progress.of));
    });
    let (report, failures) = judged.unwrap();
    assert_eq!((report.clusters, failures.len()), (2, 1));
    assert!(report.inputs > u64::from(ACTIONS) / 2 && progressed.contains(&("good".into(), 2, 2)), "{progressed:?}");
    assert!(validate(both.path(), Options::default()).is_err());
}

/// Goal: a file that is not a recording is named and does not hide the results of the others.
#[test]
fn unreadable_file_is_reported_and_others_are_validated() {
    let good = recorded(2);
    let bad = good.directory.path().join(format!("unreadable.{EXTENSION}"));
    std::fs::write(&bad, vec![0xAB; 4096]).unwrap();
    let (report, failures) = validate_each(good.directory.path(), Options::default(), |_| {}).unwrap();
    assert!(report.clusters == 1 && report.inputs > u64::from(ACTIONS) / 2, "{report}");
    assert_eq!(failures.len(), 1);
    assert!(failures[0].to_string().contains("unreadable"), "{}", failures[0]);
}

/// Goal: a driver's bugs are found in its effects, without a report from the driver.
#[test]
fn faulty_driver_is_found() {
    let bugs = [
        (Bug::SendsBeforeItWrites, "persist before send"),
        (Bug::ForgetsVotes, "acknowledged writes survive"),
        (Bug::LosesAnEntry, "acknowledged writes survive"),
        (Bug::FastClock, "clocks are not fast"),
    ];
    for (bug, expected) in bugs {
        let mut world = World::new(1, bug, false);
        // A faulty driver may violate the node's own assertions.
        let _ = catch_unwind(AssertUnwindSafe(|| world.run(ACTIONS)));
        assert_eq!(broken(&world), expected, "{bug:?}");
    }
}

/// Goal: a frame cut off by a kill is valid, and the records before it are judged.
#[test]
fn records_before_a_torn_tail_are_judged() {
    let world = recorded(1);
    let whole = check(&world).unwrap();
    let last = world.recordings().pop().unwrap();
    let bytes = std::fs::read(&last).unwrap();
    for less in [1, FRAME_HEADER + 1, bytes.len() / 2] {
        std::fs::write(&last, &bytes[..bytes.len() - less]).unwrap();
        let report = check(&world);
        // Other nodes' records of the missing part may contradict it.
        match report {
            Ok(report) => assert!(report.torn <= 1 && report.inputs <= whole.inputs),
            Err(Failure::Violation { violation, .. }) => {
                assert!(
                    ["no spurious message", "persist before send"].contains(&violation.property.name()),
                    "{violation}"
                );
            }
            Err(other) => panic!("{other}"),
        }
    }
    for length in [0, 3, MAGIC.len(), MAGIC.len() + 5] {
        std::fs::write(&last, &bytes[..length]).unwrap();
        assert!(!matches!(check(&world), Err(Failure::Flaw(_))), "killed before there was a header: {length}");
    }
}

/// Goal: a flipped bit is damage, not a torn tail.
#[test]
fn damage_is_reported_with_its_offset() {
    let world = recorded(1);
    let first = world.recordings().swap_remove(0);
    let mut bytes = std::fs::read(&first).unwrap();
    let mut frame = MAGIC.len();
    for _ in 0..10 {
        let length = u32::from_le_bytes(bytes[frame..frame + 4].try_into().unwrap());
        frame += FRAME_HEADER + length as usize;
    }
    bytes[frame + FRAME_HEADER] ^= 4;
    std::fs::write(&first, &bytes).unwrap();
    let Err(Failure::Flaw(Flaw::Damaged { path, offset })) = check(&world) else { panic!("the damage was not found") };
    assert_eq!((path, offset), (first, frame as u64));
}

/// Goal: a recording that was cut is reported as such, and what follows the cut is not judged.
#[test]
fn cut_recording_is_reported() {
    let world = recorded(2);
    let first = world.recordings().swap_remove(0);
    edit(&first, |records| records.truncate(20));
    assert!(check(&world).is_err(), "an unmarked gap is a violation");
    std::fs::File::create(cut_mark(&first)).unwrap();
    let report = check(&world).unwrap();
    assert_eq!(report.cut, [first]);
    assert!(report.to_string().contains("CUT"));
}
