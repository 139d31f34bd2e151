//! Pins the bytes of what nodes send one another: the handshake of each version, messages, and the transfer of snapshots.
//! A difference is a change of the protocol between nodes, which needs a new version of it (CONTRIBUTING.md). To write the
//! new golden file, run with `PALISADE_BLESS=1`, and read the difference.

use std::fmt::{Debug, Write};
use std::sync::Arc;
use std::{env, fs};

use palisade::peers::{
    Answer, Greeting, Hello, Introduction, Offer, Purpose, RangeWelcome, Speaks, Verdict, Versions, Welcome,
};
use palisade::storage::{Incarnation, SnapshotHash, SnapshotInfo, Start};
use palisade_client::codec::decode;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{
    Address, Body, Entry, Hint, Index, Members, Message, NodeId, Payload, Position, ReadRound, Snapshot, Stamp, Term,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::pinned::{commands, hex};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wal/messages.txt");

/// Writes down the bytes of a value, which decode to the same value.
fn pin<T: Serialize + DeserializeOwned + Debug>(golden: &mut String, value: &T) {
    let (bytes, shown) = hex(value);
    assert_eq!(format!("{:?}", decode::<T>(&bytes).unwrap()), format!("{value:?}"));
    writeln!(golden, "{value:?}\n  {shown}").unwrap();
}

/// A hello of each purpose; the number says whether [`Speaks`] follows.
fn hellos(version: u16) -> Vec<Hello> {
    let purposes = [Purpose::Messages, Purpose::Snapshot, Purpose::Introduction, Purpose::Requests];
    let hello = |purpose| Hello {
        magic: *b"PALISADE",
        version,
        cluster: 0xC1,
        from: NodeId::new(1, 2),
        to: NodeId(3),
        client_addr: "one:1".into(),
        peer_addr: "one:2".into(),
        incarnation: Incarnation(u64::MAX),
        purpose,
        start: Start { count: 300, recent: vec![1 << 40, 7] },
        admin_addr: (purpose == Purpose::Requests).then(|| "one:3".into()),
    };
    purposes.map(hello).into()
}

fn members() -> Members {
    Members::founding([1, 2].map(|id| (NodeId(id), Address::from(format!("node-{id}:1").as_str()))))
}

/// A message of every kind. The compiler notices a kind that is missing here.
fn bodies() -> Vec<Body<LockTable>> {
    let (position, index, round) = (Position { term: Term(3), index: Index(300) }, Index(70_000), ReadRound(9));
    let entry = |index: u64, payload| Entry { term: Term(3), index: Index(index), stamp: Stamp(1_000), payload };
    let payloads = [Payload::Noop, Payload::Command(commands()[0].clone()), Payload::Members(members().into())];
    let entries = (301..).zip(payloads).map(|(index, payload)| entry(index, payload)).collect();
    let snapshot =
        Snapshot { last: position, stamp: Stamp(9), members: Arc::new(members()), machine: LockTable::default() };
    let bodies = vec![
        Body::PreVote { last: position },
        Body::PreVoteReply { granted: true },
        Body::RequestVote { last: position, transfer: true },
        Body::RequestVoteReply { granted: false },
        Body::AppendEntries { prev: position, entries, commit: index, stamp: Stamp(1_000), round },
        Body::AppendAccepted { matched: index, round },
        Body::AppendRejected { prev: index, hint: Hint::Short { next: Index(5) }, round },
        Body::AppendRejected { prev: index, hint: Hint::Conflict { term: Term(2), first: Index(4) }, round },
        Body::TimeoutNow,
        Body::InstallSnapshot { snapshot: Arc::new(snapshot) },
    ];
    for body in &bodies {
        match body {
            Body::PreVote { .. }
            | Body::PreVoteReply { .. }
            | Body::RequestVote { .. }
            | Body::RequestVoteReply { .. }
            | Body::AppendEntries { .. }
            | Body::AppendAccepted { .. }
            | Body::AppendRejected { .. }
            | Body::TimeoutNow
            | Body::InstallSnapshot { .. } => {}
        }
    }
    bodies
}

/// Goal: no byte that nodes exchange changes unnoticed.
#[test]
fn bytes_between_nodes_are_pinned() {
    let mut golden = String::from("# version 10\n");
    let introduction = Introduction {
        incarnation: Incarnation(5),
        client_addr: "two:1".into(),
        start: Start { count: 1, recent: vec![9] },
        admin_addr: Some("two:3".into()),
    };
    for hello in hellos(10) {
        pin(&mut golden, &Greeting { hello, speaks: None });
    }
    pin(&mut golden, &Welcome::Ok(introduction.clone()));
    pin(&mut golden, &Welcome::Err("node 3 was removed".into()));
    for body in bodies() {
        pin(&mut golden, &Message { from: NodeId::new(1, 2), to: NodeId(3), term: Term(4), body });
    }
    let last = Position { term: Term(3), index: Index(300) };
    let info = SnapshotInfo { last, stamp: Stamp(9), bytes: 1 << 20, hash: SnapshotHash([0xA5; 32]) };
    pin(&mut golden, &Offer { term: Term(4), info });
    for answer in [Answer::From(70_000), Answer::Enough, Answer::Refused("busy".into())] {
        pin(&mut golden, &answer);
    }
    pin(&mut golden, &Verdict::Ok(()));
    pin(&mut golden, &Verdict::Err("no space".into()));

    golden.push_str("# version 11: the handshake with a range\n");
    let versions = Versions { oldest: 10, newest: 11 };
    let speaks = Speaks { versions, program: "0.2.0".into(), later: vec![1, 2] };
    for hello in hellos(11) {
        pin(&mut golden, &Greeting { hello, speaks: Some(speaks.clone()) });
    }
    pin(&mut golden, &RangeWelcome::Ok((introduction, speaks)));
    pin(&mut golden, &RangeWelcome::Err("node 3 was removed".into()));

    if env::var_os("PALISADE_BLESS").is_some() {
        fs::write(GOLDEN, &golden).unwrap();
    }
    let pinned = fs::read_to_string(GOLDEN).unwrap();
    for (line, expected) in golden.lines().zip(pinned.lines()) {
        assert_eq!(line, expected);
    }
    assert_eq!(golden.lines().count(), pinned.lines().count());
}
