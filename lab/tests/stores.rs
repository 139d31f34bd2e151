//! The stores that check fencing tokens by themselves, on real servers.
//!
//! A test whose server is not installed is skipped, and says so; with `LAB_REQUIRE=all` it fails.

use std::process::Command;

use palisade_lab::experiments::fenced_stores::{WRITERS, races};
use palisade_lab::resource::rule::Fence;
use palisade_lab::servers::{self, Error, Options, missing};
use palisade_lab::stores::objects::Objects;
use palisade_lab::stores::{Answer, Kind, StoreServer, Value};

use self::support::{installed, skip};

mod support;

/// Starts the store; none if it is not installed here.
async fn started(kind: Kind) -> Option<StoreServer> {
    let options = Options { allow_tmpfs: true, ..Options::default() };
    installed(kind.name(), StoreServer::start(kind, &options).await)
}

fn is_accepted(answer: Answer) -> bool {
    matches!(answer, Answer::Accepted { .. })
}

fn stale(answer: Answer) -> Option<u64> {
    match answer {
        Answer::Stale { seen, .. } => Some(seen),
        Answer::Accepted { .. } => None,
    }
}

async fn a_token_must_be_above_the_stored_one(kind: Kind) {
    let Some(running) = started(kind).await else { return };
    let store = running.open().await.unwrap();
    let stored = |fence, value: &str| Some(Value { fence, value: value.to_owned() });
    assert_eq!(store.read("k").await.unwrap(), None);
    assert!(is_accepted(store.write("k", "first", 7, Fence::On).await.unwrap()));
    assert_eq!(stale(store.write("k", "equal", 7, Fence::On).await.unwrap()), Some(7));
    assert_eq!(stale(store.write("k", "below", 6, Fence::On).await.unwrap()), Some(7));
    assert_eq!(stale(store.write("k", "lowest", 0, Fence::On).await.unwrap()), Some(7));
    assert_eq!(store.read("k").await.unwrap(), stored(7, "first"));
    assert!(is_accepted(store.write("k", "above", 8, Fence::On).await.unwrap()));
    assert_eq!(store.read("k").await.unwrap(), stored(8, "above"));
    // Other keys have tokens of their own, and a value may be anything.
    assert!(is_accepted(store.write("k2/ü ?", "\"\n'; ü", 0, Fence::On).await.unwrap()));
    assert_eq!(store.read("k2/ü ?").await.unwrap(), stored(0, "\"\n'; ü"));
    assert_eq!(stale(store.write("k2/ü ?", "equal", 0, Fence::On).await.unwrap()), Some(0));
    let highest = u64::try_from(i64::MAX).unwrap();
    assert!(is_accepted(store.write("k", "high", highest, Fence::On).await.unwrap()));
    assert_eq!(stale(store.write("k", "below", highest - 1, Fence::On).await.unwrap()), Some(highest));
    // The unsafe baseline accepts all.
    assert!(is_accepted(store.write("k", "stale", 1, Fence::Off).await.unwrap()));
    assert_eq!(store.read("k").await.unwrap(), stored(1, "stale"));
}

#[tokio::test]
async fn a_row_refuses_all_tokens_but_higher_ones() {
    a_token_must_be_above_the_stored_one(Kind::Postgres).await;
}

#[tokio::test]
async fn an_object_refuses_all_tokens_but_higher_ones() {
    a_token_must_be_above_the_stored_one(Kind::Objects).await;
}

async fn the_highest_token_stays(kind: Kind, rounds: u64) {
    let Some(running) = started(kind).await else { return };
    let fenced = races(&running, Fence::On, rounds, 1).await.unwrap();
    for race in &fenced {
        assert!(race.highest_stays() && race.late_refused, "{race:?}");
        assert_eq!((race.accepted + race.refused, race.judged.resource.len()), (WRITERS, 0), "{race:?}");
    }
    assert!(fenced.iter().any(|race| race.refused > 0), "the writers have not raced: {fenced:?}");
    if kind == Kind::Objects {
        assert!(fenced.iter().any(|race| race.lost_swaps > 0), "no put met another writer's: {fenced:?}");
    }
    let unfenced = races(&running, Fence::Off, rounds, 1).await.unwrap();
    assert!(unfenced.iter().any(|race| !race.highest_stays()), "the races without a fence prove nothing: {unfenced:?}");
    assert!(unfenced.iter().all(|race| !race.late_refused && !race.judged.resource.is_empty()), "{unfenced:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_highest_token_stays_in_a_row() {
    the_highest_token_stays(Kind::Postgres, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_highest_token_stays_in_an_object() {
    the_highest_token_stays(Kind::Objects, 20).await;
}

#[tokio::test]
async fn a_token_beyond_the_columns_range_is_an_error() {
    let Some(running) = started(Kind::Postgres).await else { return };
    let store = running.open().await.unwrap();
    let error = store.write("k", "v", u64::MAX, Fence::On).await.unwrap_err();
    assert!(error.contains("does not fit PostgreSQL's bigint"), "{error}");
    assert_eq!(store.read("k").await.unwrap(), None);
}

/// The pause between GET and PUT: a writer that comes in between makes the put fail, although it writes the same value.
#[tokio::test]
async fn a_put_after_another_writers_is_refused_although_the_values_are_equal() {
    let Some(running) = started(Kind::Objects).await else { return };
    let store = Objects::new(running.address()).unwrap();
    let with = |fence| Value { fence, value: "the same".to_owned() };
    // Nothing is stored for both writers.
    assert!(store.put_if("k", &with(2), None).await.unwrap());
    assert!(!store.put_if("k", &with(1), None).await.unwrap());
    // Both have read token 2.
    let read = store.get("k").await.unwrap().unwrap();
    assert!(store.put_if("k", &with(4), Some(&read.etag)).await.unwrap());
    assert!(!store.put_if("k", &with(3), Some(&read.etag)).await.unwrap());
    // The ETag is another although the value is the same: it covers the token.
    let now = store.get("k").await.unwrap().unwrap();
    assert_eq!(now.value, with(4));
    assert_ne!(now.etag, read.etag);
}

/// One round of the experiment on a real Redis, with workers as processes.
#[test]
fn a_paused_write_is_refused_with_the_fence_only() {
    let missing =
        missing(&[servers::Kind::Redis, servers::Kind::Postgres, servers::Kind::Objects], &Options::default());
    if !missing.is_empty() {
        return skip("the experiment fenced-stores", &Error::Missing(missing));
    }
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let arguments = ["run", "fenced-stores", "--backend", "redis", "--rounds", "1", "--out", out];
    let output = Command::new(env!("CARGO_BIN_EXE_palisade-lab")).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let page = std::fs::read_to_string(directory.path().join("fenced-stores.md")).unwrap();
    for store in ["postgres", "objects"] {
        for how in ["sleep", "stop"] {
            for figures in ["off | 1 | 2 | 1 | 0 | 0 | 1 |", "on | 1 | 1 | 0 | 1 | 1 | 0 |"] {
                let line = format!("| redis | {store} | {how} | {figures}");
                assert!(page.contains(&line), "{line} is missing in\n{page}");
            }
        }
    }
}
