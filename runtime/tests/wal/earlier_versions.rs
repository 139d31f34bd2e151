//! A data directory that the version before has written, killed in the middle of its work: this program recovers from it
//! what is there. It is named by the version of the protocol between nodes. To write the text again that says what is
//! there, run with `PALISADE_BLESS=1`, and read the difference: only the names of fields may differ. The directory itself
//! stays as it is.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use palisade::peers::PinnedPeers;
use palisade::storage::{DataDir, Identity, Incarnation, Wal};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Durable, Members, NodeId};

use super::directory;

/// Goal: log, snapshot, identity, starts and pinned peers of the version before are read.
#[test]
fn directory_of_version_10_is_recovered() {
    let written = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wal/version-10");
    let copy = directory();
    for entry in fs::read_dir(&written).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    fs::remove_file(copy.path().join("recovered.txt")).unwrap();
    let node = NodeId(2);
    let founders = [(1, "127.0.0.1:18211"), (2, "127.0.0.1:18212"), (3, "127.0.0.1:18213")];
    let founders = founders.map(|(id, at)| (NodeId(id), at.to_owned()));
    let identity = Identity {
        cluster_name: "fixture".into(),
        incarnation: Incarnation(0),
        founders: founders.iter().cloned().collect(),
        ..Identity::of(2_772_140_479_406_197_388, node)
    };
    let locked = DataDir::open(copy.path(), &identity).unwrap();
    let (start, incarnation) = (locked.record_start(7).unwrap(), locked.identity().incarnation);
    assert_eq!((start.count, start.recent.len()), (2, 2), "the second start of the directory");
    let pinned = PinnedPeers::load(copy.path()).unwrap().addresses();
    let others: Vec<_> = founders.into_iter().filter(|(id, _)| *id != node).collect();
    assert_eq!(pinned, others);

    let blank = Durable::blank(LockTable::default(), Members::default());
    let (_, durable, report) = Wal::open(locked, blank).unwrap();
    assert_eq!(report.cut.map(|cut| cut.bytes), None, "every frame was whole");
    let Durable { hard, log, snapshot, .. } = &durable;
    let mut text = format!("{incarnation}\n{hard:?}\n{snapshot:?}\n");
    for entry in log.entries() {
        writeln!(text, "{entry:?}").unwrap();
    }
    let golden = written.join("recovered.txt");
    if env::var_os("PALISADE_BLESS").is_some() {
        fs::write(&golden, &text).unwrap();
    }
    let expected = fs::read_to_string(golden).unwrap();
    for (line, expected) in text.lines().zip(expected.lines()) {
        assert_eq!(line, expected);
    }
    assert_eq!(text, expected);
}
