//! Data directories that earlier programs have written, each killed in the middle of its work: this program recovers from
//! them what is there. They are named by the versions of the protocol between nodes. Version 6 is the last one in whose
//! commands claims had no modes, one key, and no values; its snapshot has format 4. To write the text again that says what
//! is there, run with `PALISADE_BLESS=1`, and read the difference: only the names of fields may differ. The directories
//! themselves stay as they are.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use palisade::peers::PinnedPeers;
use palisade::storage::{DataDir, Identity, Incarnation, Wal};
use palisade_spec::lock::{Key, LockTable, Owner};
use palisade_spec::raft::{Durable, Members, NodeId, Payload, StateMachine};

use super::directory;

/// A directory of this version, of a node of this cluster that met these other founders.
struct Written {
    version: &'static str,
    cluster: u64,
    node: u32,
    founders: &'static [(u32, &'static str)],
}

impl Written {
    /// Recovers a copy of the directory, compares with `recovered.txt`, and returns what is durable.
    fn recovered(&self) -> Durable<LockTable> {
        let written = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wal").join(self.version);
        let copy = directory();
        for entry in fs::read_dir(&written).unwrap().map(Result::unwrap) {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        fs::remove_file(copy.path().join("recovered.txt")).unwrap();
        let founders: Vec<_> = self.founders.iter().map(|&(id, at)| (NodeId(id), at.to_owned())).collect();
        let identity = Identity {
            cluster_name: "fixture".into(),
            incarnation: Incarnation(0),
            founders: founders.iter().cloned().collect(),
            ..Identity::of(self.cluster, NodeId(self.node))
        };
        let locked = DataDir::open(copy.path(), &identity).unwrap();
        let (start, incarnation) = (locked.record_start(7).unwrap(), locked.identity().incarnation);
        assert_eq!((start.count, start.recent.len()), (2, 2), "the second start of the directory");
        let pinned = PinnedPeers::load(copy.path()).unwrap().addresses();
        let others: Vec<_> = founders.into_iter().filter(|(id, _)| *id != NodeId(self.node)).collect();
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
        durable
    }
}

/// Goal: log, snapshot, identity, starts and pinned peers of the version before are read.
#[test]
fn directory_of_version_10_is_recovered() {
    let founders = &[(1, "127.0.0.1:18211"), (2, "127.0.0.1:18212"), (3, "127.0.0.1:18213")];
    Written { version: "version-10", cluster: 2_772_140_479_406_197_388, node: 2, founders }.recovered();
}

/// Goal: entries from before claims had modes mean what they meant: with the snapshot, they give the locks that the
/// program of that time listed before it was killed.
#[test]
fn directory_of_version_6_is_recovered() {
    let founders = &[(1, "127.0.0.1:18321")];
    let written = Written { version: "version-6", cluster: 0xdf0b_4c59_6c56_550d, node: 1, founders };
    let Durable { log, snapshot, .. } = written.recovered();
    let mut table = snapshot.machine.clone();
    for entry in log.entries().iter().filter(|entry| entry.index > snapshot.last.index) {
        if let Payload::Command(command) = &entry.payload {
            table.apply(entry.stamp, command);
        }
    }
    let owner = |session| table.sessions().get(session).unwrap().owner.clone();
    let mut listed = Vec::new();
    for (key, lock) in table.locks().iter() {
        let holders: Vec<_> = lock.holders.iter().map(|holder| (owner(&holder.session), holder.token.0)).collect();
        let queue: Vec<_> = lock.queue.iter().map(|waiter| owner(&waiter.session)).collect();
        listed.push((key.clone(), holders, queue));
    }
    let holder = |owner: &str, token| vec![(Owner::from(owner), token)];
    assert_eq!(
        listed,
        [
            (Key::from("billing/nightly"), holder("carol", 2), vec![]),
            (Key::from("numbered"), holder("alice", 7), vec![Owner::from("bob")]),
            (Key::from("report"), holder("bob", 4), vec![Owner::from("erin")]),
        ]
    );
}
