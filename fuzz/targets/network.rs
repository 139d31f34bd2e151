//! Decoders of what arrives over the network: from peers, and from clients.

use std::fmt::Debug;

use palisade::core::{Request, access_document, check_access};
use palisade::http::{ClientFrame, Origin, key_of, query_of};
use palisade::peers::{
    Answer, Greeting, Hello, Introduction, Offer, Purpose, RangeWelcome, Speaks, Verdict, Versions, Welcome, frame,
};
use palisade::storage::{Incarnation, SnapshotHash, SnapshotInfo, Start};
use palisade_client::wire::{self, AccessRules, Acquire, Op, Outcome, Response};
use palisade_client::{codec, escaped_json};
use palisade_spec::lock::{Command, LockTable, Principal, Right};
use palisade_spec::raft::{
    Config, Durable, Input, Members, Message, Node, NodeId, Output, Payload, Position, Stamp, StateMachine, Term,
};
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

/// The query of a request, which the server reads; the first byte chooses what it asks for. What is read can be written
/// as a query, and says the same. Or a key, which the server finds again in the path of a request.
pub(super) fn request_target(data: &[u8]) -> bool {
    let Some((kind, data)) = data.split_first() else { return false };
    let Ok(text) = str::from_utf8(data) else { return false };
    match kind % 5 {
        0 => query(text, Op::ListLocks),
        1 => query(text, Op::ListRecords),
        2 => query(text, Op::Watch),
        3 => query(text, Op::TestAccess),
        _ => {
            drop(key_of(text));
            let found = key_of(&format!("/v1/locks/{}", percent_encoded(text)));
            match (found, text) {
                (Some(Ok(key)), _) => assert_eq!(key, text),
                // The path of another request; or longer than a path may be.
                (None, "") => {}
                (found, _) => assert!(text.len() > 20_000, "{text:?} is found as {found:?}"),
            }
            true
        }
    }
}

fn query<T: Serialize + DeserializeOwned + Clone + PartialEq + Debug>(text: &str, op: fn(T) -> Op) -> bool {
    match query_of::<T>(&format!("/?{text}")) {
        Ok(asked) => {
            let fields = serde_json::to_value(&asked).expect("every query has a JSON form");
            let fields = fields.as_object().expect("names and values").iter().filter(|(_, value)| !value.is_null());
            let fields = fields.map(|(name, value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!("{name}={}", percent_encoded(&value))
            });
            let again = query_of::<T>(&format!("/?{}", fields.collect::<Vec<_>>().join("&")));
            assert!(again.as_ref().is_ok_and(|again| *again == asked), "{asked:?} is read again as {again:?}");
            request(&wire::Request { id: 1, op: op(asked) });
            true
        }
        Err(refusal) => {
            assert!(!refusal.message.is_empty());
            false
        }
    }
}

fn percent_encoded(text: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encoded).collect()
}

pub(super) fn request_target_seeds() -> Vec<Vec<u8>> {
    let texts = [
        (0, "prefix=job%2F&limit=10&after=job%2Fa&consistency=stale"),
        (1, "prefix=%C3%A9+b&limit=1000"),
        (2, "key=nightly&after=47.1"),
        (2, "prefix=&after=47"),
        (3, "principal=admin%2Falice&right=acquire&key=a%26b"),
        (4, "billing/invoices 2026+%?#\u{e9}"),
        (4, "/v1/locks/a%2Fb?consistency=stale"),
        (4, ".."),
    ];
    texts.map(|(kind, text)| [&[kind], text.as_bytes()].concat()).into()
}

/// A document of access rules. What `palisade acl get` prints of it is the same document; and the rules that a node
/// accepts are, read from its table, accepted again as the same rules.
pub(super) fn access(data: &[u8]) -> bool {
    let Ok(document) = serde_json::from_slice::<AccessRules>(data) else { return false };
    let text = serde_json::to_string_pretty(&document).expect("every document has a JSON form");
    let printed = text.lines().map(escaped_json).collect::<Vec<_>>().join("\n");
    assert_eq!(serde_json::from_str::<AccessRules>(&printed).ok().as_ref(), Some(&document));
    let Some(command) = set_access(document) else { return false };
    let mut table = LockTable::default();
    table.apply_payload(Stamp(1), &Payload::Command(command.clone()));
    let access = table.access();
    assert_eq!(set_access(access_document(access)).as_ref(), Some(&command));
    for principal in ["", "worker-7", "admin/alice", "node/1"].map(Principal::from) {
        for right in Right::ALL {
            if let Err(refusal) = check_access(access, &principal, right, "billing/b") {
                assert!(!refusal.message.is_empty());
            }
        }
    }
    true
}

/// The command that replaces the first rules by these.
fn set_access(document: AccessRules) -> Option<Command> {
    let op = Op::SetAccess(AccessRules { revision: 0, ..document });
    match Request::from_wire(op, &"admin/alice".into()) {
        Ok(Request::Propose { command, .. }) => Some(command),
        Ok(other) => panic!("{other:?} proposes nothing"),
        Err(refusal) => {
            assert!(!refusal.message.is_empty());
            None
        }
    }
}

pub(super) fn access_seeds() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"revision":0,"enabled":false}"#,
        r#"{"revision":7,"rules":[{"subject":"*","prefix":"","rights":["read","admin"]}]}"#,
        r#"{"revision":1,"enabled":true,"roles":{"operators":["worker-7","ci@example"],"none":[]},"rules":[{"subject":"role:operators","prefix":"billing/","rights":["break","acquire","write","write"]},{"subject":"worker-7","prefix":"billing/\u2028\u00e9","rights":[]}]}"#,
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}
