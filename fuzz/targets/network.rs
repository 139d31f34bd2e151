//! Decoders of what arrives over the network: from peers, and from clients.

use std::fmt::Debug;

use palisade::core::Request;
use palisade::http::{ClientFrame, Origin};
use palisade::peers::{
    Answer, Greeting, Hello, Introduction, Offer, Purpose, RangeWelcome, Speaks, Verdict, Versions, Welcome, frame,
};
use palisade::storage::{Incarnation, SnapshotHash, SnapshotInfo, Start};
use palisade_client::codec;
use palisade_client::wire::{self, Acquire, Op, Outcome, Response};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Config, Durable, Input, Members, Message, Node, NodeId, Output, Position, Stamp, Term};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Decodes the bytes as the payload of a frame; what decodes has one encoding, which decodes to the same value.
fn round_trip<T: Serialize + DeserializeOwned + Debug>(data: &[u8]) -> bool {
    let Ok(value) = codec::decode::<T>(data) else { return false };
    let (mut once, mut twice) = (Vec::new(), Vec::new());
    codec::encode_into(&value, &mut once);
    let again: T = codec::decode(&once).unwrap_or_else(|error| panic!("{value:?} does not decode again: {error}"));
    codec::encode_into(&again, &mut twice);
    assert_eq!(once, twice, "{value:?} has two encodings");
    assert_eq!(format!("{value:?}"), format!("{again:?}"), "it decodes to another value");
    true
}

/// Takes frames from the bytes until they end or are refused, as the reader of a connection does.
fn frames<T: DeserializeOwned>(mut data: &[u8], limit: usize) -> bool {
    let all = data.len();
    while let Ok(Some((_, used))) = frame::decode::<T>(data, limit) {
        assert!(used > 0 && used <= data.len(), "a frame of {used} bytes in {}", data.len());
        data = &data[used..];
    }
    data.len() < all
}

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode_into(value, &mut bytes);
    bytes
}

/// The handshake, and the offer of a snapshot. The first byte chooses the type.
pub(super) fn handshake(data: &[u8]) -> bool {
    let Some((kind, data)) = data.split_first() else { return false };
    match kind % 7 {
        0 => round_trip::<Greeting>(data),
        1 => round_trip::<Welcome>(data),
        2 => round_trip::<Offer>(data),
        3 => round_trip::<Answer>(data),
        4 => round_trip::<Verdict>(data),
        5 => frames::<Greeting>(data, frame::HELLO_BYTES),
        _ => round_trip::<RangeWelcome>(data),
    }
}

pub(super) fn handshake_seeds() -> Vec<Vec<u8>> {
    let hello = Hello {
        magic: *b"PALISADE",
        version: 10,
        cluster: 7,
        from: NodeId(1),
        to: NodeId(2),
        client_addr: "127.0.0.1:7401".into(),
        peer_addr: "127.0.0.1:7501".into(),
        incarnation: Incarnation(0x1234_5678_9abc_def0),
        purpose: Purpose::Messages,
        start: Start { count: 3, recent: vec![17, 1 << 40] },
        admin_addr: Some("127.0.0.1:7601".into()),
    };
    let introduction = Introduction {
        incarnation: Incarnation(5),
        client_addr: "node-2:7402".into(),
        start: Start { count: 1, recent: vec![9] },
        admin_addr: None,
    };
    let info =
        SnapshotInfo { last: Position::default(), stamp: Stamp(9), bytes: 1 << 20, hash: SnapshotHash([0xA5; 32]) };
    let tagged = |kind: u8, bytes: Vec<u8>| [vec![kind], bytes].concat();
    let speaks = Speaks { versions: Versions { oldest: 10, newest: 11 }, program: "0.1.0".into(), later: vec![7, 0] };
    let offer = Greeting { hello: Hello { version: 11, ..hello.clone() }, speaks: Some(speaks.clone()) };
    let mut framed = vec![5];
    frame::encode(&hello, &mut framed);
    frame::encode(&offer, &mut framed);
    vec![
        tagged(0, encoded(&hello)),
        tagged(0, encoded(&offer)),
        tagged(1, encoded(&Welcome::Ok(introduction.clone()))),
        tagged(6, encoded(&RangeWelcome::Ok((introduction, speaks)))),
        tagged(1, encoded(&Welcome::Err("node 3 was removed".into()))),
        tagged(2, encoded(&Offer { term: Term(3), info })),
        tagged(3, encoded(&Answer::From(77))),
        tagged(3, encoded(&Answer::Refused("busy".into()))),
        tagged(4, encoded(&Verdict::Err("no space".into()))),
        framed,
    ]
}

/// Messages of Raft. An even first byte: one message; an odd one: frames of a connection.
pub(super) fn messages(data: &[u8]) -> bool {
    match data.split_first() {
        Some((kind, data)) if kind % 2 == 0 => round_trip::<Message<LockTable>>(data),
        Some((_, data)) => frames::<Message<LockTable>>(data, frame::MESSAGE_BYTES),
        None => false,
    }
}

/// What three nodes send one another until an entry is replicated.
pub(super) fn message_seeds() -> Vec<Vec<u8>> {
    let ids = [1, 2, 3].map(NodeId);
    let members = Members::founding(ids.map(|id| (id, "127.0.0.1:7501".into())));
    let recover = |id| Node::recover(Config::new(id), Durable::blank(LockTable::default(), members.clone()));
    let mut nodes = ids.map(recover);
    let mut inputs = vec![(ids[0], Input::ElectionTimeout)];
    let mut seeds = Vec::new();
    while let Some((to, input)) = inputs.pop() {
        let Some(node) = nodes.iter_mut().zip(ids).find(|(_, id)| *id == to).map(|(node, _)| node) else { continue };
        let mut outputs = Vec::new();
        node.step(input, &mut outputs);
        for output in outputs {
            if let Output::Send(message) = output {
                let mut framed = vec![1];
                frame::encode(&message, &mut framed);
                seeds.extend([[vec![0], encoded(&message)].concat(), framed]);
                inputs.push((message.to, Input::Receive(message)));
            }
        }
        if seeds.len() > 60 {
            break;
        }
    }
    seeds
}

/// A request that decodes is valid or refused with a sentence; the server's answer round-trips.
fn request(request: &wire::Request) {
    match Request::from_wire(request.op.clone(), &"worker-7".into()) {
        Ok(request) => drop(format!("{request:?}")),
        Err(refusal) => {
            assert!(!refusal.message.is_empty());
            let response = Response { id: request.id, result: Outcome::Error(refusal) };
            assert!(round_trip::<Response>(&encoded(&response)));
        }
    }
}

/// A client's text frame.
pub(super) fn request_json(data: &[u8]) -> bool {
    drop(serde_json::from_slice::<Response>(data));
    let Ok(decoded) = serde_json::from_slice::<wire::Request>(data) else { return false };
    let text = serde_json::to_vec(&decoded).expect("every request has a JSON form");
    assert_eq!(serde_json::from_slice::<wire::Request>(&text).ok().as_ref(), Some(&decoded));
    request(&decoded);
    true
}

/// A client's binary frame.
pub(super) fn request_binary(data: &[u8]) -> bool {
    if let Ok(decoded) = codec::decode::<wire::Request>(data) {
        request(&decoded);
    }
    let response = round_trip::<Response>(data);
    round_trip::<wire::Request>(data) || response
}

fn requests() -> Vec<wire::Request> {
    let texts = [
        r#"{"open_session":{"ttl_ms":30000,"owner":"worker-7"}}"#,
        r#"{"keep_alive":{"session":"00000000-0000-0001-9202-19c29a217884"}}"#,
        r#"{"acquire":{"key":"nightly","options":{"ttl_ms":30000,"wait_ms":5000,"owner":"w"}}}"#,
        r#"{"acquire":{"key":"nightly","options":{"session":"00000000-0000-0001-9202-19c29a217884"},"number":7}}"#,
        r#"{"release":{"key":"nightly","grant":{"session":"00000000-0000-0001-9202-19c29a217884","token":3}}}"#,
        r#"{"list_locks":{"prefix":"job/","limit":10}}"#,
        r#"{"change_members":{"add":{"id":4,"peer_addr":"127.0.0.1:7504"}}}"#,
        r#"{"change_members":{"remove":{"id":4}}}"#,
        r#"{"transfer":{"to":2}}"#,
        r#"{"transact":{"transaction":{"conditions":[{"held":{"lock":"k","token":3}}],"changes":[{"put":{"key":"k","value":"v"}}]}}}"#,
        r#"{"transact":{"transaction":{"session":"00000000-0000-0001-9202-19c29a217884","conditions":[{"version":{"key":"k","version":7}}],"changes":[{"append":{"key":"k","value":{"base64":"/wA="}}},{"delete":{"key":"l"}}]},"number":8}}"#,
        r#"{"show_record":{"key":"k","consistency":"stale"}}"#,
        r#"{"list_records":{"prefix":"job/","limit":10}}"#,
        r#"{"watch":{"prefix":"job/","after":"47.1"}}"#,
        r#""status""#,
    ];
    let ops = texts.map(|text| serde_json::from_str::<Op>(text).unwrap_or_else(|error| panic!("{text}: {error}")));
    let plain = Op::Acquire { keys: "k".into(), options: Acquire::default(), number: None };
    ops.into_iter().chain([plain]).map(|op| wire::Request { id: 1, op }).collect()
}

pub(super) fn request_json_seeds() -> Vec<Vec<u8>> {
    requests().iter().map(|request| serde_json::to_vec(request).expect("every request has a JSON form")).collect()
}

pub(super) fn request_binary_seeds() -> Vec<Vec<u8>> {
    requests().iter().map(encoded).collect()
}

/// A client's frame on a connection that holds a lock for it.
pub(super) fn hold(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    match ClientFrame::parse(text) {
        Ok(frame) => {
            drop(format!("{frame:?}"));
            true
        }
        Err(refusal) => {
            assert!(!refusal.message.is_empty());
            false
        }
    }
}

pub(super) fn hold_seeds() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"acquire":{"key":"nightly"}}"#,
        r#"{"acquire":{"keys":["a","b"],"ttl_ms":30000,"wait_ms":7,"mode":"shared","owner":"w","max_queue":5,"value":"v"}}"#,
        r#"{"acquire":{"key":"k","mode":"semaphore","permits":2,"of":5}}"#,
        r#"{"resume":{"key":"k","session":"00000000-0000-0001-9202-19c29a217884"}}"#,
        r#"{"resume":{"keys":["a","b"],"session":"00000000-0000-0001-9202-19c29a217884","token":17}}"#,
        r#"{"here":4}"#,
        r#"{"value":{"n":1,"value":"v"}}"#,
        r#"{"release":{}}"#,
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

/// What a follower says of the client whose request it forwards: what is read can be written as a header, and says the
/// same again.
pub(super) fn origin(data: &[u8]) -> bool {
    let Some(origin) = Origin::parse(data) else { return false };
    let again = Origin::parse(origin.header().as_bytes());
    assert_eq!(again.as_ref(), Some(&origin));
    true
}

pub(super) fn origin_seeds() -> Vec<Vec<u8>> {
    let token = "ab".repeat(32);
    let texts = [
        r#"{"principal":"","remote":null,"listener":"Only"}"#.to_owned(),
        r#"{"principal":"admin/alice","remote":"10.0.0.9:7","listener":"Administration"}"#.to_owned(),
        format!(r#"{{"principal":"w\u007f","remote":"[2001:db8::1]:7","token":"{token}","listener":"Clients"}}"#),
    ];
    texts.map(String::into_bytes).into()
}
