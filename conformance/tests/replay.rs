//! Replays a part of the saved traces, and a few random walks, on live nodes. `palisade-conformance
//! replay` replays all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use palisade_conformance::replay::command::{SEGMENT_BYTES, Titled, play_all, walks};
use palisade_conformance::replay::finding::PlayError;
use palisade_conformance::replay::large_table::large_table;
use palisade_conformance::replay::live::Program;
use palisade_conformance::replay::nodes::ReplayConfig;
use palisade_conformance::replay::play::play;
use palisade_conformance::replay::saved_traces::{self, SavedTrace};
use palisade_conformance::replay::trace::Trace;
use palisade_model::models::models;
use palisade_model::named::Tier;
use palisade_model::{mutants, trace};
use serde_json::Value;

/// The nodes are those of the program that is built with this test.
fn config() -> ReplayConfig {
    let program = Program { file: env!("CARGO_BIN_EXE_palisade-conformance").into(), on: String::new() };
    ReplayConfig { program, previous: None, segment_bytes: SEGMENT_BYTES }
}

fn all() -> Vec<SavedTrace> {
    saved_traces::all(&saved_traces::folder()).unwrap()
}

/// A short trace.
fn lines() -> Vec<Value> {
    let models = models();
    let raft = models.iter().find(|model| model.name == "raft").unwrap();
    raft.model.trace("a leader is elected").unwrap().lines("raft")
}

/// Goal: a change of the protocol or of a model that changes a saved path is noticed, and the
/// message says how to find the path again. A mutant's trace must still be a path without the
/// mutant. Here every fourth path is tried, and all of them in `just long-tests`.
#[test]
fn saved_traces_are_paths_of_their_models() {
    let every = if std::env::var("TRACES").is_ok_and(|traces| traces == "all") { 1 } else { EVERY };
    let all: Vec<SavedTrace> = all().into_iter().step_by(every).collect();
    std::thread::scope(|scope| {
        for part in all.chunks(all.len().div_ceil(THREADS)) {
            scope.spawn(|| part.iter().for_each(is_still_a_trace));
        }
    });
}

/// One of this many saved traces is checked; with `TRACES=all`, each.
const EVERY: usize = 4;
/// Number of threads that check the saved traces.
const THREADS: usize = 4;

fn is_still_a_trace(kept: &SavedTrace) {
    let trace = saved_traces::rebuild(kept).unwrap();
    assert_eq!(trace.steps.len(), kept.choices.len(), "{}", kept.title());
    if kept.mutant.is_some() {
        kept.holds().unwrap();
    }
}

/// Goal: for every model whose steps live nodes can take, there is a trace of every witness, a walk
/// if the model is of the random tier, and a trace of every mutant.
#[test]
fn every_witness_mutant_and_walk_has_a_saved_trace() {
    let all = all();
    let models = models();
    let shown: BTreeSet<(&str, &str)> = all.iter().map(|kept| (kept.model.as_str(), kept.property.as_str())).collect();
    for model in models.iter().filter(|model| model.can_be_replayed()) {
        if model.tier == Tier::Random {
            assert!(shown.contains(&(model.name, trace::WALK)), "no walk through {}", model.name);
            continue;
        }
        for (property, _) in model.model.properties().iter().filter(|(_, possible)| *possible) {
            assert!(
                shown.contains(&(model.name, *property)),
                "no witness of {property:?}: run `just traces {}`",
                model.name
            );
        }
    }
    let lists = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/mutants");
    let mutant_traces: BTreeSet<&str> = all.iter().filter_map(|kept| kept.mutant.as_deref()).collect();
    let is_replayed = |name: &str| models.iter().any(|model| model.name == name && model.can_be_replayed());
    for mutant in mutants::mutants(&lists).unwrap().into_iter().filter(|mutant| is_replayed(&mutant.model)) {
        assert!(
            mutant_traces.contains(mutant.name.as_str()),
            "no saved trace of mutant {}: run `just traces`",
            mutant.name
        );
    }
}

/// Goal: after every step each process's node, disk and messages equal the model's.
#[test]
fn live_nodes_equal_the_model() {
    // Of each model, the longest traces of each kind; and a random walk through each model of the
    // random tier.
    let mut longest: BTreeMap<(String, bool), Vec<SavedTrace>> = BTreeMap::new();
    for kept in all().into_iter().filter(|kept| kept.property != trace::WALK) {
        longest.entry((kept.model.clone(), kept.mutant.is_some())).or_default().push(kept);
    }
    let chosen = longest.into_values().flat_map(|mut kept| {
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.choices.len()));
        kept.truncate(PER_MODEL);
        kept
    });
    let mut traces: Vec<Titled> =
        chosen.map(|kept| (kept.title(), saved_traces::rebuild(&kept).map_err(|error| error.to_string()))).collect();
    traces.extend(walks(WALKS, 1, 40));
    traces.push(("a large table".into(), large_table(1, 0, 200).map_err(|error| error.to_string())));
    let total = play_all(&config(), &traces, 2);
    assert!(total.failures.is_empty(), "{}", total.failures.join("\n"));
    assert_eq!(total.played.0, traces.len());
    assert!(total.played.1 > 200, "only {} steps were taken", total.played.1);
    for message in ["AppendEntries", "AppendAccepted", "AppendRejected", "RequestVote", "RequestVoteReply"] {
        assert!(total.coverage.count("message", message) > 0, "no {message} arrived:\n{}", total.coverage);
    }
}

/// Number of witnesses and of mutant traces of each model that this test replays.
const PER_MODEL: usize = 1;
/// Number of random walks through each model of the random tier.
const WALKS: u64 = 1;

/// Goal: the comparison finds a difference. A model whose server has another state differs from the
/// live nodes.
#[test]
fn differing_model_state_is_found() {
    let mut lines = lines();
    let term = &mut lines[1]["event"]["turns"][0]["after"]["node"]["hard"]["term"];
    assert_eq!(*term, 1);
    *term = 7.into();
    let Err(PlayError::Found(finding)) = play(&config(), &Trace::read(lines).unwrap()) else {
        panic!("no difference was found")
    };
    assert_eq!((finding.step, finding.server.0), (1, 1));
    assert_eq!(finding.difference.to_string(), "the model's node.hard.term: expected 7, seen 1");
}

/// Goal: a message that no live node has sent is not delivered.
#[test]
fn message_that_no_node_sent_is_not_delivered() {
    let mut lines = lines();
    let arrives = lines.iter_mut().skip(1).find(|line| line["event"]["kind"] == "deliver").unwrap();
    arrives["event"]["turns"][0]["inputs"][0]["input"]["Receive"]["term"] = 9.into();
    let Err(PlayError::Found(finding)) = play(&config(), &Trace::read(lines).unwrap()) else {
        panic!("no difference was found")
    };
    assert_eq!(finding.difference.what, "messages sent");
    assert_eq!(finding.difference.seen, "no such message");
}
