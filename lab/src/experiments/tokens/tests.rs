use super::*;
use crate::contend::attempt::Release;

fn attempt(key: u64, arrived_us: u64, ended_us: u64, token: u64) -> Attempt {
    let (outcome, release) = (Outcome::Granted { token }, Release::Done);
    Attempt { number: 0, key, intended_us: arrived_us, arrived_us, ended_us, finished_us: ended_us, outcome, release }
}

#[test]
fn a_grant_is_out_of_order_if_an_earlier_one_has_no_lower_token() {
    // The second was asked for before the first had ended: either order is right.
    assert_eq!(out_of_order(&[attempt(1, 0, 10, 2), attempt(2, 5, 15, 1)]), 0);
    assert_eq!(out_of_order(&[attempt(1, 0, 10, 2), attempt(2, 11, 15, 1)]), 1);
    assert_eq!(out_of_order(&[attempt(1, 0, 10, 1), attempt(2, 11, 15, 1)]), 1, "a token that is granted twice");
    let timeout = Attempt { outcome: Outcome::Timeout, ..attempt(1, 0, 10, 9) };
    assert_eq!(out_of_order(&[timeout, attempt(2, 11, 15, 1)]), 0);
}

#[test]
fn each_backend_begins_with_its_usual_source() {
    let first = |backend| sources(backend)[0];
    assert_eq!(first(Backend::Redis), Tokens::PerKey);
    assert_eq!(first(Backend::Etcd), Tokens::Revision);
    assert_eq!(sources(Backend::Palisade), [Tokens::Revision]);
}

fn figures(tokens: Tokens, locked: u64, out_of_order: u64, counters: u64) -> Figures {
    let case = TokensCase {
        tokens: tokens.to_string(),
        rates: vec![1.0],
        acquire: Latency { count: 10, ..Latency::default() },
        failed: 0,
        error: None,
        locked,
        out_of_order,
        left: Left { counters, bytes: 8 * counters },
        operations: 20,
        violations: Vec::new(),
    };
    Figures { load_average: "0".to_owned(), keys: 10, window_us: 1, cases: vec![case] }
}

#[test]
fn predictions_can_fail() {
    let failed = |figures: &Figures| predictions(figures).iter().filter(|prediction| !prediction.holds).count();
    for (tokens, out_of_order, counters) in [
        (Tokens::PerKey, 4, 7),
        (Tokens::Sharded(SHARDS), 4, u64::from(SHARDS)),
        (Tokens::Global, 0, 1),
        (Tokens::Revision, 0, 0),
    ] {
        assert_eq!(failed(&figures(tokens, 7, out_of_order, counters)), 0, "{tokens}");
        assert_eq!(failed(&figures(tokens, 7, out_of_order, counters + 1)), 1, "{tokens}: one counter too many");
        assert_eq!(failed(&figures(tokens, 7, 4 - out_of_order, counters)), 1, "{tokens}: the wrong order");
        assert_ne!(failed(&figures(tokens, 0, out_of_order, counters)), 0, "{tokens}: no key was locked");
    }
    let mut violated = figures(Tokens::Global, 7, 0, 1);
    violated.cases[0].violations.push("two holders".to_owned());
    assert_eq!(failed(&violated), 1);
}

#[test]
fn the_history_of_each_key_is_judged_by_itself() {
    use palisade_history::{Answer, Call, Client, History, Key, Session};
    let recorder = Recorder::in_memory();
    let grant = |key: &str, client: &str, token| {
        let (client, session) = (Client::from(client), Session::from(client));
        let acquire = recorder.invoke(&client, Call::acquire_one(Key::from(key), 0, Some(1_000)));
        acquire.ok(Answer::Granted { session: session.clone(), token });
        let release = Call::Release { keys: Key::from(key).into(), session, token, number: None };
        recorder.invoke(&client, release).ok(Answer::Released);
    };
    grant("a", "one", 1);
    grant("b", "two", 1);
    grant("a", "three", 2);
    let judged = |history: History| -> usize {
        by_key(history).values().map(|one| Judgement::without_search(one).service.len()).sum()
    };
    assert_eq!(by_key(recorder.history().unwrap()).len(), 2);
    assert_eq!(judged(recorder.history().unwrap()), 0);
    grant("a", "four", 2);
    assert_ne!(judged(recorder.history().unwrap()), 0, "a token that its key has had");
}

#[test]
fn page_compares_no_backend_with_another() {
    let run = |backend: &str| {
        let setup = crate::report::setup::Setup::of("", String::new(), std::path::Path::new("/"));
        let figures = figures(Tokens::Revision, 1, 0, 0);
        crate::report::Run { backend: backend.to_owned(), setup, figures, predictions: Vec::new() }
    };
    let text = page(&crate::report::Results { runs: vec![run("etcd"), run("palisade")] }).markdown;
    assert!(!text.contains("Palisade is worse"), "{text}");
    for cost in ["session of its own with ZooKeeper and with Palisade", "a lease of\n  its own with etcd"] {
        assert!(text.contains(cost), "{cost} is missing in\n{text}");
    }
}
