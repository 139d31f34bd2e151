//! The model's traces on live nodes: a part of those that are kept, and a few random walks. `palisade-conformance replay`
//! plays them all.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::OnceLock;

use palisade_conformance::replay::command::{SEGMENT_BYTES, Titled, play_all, walks};
use palisade_conformance::replay::kept::{self, Kept};
use palisade_conformance::replay::play::{Company, PlayError, play, program};
use palisade_conformance::replay::trace::Trace;
use serde_json::Value;

/// The server that is played with: built once, beside this test.
fn company() -> Company {
    static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| program().unwrap()).clone();
    Company { program, segment_bytes: SEGMENT_BYTES }
}

fn all() -> Vec<Kept> {
    kept::all(&kept::folder()).unwrap()
}

/// A trace of a model that finds it fast.
fn lines() -> Vec<Value> {
    let models = palisade_model::models::models();
    let raft = models.iter().find(|model| model.name == "raft").unwrap();
    raft.model.trace("a leader is elected").unwrap().lines("raft")
}

/// Goal: a change of the protocol or of a model that makes a kept path another one is noticed, and the message says how to
/// find it again.
#[test]
fn kept_traces_are_still_traces_of_the_model() {
    let all = all();
    assert!(all.len() >= 20, "only {} traces are kept", all.len());
    for kept in all {
        let trace = kept.trace().unwrap();
        assert_eq!((trace.steps.len(), &trace.head.property), (kept.choices.len(), &kept.property));
    }
}

/// Goal: after every step each process's node, disk and messages are the model's.
#[test]
fn live_nodes_are_what_the_model_says() {
    // Of each model the longest traces that are kept, and some random walks.
    let mut longest: BTreeMap<String, Vec<Kept>> = BTreeMap::new();
    for kept in all() {
        longest.entry(kept.model.clone()).or_default().push(kept);
    }
    let chosen = longest.into_values().flat_map(|mut kept| {
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.choices.len()));
        kept.truncate(PER_MODEL);
        kept
    });
    let mut traces: Vec<Titled> =
        chosen.map(|kept| (kept.title(), kept.trace().map_err(|error| error.to_string()))).collect();
    traces.extend(walks(WALKS, 1, 40));
    let total = play_all(&company(), &traces, 2);
    assert!(total.failures.is_empty(), "{}", total.failures.join("\n"));
    assert_eq!(total.played.0, traces.len());
    assert!(total.played.1 > 200, "only {} steps were taken", total.played.1);
    for message in ["AppendEntries", "AppendAccepted", "AppendRejected", "RequestVote", "RequestVoteReply"] {
        assert!(total.coverage.count("message", message) > 0, "no {message} arrived:\n{}", total.coverage);
    }
}

/// How many kept traces of each model are played here.
const PER_MODEL: usize = 2;
/// How many random walks through each wide model.
const WALKS: u64 = 2;

/// Goal: the comparison is not blind. A model whose server became something else is not what the live nodes are.
#[test]
fn a_model_that_says_something_else_is_found_out() {
    let mut lines = lines();
    let term = &mut lines[1]["event"]["turns"][0]["after"]["node"]["hard"]["term"];
    assert_eq!(*term, 1);
    *term = 7.into();
    let Err(PlayError::Found(finding)) = play(&company(), &Trace::read(lines).unwrap()) else {
        panic!("nothing was found")
    };
    assert_eq!((finding.step, finding.server.0), (1, 1));
    assert_eq!(finding.difference.to_string(), "the model's node.hard.term: expected 7, seen 1");
}

/// Goal: a message that no live node has said does not arrive.
#[test]
fn a_message_that_nobody_said_does_not_arrive() {
    let mut lines = lines();
    let arrives = lines.iter_mut().skip(1).find(|line| line["event"]["kind"] == "deliver").unwrap();
    arrives["event"]["turns"][0]["inputs"][0]["input"]["Receive"]["term"] = 9.into();
    let Err(PlayError::Found(finding)) = play(&company(), &Trace::read(lines).unwrap()) else {
        panic!("nothing was found")
    };
    assert_eq!(finding.difference.what, "what it said");
    assert_eq!(finding.difference.seen, "nothing of the kind");
}

/// Goal: what a puppet was made to say never becomes what a server promised.
#[test]
fn no_server_serves_from_a_puppets_directory() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("puppet"), "").unwrap();
    let mut serve = Command::new(company().program);
    serve.args(["serve", "--id", "1", "--client-addr", "127.0.0.1:0", "--peer-addr", "127.0.0.1:0"]);
    let output = serve.args(["--peers", "1=127.0.0.1:1", "--data"]).arg(directory.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{told}");
    assert!(told.contains("is a puppet's directory"), "{told}");
}
