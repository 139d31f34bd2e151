//! Writers on real files, and the verifier on what they wrote.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use palisade_spec::lock::{Key, Token};
use serde_json::Value;

use super::super::record::{Act, AuditEvent, Client};
use super::super::verify::{Flaw, Report, parse_hash, seal, verify};
use super::*;
use crate::metrics::Metrics;
use crate::storage::failing::FullDisk;
use crate::storage::{Disk, LayeredDisk, SystemDisk};

fn open_on(disk: Arc<dyn Disk>, directory: &Path) -> Result<Writer, AuditError> {
    open_for("1", Files::lock(disk, directory)?)
}

fn open_for(cluster: &str, files: Files) -> Result<Writer, AuditError> {
    let cluster = Cluster { name: "billing".into(), id: cluster.into() };
    Writer::open(files, NodeId::new(1, 0), cluster, Shared::new(Metrics::new()))
}

fn open(directory: &Path) -> Writer {
    open_on(SystemDisk::shared(), directory).unwrap()
}

fn granted(index: u64) -> Record {
    let event = AuditEvent::Granted { key: Key::from("k"), session: 7, token: Token(index) };
    Record::Entry { index, term: 1, event, client: Client { principal: "worker".into(), address: None } }
}

/// Hands records to the writer as the channel would.
fn take(writer: &mut Writer, records: &[Record]) {
    writer.shared.waiting.fetch_add(records.len(), Ordering::Relaxed);
    writer.take(records, Moment::now());
    writer.rotate_if_full();
    writer.write_or_sync();
}

fn intend(writer: &mut Writer) -> Result<u64, String> {
    let (reply, mut replied) = oneshot::channel();
    let act = Act::Break { key: "k".into(), token: 1, reason: "stuck".into() };
    writer.intend(vec![(Record::Intent { act, client: Client::default() }, reply)]);
    replied.try_recv().unwrap()
}

fn checked(directory: &Path) -> Result<Report, Flaw> {
    verify(&[directory.to_owned()], None)
}

fn file(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("audit-{number:08}.jsonl"))
}

fn lines(directory: &Path, number: u32) -> Vec<Value> {
    let content = fs::read_to_string(file(directory, number)).unwrap();
    content.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn events(directory: &Path, number: u32) -> Vec<String> {
    lines(directory, number).iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect()
}

/// A log of three grants in one file.
fn small() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let mut writer = open(&audit);
    take(&mut writer, &[granted(1), granted(2), granted(3)]);
    writer.retry_or_sync();
    (directory, audit)
}

/// Goal: a directory that cannot be made is refused by its name, with what to do.
#[test]
fn directory_that_cannot_be_made_is_named() {
    let (_directory, audit) = small();
    let below = file(&audit, 1).join("audit");
    let refused = open_on(SystemDisk::shared(), &below).unwrap_err().to_string();
    let begins = format!("cannot open the audit log {}: ", below.display());
    assert!(refused.starts_with(&begins) && refused.contains("Give --audit a directory"), "{refused}");
}

/// Goal: the directory and the files are their owner's alone, and a second process is refused.
#[test]
fn log_is_private_and_has_one_writer() {
    let (_directory, audit) = small();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&audit), mode(&file(&audit, 1))), (0o700, 0o600));
    let _writer = open(&audit);
    let refused = open_on(SystemDisk::shared(), &audit).unwrap_err().to_string();
    assert!(refused.contains("is in use by another process"), "{refused}");
}

/// Goal: a log of an earlier version, which wrote names as they are, is verified and continued with names that are escaped;
/// both have the true values.
#[test]
fn log_with_names_as_they_are_is_continued_with_escapes() {
    let (_directory, audit) = small();
    let (path, hostile) = (file(&audit, 1), "k\u{9b}2J\u{202e}");
    let written = fs::read_to_string(&path).unwrap();
    let unsealed: Vec<&str> = written.lines().map(|line| line.rsplit_once(",\"hash\"").unwrap().0).collect();
    let old = unsealed.join("\n").replace("\"key\":\"k\"", &format!("\"key\":\"{hostile}\""));
    fs::write(&path, seal(old.as_bytes())).unwrap();
    assert_eq!(checked(&audit).unwrap().records, 5);
    let mut writer = open(&audit);
    let event = AuditEvent::Granted { key: Key::from(hostile), session: 7, token: Token(4) };
    take(&mut writer, &[Record::Entry { index: 4, term: 1, event, client: Client::default() }]);
    writer.retry_or_sync();
    let records = checked(&audit).unwrap().records;
    let written = fs::read_to_string(&path).unwrap();
    let (names, escaped) = (written.matches(hostile).count(), written.matches(r"k\u009b2J\u202e").count());
    assert_eq!((names, escaped), (3, 1), "{written}");
    let keys: Vec<Value> = lines(&audit, 1).into_iter().filter(|line| line["event"] == "granted").collect();
    assert_eq!(keys.iter().filter(|line| line["key"] == hostile).count(), 4);
    assert_eq!(records, written.lines().count() as u64);
}

/// Goal: whatever byte of a log is changed, the verifier finds it.
#[test]
fn every_changed_byte_is_found() {
    let (_directory, audit) = small();
    let path = file(&audit, 1);
    let sound = fs::read(&path).unwrap();
    assert_eq!(checked(&audit).unwrap().records, 5);
    for at in 0..sound.len() {
        for flip in [1, 0x20, 0x80] {
            let mut changed = sound.clone();
            changed[at] ^= flip;
            fs::write(&path, &changed).unwrap();
            assert!(matches!(checked(&audit), Err(Flaw::Damaged { .. })), "byte {at} was changed by {flip:#x}");
        }
    }
}

/// Goal: a removed, repeated, moved or added line is found, with the position of the first.
#[test]
fn removed_moved_and_added_lines_are_found() {
    let (_directory, audit) = small();
    let path = file(&audit, 1);
    let sound = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = sound.lines().collect();
    let damaged = |lines: &[&str]| {
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        match checked(&audit) {
            Err(Flaw::Damaged { line, .. }) => line,
            other => panic!("{other:?}"),
        }
    };
    let without = |at: usize| {
        let mut rest = lines.clone();
        rest.remove(at);
        rest
    };
    assert_eq!([0, 1, 2, 3].map(|at| damaged(&without(at))), [1, 2, 3, 4]);
    let mut swapped = lines.clone();
    swapped.swap(2, 3);
    assert_eq!(damaged(&swapped), 3);
    let mut repeated = lines.clone();
    repeated.insert(2, lines[2]);
    assert_eq!(damaged(&repeated), 4);
}

/// Goal: a chain cannot show that its end was cut off. A hash that was noted before can.
#[test]
fn removed_end_is_found_by_a_noted_hash() {
    let (_directory, audit) = small();
    let path = file(&audit, 1);
    let (sound, noted) = (fs::read_to_string(&path).unwrap(), checked(&audit).unwrap().hash);
    let expecting = || verify(std::slice::from_ref(&audit), Some(noted));
    let mut writer = open(&audit);
    take(&mut writer, &[granted(4)]);
    drop(writer);
    expecting().expect("a log may grow");
    let shorter = sound.lines().take(4).map(|line| format!("{line}\n")).collect::<String>();
    fs::write(&path, shorter).unwrap();
    assert_eq!(checked(&audit).unwrap().records, 4);
    let missing = expecting().unwrap_err();
    assert!(matches!(missing, Flaw::Missing { .. }), "{missing}");
    assert!(missing.to_string().contains("records were removed from the end"), "{missing}");
    assert!(parse_hash("abc").is_err() && parse_hash(&noted.to_string()) == Ok(noted));
}

/// Goal: a line that the process did not finish is cut off at the next start, and a record says so.
/// Whatever the crash left of the first line of a file counts for nothing.
#[test]
fn unfinished_line_is_cut_off() {
    let (_directory, audit) = small();
    let path = file(&audit, 1);
    let sound = fs::read(&path).unwrap();
    let last = sound[..sound.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
    for length in [last + 1, sound.len() - 1] {
        fs::write(&path, &sound[..length]).unwrap();
        assert_eq!(checked(&audit).unwrap().unfinished, (length - last) as u64);
        let writer = open(&audit);
        assert_eq!(writer.position(), Position { index: 2, parts: Some(1) });
        drop(writer);
        assert_eq!(events(&audit, 1), ["file", "started", "granted", "granted", "cut", "started"]);
        assert_eq!(lines(&audit, 1)[4]["bytes"], (length - last) as u64);
        assert_eq!(checked(&audit).unwrap().records, 6);
    }
    fs::write(file(&audit, 2), "{\"n\":7,").unwrap();
    drop(open(&audit));
    assert!(!file(&audit, 2).exists());
    checked(&audit).unwrap();
}

/// Goal: a node does not continue a log whose last file was changed.
#[test]
fn damaged_log_is_not_continued() {
    let (_directory, audit) = small();
    let path = file(&audit, 1);
    let changed = fs::read_to_string(&path).unwrap().replacen("worker", "forger", 1);
    fs::write(&path, changed).unwrap();
    let refused = open_on(SystemDisk::shared(), &audit).unwrap_err().to_string();
    assert!(refused.contains("is damaged") && refused.contains("line 3: its hash should be"), "{refused}");
}

/// Goal: files follow one another in one chain, and a later start goes on in the last one, where the
/// log of the cluster was recorded up to.
#[test]
fn files_follow_one_another_in_one_chain() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let mut writer = open(&audit);
    (writer.file_bytes, writer.rotate_at) = (1000, 1000);
    for index in 1..=20 {
        take(&mut writer, &[granted(index), granted(index)]);
    }
    drop(writer);
    let report = checked(&audit).unwrap();
    assert!(report.files > 3, "{report:?}");
    assert_eq!((report.first, report.records), (1, 41 + report.files as u64));
    assert_eq!(open(&audit).position(), Position { index: 20, parts: Some(2) });
    fs::remove_file(file(&audit, 1)).unwrap();
    assert!(checked(&audit).unwrap().first > 1, "earlier files may be in an archive");
    fs::remove_file(file(&audit, 3)).unwrap();
    let missing = checked(&audit).unwrap_err().to_string();
    assert!(missing.contains("a file is missing, or was cut"), "{missing}");
}

/// Goal: another cluster's log is recorded from its beginning, in the same chain.
#[test]
fn new_cluster_is_recorded_from_its_first_entry() {
    let (_directory, audit) = small();
    let writer = open_for("2", Files::lock(SystemDisk::shared(), &audit).unwrap()).unwrap();
    assert_eq!(writer.position(), Position::default());
    drop(writer);
    let report = checked(&audit).unwrap();
    assert_eq!((report.files, report.records), (2, 7));
}

/// Goal: while the disk is full, intents are refused and leave no trace, and other records are counted.
/// When there is room again, the log goes on in one chain, and says what it lacks.
#[test]
fn full_disk_refuses_intents_and_counts_records() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let disk = FullDisk::default();
    let mut writer = open_on(Arc::new(LayeredDisk::new(disk.clone(), SystemDisk::shared())), &audit).unwrap();
    assert_eq!(intend(&mut writer), Ok(3));
    disk.is_full.store(true, Ordering::Relaxed);
    intend(&mut writer).unwrap_err();
    take(&mut writer, &[granted(1), granted(2)]);
    intend(&mut writer).unwrap_err();
    assert_eq!(writer.shared.metrics.audit_dropped.get(), 2);
    disk.is_full.store(false, Ordering::Relaxed);
    assert_eq!(intend(&mut writer), Ok(5));
    take(&mut writer, &[granted(3)]);
    writer.retry_or_sync();
    assert_eq!(events(&audit, 1), ["file", "started", "intent", "dropped", "intent", "granted"]);
    assert_eq!(lines(&audit, 1)[3]["records"], 2);
    assert_eq!(checked(&audit).unwrap().dropped, 2);
}

/// Goal: records that do not fit into the channel are counted, and a later record says how many.
#[test]
fn records_beyond_the_channel_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let mut writer = open(&audit);
    let (messages, receiver) = crossbeam_channel::bounded(1);
    let shared = Arc::clone(&writer.shared);
    let (urgent, _hurried) = crossbeam_channel::bounded(1);
    let sender = super::super::Audit { messages, urgent, shared };
    sender.send(vec![granted(1)]);
    sender.send(vec![granted(2), granted(3)]);
    assert_eq!(writer.shared.metrics.audit_dropped.get(), 2);
    let Ok(Message::Records(records, at)) = receiver.try_recv() else { panic!("the first fits") };
    writer.take(&records, at);
    writer.retry_or_sync();
    assert_eq!(events(&audit, 1), ["file", "started", "dropped", "granted"]);
    assert_eq!(writer.shared.waiting.load(Ordering::Relaxed), 0);
}
