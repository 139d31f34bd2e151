//! The examples of the Rust client, on one cluster: each says what it shows.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use palisade_client::wire::Acquired;
use rustix::process::Signal;
use serde_json::json;

use super::clusters::{await_queue, break_lock, holder};
use super::nightly::Job;
use super::program::rust_example;
use super::unless_missing;
use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::locks::post_to_leader;

/// The examples that end by themselves and need no other process, and what each prints, in order.
const ALONE: [(&str, &[&str]); 9] = [
    ("lock_and_release", &["examples/simple is mine, with token "]),
    ("fencing", &["quick writes: Ok", "slow writes:  Err", "the resource says: by quick"]),
    (
        "readers_and_permits",
        &[
            "two readers hold examples/index",
            "the writer holds examples/index alone",
            "all three permits of examples/exports",
        ],
    ),
    ("several_keys", &["10 of 100 are moved: 90 and 110 are left"]),
    (
        "records",
        &[
            "without a lock: StaleToken",
            "too late: StaleToken",
            "changed since: OtherVersion",
            "the report: page 1, page 2",
        ],
    ),
    (
        "election",
        &[
            "before: None",
            "host-1 leads, at 10.0.0.1:8080",
            "host-1 leads with token ",
            "host-1 leads with token ",
            "it has resigned",
        ],
    ),
    ("cancellation", &["0 waiting", "held after the guard was dropped: false"]),
    (
        "hold_again",
        &["charged; holds: 1", "charged; holds: 2", "held by transfer with token ", "held after both: false"],
    ),
    ("latch", &["open at first: false", "the schema is migrated now", "the worker starts"]),
];
/// The examples that go on for a while, or need other processes.
const TOGETHER: [&str; 5] = ["barrier", "group_leader", "lost", "wait_with_deadline", "watch"];
/// The suite of all clients runs it.
const ADAPTER: &str = "adapter";

/// Starts an example, with these arguments.
fn start(name: &str, arguments: &[&str], cluster: &Cluster) -> Job {
    let mut command = Command::new(rust_example(name).expect("all examples are built"));
    command.args(arguments);
    Job::start(command, cluster)
}

impl Job {
    fn await_text(&self, text: &str) {
        eventually(&format!("it says {text:?}"), || self.printed().contains(text).then_some(()));
    }

    /// Waits for its end, and expects that it has said this, too.
    #[track_caller]
    fn ends_with(&mut self, text: &str) {
        assert_eq!(self.process.exit_code(), 0, "{}", self.printed());
        assert!(self.printed().contains(text), "{text:?} is not in {:?}", self.printed());
    }
}

#[test]
fn all_examples_say_what_they_show() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("client/examples");
    let sources = folder.read_dir().expect("it has the examples").map(|entry| entry.expect("an entry").path());
    let names = sources.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let known = ALONE.map(|(name, _)| name).into_iter().chain(TOGETHER).chain([ADAPTER]).map(str::to_owned);
    assert_eq!(names.collect::<BTreeSet<_>>(), known.collect(), "the tests run every example");

    let built = ALONE.iter().map(|&(name, _)| name).chain(TOGETHER).try_for_each(|name| rust_example(name).map(drop));
    unless_missing(built, |()| {
        let cluster = &Cluster::start_calm(3);
        cluster.wait_ready();
        std::thread::scope(|scope| {
            let together = [deadline, watch, lost, leaders, barrier].map(|shows| scope.spawn(move || shows(cluster)));
            ALONE.iter().for_each(|(name, expected)| alone(name, expected, cluster));
            together.into_iter().for_each(|shown| shown.join().expect("it shows what it says"));
        });
    });
}

fn alone(name: &str, expected: &[&str], cluster: &Cluster) {
    let mut example = start(name, &[], cluster);
    let code = example.process.exit_code();
    let printed = example.printed();
    assert_eq!(code, 0, "{name}: {printed}");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{name}: {printed}");
    for (line, start) in lines.iter().zip(expected) {
        assert!(line.starts_with(start), "{name}: {line:?} instead of {start:?}");
    }
}

/// Acquires a lock that an example is about, and returns what releases it.
fn hold(key: &'static str, cluster: &Cluster) -> impl FnOnce() {
    let endpoints = cluster.endpoints();
    let path = format!("/v1/locks/examples%2F{key}");
    let grant = post_to_leader(&endpoints, &format!("{path}/acquire"), &json!({ "ttl_ms": 600_000 })).ok();
    let grant: Acquired = serde_json::from_value(grant).expect("a grant");
    move || {
        let release = json!({ "session": grant.session, "token": grant.token });
        post_to_leader(&endpoints, &format!("{path}/release"), &release).ok();
    }
}

/// A wait ends while the lock is held, no second one begins beside it, and a later one is granted the lock.
fn deadline(cluster: &Cluster) {
    let release = hold("waiting", cluster);
    let mut waiter = start("wait_with_deadline", &[], cluster);
    await_queue(cluster, "examples%2Fwaiting", 1);
    start("wait_with_deadline", &[], cluster).ends_with("1 waiting already");
    waiter.ends_with("not granted within ");
    release();
    start("wait_with_deadline", &[], cluster).await_text("granted; working for 8 s with token ");
}

/// The example prints what another client does.
fn watch(cluster: &Cluster) {
    let watch = start("watch", &[], cluster);
    eventually("it tells of the lock", || {
        hold("watched", cluster)();
        watch.printed().contains("examples/watched at revision ").then_some(())
    });
}

/// An operator breaks the lock, and the work stops.
fn lost(cluster: &Cluster) {
    let mut lost = start("lost", &[], cluster);
    lost.await_text("step 1");
    let token = holder(cluster, "examples%2Flost").expect("it is held");
    break_lock(&cluster.endpoints(), "examples%2Flost", token);
    lost.ends_with("another client may get the lock in a moment: stopped in the middle");
}

/// The leader resigns at the signal, and the next one leads.
fn leaders(cluster: &Cluster) {
    let mut first = start("group_leader", &[], cluster);
    first.await_text("leading with token ");
    let mut second = start("group_leader", &[], cluster);
    await_queue(cluster, "examples%2Fleader", 1);
    first.process.signal(Signal::INT);
    first.ends_with("resigns, so that the next one need not wait for the time-to-live");
    second.await_text("leading with token ");
    second.process.signal(Signal::INT);
    second.ends_with("resigns");
}

/// All three pass.
fn barrier(cluster: &Cluster) {
    let mut three = ["red", "green", "blue"].map(|name| start("barrier", &[name], cluster));
    three.iter_mut().for_each(|one| one.ends_with("all three are ready: "));
}
