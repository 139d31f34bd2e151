//! `palisade elect` when the cluster's leader dies, and `palisade proclaim` in the command of a lock.

use std::process::Stdio;

use serde_json::Value;

use super::{Fixture, expect_code, expect_complaint, text, until};
use crate::support::eventually;
use crate::support::process::{Running, output, palisade};

const PROGRAM: &str = env!("CARGO_BIN_EXE_palisade");

/// A candidate of the election `group`. Its command writes its token, then its value once more when `replace-N` exists, and
/// ends when `resign-N` does.
fn candidate(fixture: &Fixture, number: u32) -> Running {
    let [replace, resign] = ["replace", "resign"].map(|what| until(&fixture.path(&format!("{what}-{number}"))));
    let script = format!(
        "echo $PALISADE_TOKEN > leads-{number}; {replace}; '{PROGRAM}' proclaim host-{number}:81; echo $? > \
         replaced-{number}; {resign}"
    );
    let value = format!("host-{number}:80");
    let arguments = ["elect", "group", "--value", &value, "--", "sh", "-c", &script];
    Running::start(fixture.palisade(&arguments).stderr(Stdio::null()))
}

fn value(shown: &Value) -> &Value {
    &shown["holder"]["value"]
}

fn waiters(shown: &Value) -> usize {
    shown["queue"].as_array().map_or(0, Vec::len)
}

fn touch(fixture: &Fixture, name: &str) {
    std::fs::write(fixture.path(name), "").unwrap();
}

/// Waits until a script has written an exit code of `palisade proclaim`.
fn exit_code_in(fixture: &Fixture, name: &str) -> String {
    eventually(name, || Some(fixture.read(name)).filter(|written| written.ends_with('\n'))).trim().to_owned()
}

/// Goal: an election and a short queue outlive the leader of the cluster. The candidate leads on under its token, with its
/// value, and replaces it; an observer is told each leader and value once; a waiter that accepted an empty queue keeps its
/// position, although the queue has one session when it asks the next leader, and the queue is full for others; and the
/// next ones come when the first have ended.
#[test]
fn elections_and_short_queues_outlive_the_leader_of_the_cluster() {
    let mut fixture = Fixture::start();
    let observed = std::fs::File::create(fixture.path("observed")).unwrap();
    let _observer = Running::start(fixture.palisade(&["watch", "group"]).stdout(observed).stderr(Stdio::null()));
    eventually("the observer watches", || fixture.read("observed").contains("listed").then_some(()));
    let mut first = candidate(&fixture, 1);
    fixture.wait_for_file("leads-1");
    let mut second = candidate(&fixture, 2);
    let mut holder = fixture.start_lock("k", &[], &until(&fixture.path("go")));
    let mut waiter = Running::start(&mut fixture.lock("k", &["--max-queue", "1", "--wait", "5m"], "touch waited"));
    for key in ["group", "k"] {
        eventually("it waits", || (waiters(&fixture.show(key)) == 1).then_some(()));
    }
    let before = fixture.show("group");

    let leader = fixture.cluster.wait_ready();
    fixture.cluster.kill(leader);
    let next = fixture.cluster.wait_ready();
    assert_ne!(next, leader);
    let after = fixture.show("group");
    assert_eq!((value(&after), waiters(&after)), (&"host-1:80".into(), 1));
    assert_eq!(after["holder"]["token"], before["holder"]["token"]);
    let refused = output(&mut fixture.lock("k", &["--max-queue", "1", "--wait", "10s"], "exit 0"));
    expect_complaint(&refused, 75, "the lock is held by");
    assert!(!text(&refused.stderr).contains("--wait"), "it did not wait: {}", text(&refused.stderr));
    touch(&fixture, "replace-1");
    assert_eq!(exit_code_in(&fixture, "replaced-1"), "0");
    assert_eq!(value(&fixture.show("group")), "host-1:81");
    assert!(first.runs() && second.runs() && holder.runs() && waiter.runs());
    assert!(!fixture.path("leads-2").exists() && !fixture.path("waited").exists());

    touch(&fixture, "go");
    assert_eq!((holder.exit_code(), waiter.exit_code()), (0, 0));
    assert!(fixture.path("waited").exists());
    touch(&fixture, "resign-1");
    assert_eq!(first.exit_code(), 0);
    let [first_token, second_token] = ["leads-1", "leads-2"].map(|name| {
        let token = eventually(name, || Some(fixture.read(name)).filter(|token| token.ends_with('\n')));
        token.trim().parse::<u64>().unwrap()
    });
    assert!(first_token < second_token);
    assert_eq!(value(&fixture.show("group")), "host-2:80");
    touch(&fixture, "replace-2");
    touch(&fixture, "resign-2");
    assert_eq!(second.exit_code(), 0);

    let told = || -> Vec<(String, Value)> {
        let lines = fixture.read("observed");
        let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let named =
            events.map(|event| (event["event"].as_str().unwrap_or_default().to_owned(), event["value"].clone()));
        named.filter(|(name, _)| ["granted", "value", "released"].contains(&name.as_str())).collect()
    };
    let expected = [
        ("granted", "host-1:80".into()),
        ("value", "host-1:81".into()),
        ("released", Value::Null),
        ("granted", "host-2:80".into()),
        ("value", "host-2:81".into()),
        ("released", Value::Null),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value));
    assert_eq!(eventually("all is told", || Some(told()).filter(|told| told.len() >= expected.len())), expected);
}

/// Goal: `palisade proclaim` replaces the value of the innermost lock, at all its keys, and leaves the lock as it is; a
/// value that is too long changes nothing.
#[test]
fn command_replaces_the_value_of_its_lock() {
    let fixture = Fixture::start();
    let proclaim = |value: &str, file: &str| format!("'{PROGRAM}' proclaim {value} 2> {file}.said; echo $? > {file}");
    let (two, long) = (proclaim("'two  ä'", "two"), proclaim(&"v".repeat(4_097), "long"));
    let inner = format!("{two}; {long}; {}", until(&fixture.path("inner.ends")));
    std::fs::write(fixture.path("inner.sh"), inner).unwrap();
    let three = proclaim("three", "three");
    let script = format!(
        "'{PROGRAM}' lock a b --value one -- sh inner.sh; {three}; env | cut -d= -f1 | grep ^PALISADE > names; {}",
        until(&fixture.path("ends"))
    );
    let mut outer = fixture.start_lock("outer", &["--value", "zero"], &script);
    assert_eq!((exit_code_in(&fixture, "two").as_str(), exit_code_in(&fixture, "long").as_str()), ("0", "65"));
    let said = fixture.read("long.said");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("a, b: ") && said.contains("the value has 4097 bytes; it may have 4096"), "{said}");
    for key in ["a", "b"] {
        assert_eq!(value(&fixture.show(key)), "two  ä");
    }
    assert_eq!(value(&fixture.show("outer")), "zero");
    eventually("the hold of the proclamation is given back", || {
        (fixture.show("a")["holders"][0]["holds"] == 1).then_some(())
    });
    touch(&fixture, "inner.ends");
    assert_eq!(exit_code_in(&fixture, "three"), "0");
    assert_eq!(fixture.show("a")["held"], false);
    assert_eq!(value(&fixture.show("outer")), "three");
    let names = eventually("the names", || Some(fixture.read("names")).filter(|names| names.contains("TOKEN\n")));
    assert!(!names.lines().any(|name| name == "PALISADE_SESSION"), "the session is a secret: {names}");
    touch(&fixture, "ends");
    assert_eq!(outer.exit_code(), 0);
    assert_eq!(fixture.show("outer")["held"], false);
}

/// Goal: outside of a lock, and when the lock is lost, a proclamation fails and says why; it changes no value of the next
/// holder.
#[test]
fn proclamation_without_the_lock_is_refused() {
    let fixture = Fixture::start();
    let outside = output(palisade().args(["proclaim", "late"]).env_remove("PALISADE_PROCLAIM"));
    expect_complaint(&outside, 64, "this process does not run under a lock (PALISADE_PROCLAIM is not set)");
    expect_code(&output(palisade().arg("proclaim")), 2);

    // A process that has left the command's group outlives the lock.
    let late = format!(
        "touch left; {}; '{PROGRAM}' proclaim late 2> late.said; echo $? > late",
        until(&fixture.path("is-lost"))
    );
    std::fs::write(fixture.path("late.sh"), late).unwrap();
    let mut holder = fixture.start_lock("k", &["--value", "mine"], "setsid sh late.sh & wait");
    fixture.wait_for_file("left");
    fixture.break_lock("k");
    assert_eq!(holder.exit_code(), 76);
    std::fs::remove_file(fixture.path("k.started")).unwrap();
    let mut next = fixture.start_lock("k", &["--value", "next"], &until(&fixture.path("ends")));
    touch(&fixture, "is-lost");
    assert_eq!(exit_code_in(&fixture, "late"), "76");
    let said = fixture.read("late.said");
    assert!(text(said.as_bytes()).contains("k: cannot reach the `palisade lock` that started this command"), "{said}");
    assert_eq!(value(&fixture.show("k")), "next");
    touch(&fixture, "ends");
    assert_eq!(next.exit_code(), 0);
}
