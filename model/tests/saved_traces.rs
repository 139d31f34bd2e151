//! Saved traces: found again, replaced and kept.

use palisade_model::models::models;
use palisade_model::saved_traces::make::{Effort, WITNESSES, make};
use palisade_model::saved_traces::{SavedTrace, read, read_all, replace};
use palisade_model::trace::WALK;

fn kept(model: &str, mutant: Option<&str>, choices: &[usize]) -> SavedTrace {
    let mutant = mutant.map(str::to_owned);
    SavedTrace { model: model.into(), property: WALK.into(), mutant, choices: choices.into() }
}

#[test]
fn new_path_replaces_the_saved_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("paths.jsonl");
    let (raft, locks) = (kept("raft", None, &[1, 2]), kept("locks", Some("a mutant"), &[3]));
    replace(&file, |_| false, vec![locks.clone(), raft.clone()]).unwrap();
    assert_eq!(read(&file).unwrap(), [raft.clone(), locks.clone()], "as `palisade-model list` has the models");
    let other = kept("raft", None, &[4]);
    replace(&file, |kept| kept.model == "raft", vec![other.clone()]).unwrap();
    assert_eq!(read_all(directory.path()).unwrap(), [other, locks]);
}

#[test]
fn missing_path_names_the_command_that_finds_another() {
    let far = kept("raft-votes", None, &[usize::MAX]);
    let message = far.trace().unwrap_err().to_string();
    assert!(message.contains("find it again with `palisade-model keep raft-votes`"), "{message}");
    let trace =
        SavedTrace { property: "one vote a term".into(), ..kept("raft-votes", Some("vote-twice"), &[usize::MAX]) };
    let message = trace.trace().unwrap_err().to_string();
    assert!(message.contains("`palisade-model mutants --traces FILE vote-twice`"), "{message}");
    assert!(trace.holds().is_err(), "a path that the model lacks is an error");
    let models = models();
    let named = models.iter().find(|named| named.name == "raft-votes").unwrap();
    let walk = kept("raft-votes", None, &named.model.wander(1, 3).unwrap().choices);
    assert_eq!((walk.trace().unwrap().steps.len(), walk.holds().is_ok()), (3, true));
}

#[test]
fn witness_not_found_again_is_kept() {
    let models = models();
    let model = models.iter().find(|named| named.name == "raft-votes").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let effort = |states| Effort { states, walks: 1, steps: 1 };
    let message = make(model, effort(1), directory.path()).unwrap();
    assert!(message.contains("0 witnesses") && message.contains("; not met: "), "{message}");
    make(model, effort(100_000), directory.path()).unwrap();
    let file = directory.path().join(WITNESSES);
    let kept = read(&file).unwrap();
    assert!(!kept.is_empty());

    let message = make(model, effort(1), directory.path()).unwrap();
    assert!(message.contains("; not met again, its path stays: "), "{message}");
    assert_eq!(read(&file).unwrap(), kept);

    let gone = SavedTrace { choices: vec![usize::MAX], ..kept[0].clone() };
    replace(&file, |_| true, vec![gone]).unwrap();
    make(model, effort(1), directory.path()).unwrap();
    assert_eq!(read(&file).unwrap(), [], "what the model does not have any more is not kept");
}
