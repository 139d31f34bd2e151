//! A client writes and reads records, under the token of its lock and without one.

use serde_json::{Value, json};

use super::adapter::{Adapter, Pending};
use super::clusters::{LONG, NOW, WAIT, await_queue, break_lock, calm_cluster, key};
use super::links::{Links, Reply};
use super::program::Program;

/// The command that gives a record a content.
fn put(record: &str, value: &str) -> Value {
    json!({"do": "put", "key": record, "value": value})
}

/// The same command, under a claim.
fn under(claim: &str, mut command: Value) -> Value {
    command["under"] = claim.into();
    command
}

/// The same command, if the record has this version.
fn if_version(version: u64, mut command: Value) -> Value {
    command["if_version"] = version.into();
    command
}

fn get<'a>(client: &'a Adapter, record: &str) -> Pending<'a> {
    client.send(json!({"do": "get", "key": record}))
}

/// The client reads this content, of this version, written under this token.
#[track_caller]
fn assert_record(client: &Adapter, record: &str, value: &str, version: u64, fence: Option<u64>) {
    let read = &get(client, record).ok()["ok"];
    assert_eq!((&read["value"], &read["version"]), (&json!(value), &json!(version)), "{read}");
    assert_eq!(read["fence"].as_u64(), fence, "{read}");
}

/// The server refused a token: the greatest one that it knows, and the one of the write.
#[track_caller]
fn assert_stale(refusal: &Value, seen: u64, got: Option<u64>) {
    assert_eq!((refusal["seen"].as_u64(), refusal["got"].as_u64()), (Some(seen), got), "{refusal}");
}

/// Goal: a holder writes, and its former holder does not: neither under the lock that it has lost, nor
/// with its token; nor does a client without a token. A refusal names the tokens.
pub fn a_former_holder_writes_nothing(program: &Program) {
    let (cluster, key, record) = (calm_cluster(), key(program, "fenced"), key(program, "report"));
    let client = Adapter::start(program, &cluster.endpoints());
    get(&client, &record).refused("no_record");
    let former = client.acquire("former", &key, LONG, NOW).token;
    let first = client.send(under("former", put(&record, "first"))).version();
    assert_record(&client, &record, "first", first, Some(former));

    let waiting = client.ask("next", &key, LONG, WAIT);
    await_queue(&cluster, &key, 1);
    break_lock(&cluster.endpoints(), &key, former);
    let next = waiting.granted().token;
    let second = client.send(under("next", put(&record, "second"))).version();
    assert!(second > first, "versions grow: {second} came after {first}");

    let late = client.send(under("former", put(&record, "late"))).answer();
    if late["error"] != "lost" {
        assert_eq!(late["error"], "stale fencing token", "{late}");
        assert_stale(&late, next, Some(former));
    }
    let held = json!([{"held": {"lock": key, "token": former}}]);
    let change = json!([{"put": {"key": record, "value": "late"}}]);
    let late = client.send(json!({"do": "transact", "conditions": held, "changes": change}));
    assert_stale(&late.refused("stale fencing token"), next, Some(former));
    assert_stale(&client.send(put(&record, "unfenced")).refused("stale fencing token"), next, None);
    assert_record(&client, &record, "second", second, Some(next));

    let append = json!({"do": "append", "key": record, "value": " and third"});
    let third = client.send(under("next", append)).version();
    assert_record(&client, &record, "second and third", third, Some(next));
    client.send(under("next", json!({"do": "delete", "key": record}))).version();
    get(&client, &record).refused("no_record");
    client.release("next").ok();
}

/// Goal: of two writes that say the same version, one is done. The other is refused, with the version
/// that there is. The changes of a transaction are made together.
pub fn of_two_writes_to_one_version_one_is_done(program: &Program) {
    let (cluster, record, other) = (calm_cluster(), key(program, "raced"), key(program, "raced-too"));
    let clients = [0, 1].map(|_| Adapter::start(program, &cluster.endpoints()));
    let mut version = 0;
    for content in ["made", "replaced"] {
        let writes = clients.each_ref().map(|client| client.send(if_version(version, put(&record, content))));
        let [one, two] = writes.each_ref().map(Pending::answer);
        let (done, refused) = if one["error"].is_null() { (one, two) } else { (two, one) };
        let written = done["ok"]["version"].as_u64().unwrap_or_else(|| panic!("neither is done: {done}, {refused}"));
        assert_eq!((&refused["error"], &refused["version"]), (&json!("other_version"), &json!(written)), "{refused}");
        assert!(written > version, "versions grow: {written} came after {version}");
        version = written;
    }
    assert_record(&clients[1], &record, "replaced", version, None);
    let both = |version: u64| {
        let changes = json!([{"append": {"key": other, "value": "moved"}}, {"delete": {"key": record}}]);
        let conditions = json!([{"version": {"key": record, "version": version}}]);
        clients[0].send(json!({"do": "transact", "conditions": conditions, "changes": changes}))
    };
    assert_eq!(both(version - 1).refused("other_version")["version"], json!(version));
    get(&clients[1], &other).refused("no_record");
    let moved = both(version).version();
    assert_record(&clients[1], &other, "moved", moved, None);
    get(&clients[1], &record).refused("no_record");
}

/// A client whose next write is done, and whose answer is lost with its connection.
struct Cut {
    client: Adapter,
    links: Links,
    lost: usize,
    _cluster: crate::support::cluster::Cluster,
}

impl Cut {
    fn start(program: &Program) -> Cut {
        let (links, cluster) = Links::before_cluster();
        Cut { client: Adapter::start(program, links.endpoints()), links, lost: 0, _cluster: cluster }
    }

    /// The client says that the write is done, with the version that the record has then, or that it
    /// does not know. The record has this content.
    #[track_caller]
    fn write(&mut self, command: &Value, content: &str) {
        self.links.lose(Reply::Written);
        let answer = self.client.send(command.clone()).answer();
        self.lost += 1;
        assert_eq!(self.links.lost(), self.lost, "the answer to {command} was not lost: {answer}");
        let record = command["key"].as_str().expect("a write has a key");
        let read = &get(&self.client, record).ok()["ok"];
        assert_eq!(read["value"], content, "after {command}, which was answered {answer}");
        assert!(
            answer["error"] == "unknown"
                || answer["ok"]["version"].is_u64() && answer["ok"]["version"] == read["version"],
            "{command} was answered {answer}, and the record is {read}"
        );
    }
}

/// Goal: a write of a holder whose answer is lost with its connection is done once. The client says
/// that it is done, or that it does not know.
pub fn a_lost_answer_to_a_write_of_a_holder_is_one_write(program: &Program) {
    let mut cut = Cut::start(program);
    cut.client.acquire("holder", "nightly", LONG, NOW);
    cut.write(&under("holder", put("report", "a")), "a");
    cut.write(&under("holder", json!({"do": "append", "key": "report", "value": "b"})), "ab");
    let version = get(&cut.client, "report").ok()["ok"]["version"].as_u64().expect("a version");
    cut.write(&under("holder", if_version(version, put("report", "c"))), "c");
    cut.client.release("holder").ok();
}

/// Goal: the same of a client that holds no lock. A refusal of a repetition, whose version the first
/// write has changed, is not told as a refusal.
pub fn a_lost_answer_to_a_write_is_one_write(program: &Program) {
    let mut cut = Cut::start(program);
    cut.write(&if_version(0, put("report", "a")), "a");
    cut.write(&json!({"do": "append", "key": "report", "value": "b"}), "ab");
    let version = get(&cut.client, "report").ok()["ok"]["version"].as_u64().expect("a version");
    cut.write(&if_version(version, json!({"do": "append", "key": "report", "value": "c"})), "abc");
}
