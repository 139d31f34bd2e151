//! `palisade status`, `locks` and `show`: for people, and with `--json` for machines.

use std::process::Stdio;

use serde_json::{Value, json};

use super::{Fixture, expect_code, expect_complaint, text};
use crate::support::process::{Running, output, palisade};
use crate::support::terminal::Terminal;
use crate::support::{http, ports};

/// Locks to look at, taken over HTTP: `a/1` with a waiter, `a/2`, and `b`.
fn fill(fixture: &Fixture) -> std::thread::JoinHandle<()> {
    let leader = fixture.cluster.client_addr(fixture.cluster.wait_ready());
    for (key, owner) in [("a%2F1", "one"), ("a%2F2", "two"), ("b", "")] {
        let body = json!({ "owner": owner, "ttl_ms": 600_000 }).to_string();
        http::post(&leader, &format!("/v1/locks/{key}/acquire"), &body).unwrap().ok();
    }
    let body = json!({ "owner": "waiter", "ttl_ms": 600_000, "wait_ms": 600_000 }).to_string();
    let waiter = std::thread::spawn(move || {
        // It ends with its node.
        let _ = http::post(&leader, "/v1/locks/a%2F1/acquire", &body);
    });
    super::eventually("the waiter waits", || (fixture.show("a%2F1")["queue"].as_array()?.len() == 1).then_some(()));
    waiter
}

fn lines(fixture: &Fixture, arguments: &[&str]) -> Vec<String> {
    let output = output(&mut fixture.palisade(arguments));
    expect_code(&output, 0);
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout).lines().map(str::to_string).collect()
}

fn parsed(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// What a person reads and what a machine reads is the same, and is what the HTTP interface says.
#[test]
fn locks_are_listed_and_shown() {
    let fixture = Fixture::start();
    assert_eq!(lines(&fixture, &["locks"]), ["no lock is held"]);
    assert_eq!(lines(&fixture, &["locks", "--json"]), Vec::<String>::new());
    assert_eq!(lines(&fixture, &["show", "a/1"]), ["a/1 is free"]);
    let waiter = fill(&fixture);

    let listed = lines(&fixture, &["locks"]);
    let columns: Vec<Vec<&str>> = listed.iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(columns[0], ["KEY", "TOKEN", "EXPIRES", "WAITING", "HOLDER"]);
    let found: Vec<_> = columns[1..].iter().map(|line| (line[0], line[3], line[4..].join(" "))).collect();
    let expected = [("a/1", "1", "one"), ("a/2", "0", "two"), ("b", "0", "(no name)")];
    assert_eq!(found, expected.map(|(key, waiting, holder)| (key, waiting, holder.to_string())));
    assert_eq!(lines(&fixture, &["locks", "--prefix", "a/"]).len(), 3);

    let machine = parsed(&lines(&fixture, &["locks", "--json", "--prefix", "a/"]));
    let keys: Vec<&Value> = machine.iter().map(|lock| &lock["key"]).collect();
    assert_eq!(keys, ["a/1", "a/2"]);
    let view = fixture.show("a%2F1");
    assert_eq!(machine[0]["holder"]["session"], view["holder"]["session"]);
    assert_eq!(machine[0]["queue"], view["queue"]);

    let shown = parsed(&lines(&fixture, &["show", "a/1", "--json"])).remove(0);
    assert_eq!((&shown["holder"]["token"], &shown["queue"]), (&view["holder"]["token"], &view["queue"]));
    let shown = lines(&fixture, &["show", "a/1"]);
    assert_eq!(shown[0], "a/1 is held by one");
    assert!(shown.iter().any(|line| line.contains("waiter")), "{shown:?}");
    assert!(shown.iter().any(|line| line.trim() == format!("token    {}", view["holder"]["token"])), "{shown:?}");
    let free = parsed(&lines(&fixture, &["show", "free", "--json"])).remove(0);
    assert_eq!(free, json!({ "key": "free", "held": false, "holder": null, "holders": [], "queue": [] }));

    drop(fixture);
    let _ = waiter.join();
}

/// With the leader killed, the other nodes report it and go on answering; the commands find the new
/// leader by themselves.
#[test]
fn looking_works_with_the_leader_killed() {
    let mut fixture = Fixture::start();
    let waiter = fill(&fixture);
    let leader = fixture.cluster.wait_ready();
    fixture.cluster.kill(leader);
    let _ = waiter.join();
    // At once: there is no leader yet, and the commands wait for the next.
    assert_eq!(parsed(&lines(&fixture, &["locks", "--json"])).len(), 3);
    assert_eq!(lines(&fixture, &["show", "a/2"])[0], "a/2 is held by two");

    let status = lines(&fixture, &["status"]);
    assert_eq!(status.len(), 4);
    let dead = fixture.cluster.client_addr(leader);
    let line = status.iter().find(|line| line.starts_with(&dead)).unwrap();
    assert!(line.contains("unreachable"), "{line}");
    assert_eq!(status.iter().filter(|line| line.split_whitespace().any(|word| word == "leader")).count(), 1);
    assert_eq!(status.iter().filter(|line| line.split_whitespace().any(|word| word == "follower")).count(), 1);

    let machine = parsed(&lines(&fixture, &["status", "--json"])).remove(0);
    for (answer, id) in machine.as_array().unwrap().iter().zip(fixture.cluster.ids()) {
        assert_eq!(answer["endpoint"], fixture.cluster.client_addr(id).as_str(), "in the order of the endpoints");
        if id == leader {
            assert_eq!((&answer["status"], &answer["node"]), (&Value::Null, &json!(id)));
            assert!(answer["error"].is_string());
        } else {
            assert_eq!((&answer["status"]["node"], &answer["error"]), (&json!(id), &Value::Null));
        }
    }
}

/// Endpoints come from the flag, or else from the environment; a bare port repeats the host.
#[test]
fn the_flag_goes_before_the_environment() {
    let fixture = Fixture::start();
    let (first, others) = (fixture.cluster.client_addr(1), [2, 3].map(|id| fixture.cluster.client_addr(id)));
    let ports = others.map(|address| address.rsplit_once(':').unwrap().1.to_string()).join(",");
    let listed = lines(&fixture, &["status", "--endpoints", &format!("{first},{ports}")]);
    for (line, endpoint) in listed[1..].iter().zip(fixture.cluster.endpoints()) {
        assert!(line.starts_with(&endpoint), "{line}");
    }
    let all = lines(&fixture, &["status", "--endpoints", &first]);
    assert_eq!(all.len(), 4, "the members that were not named are asked, too: {all:?}");
    let unreachable = format!("127.0.0.1:{}", ports::free(1)[0]);
    expect_code(&output(fixture.palisade(&["status"]).env("PALISADE_ENDPOINTS", &unreachable)), 69);
    expect_code(
        &output(fixture.palisade(&["status", "--endpoints", &first]).env("PALISADE_ENDPOINTS", &unreachable)),
        0,
    );
    expect_complaint(&output(&mut fixture.palisade(&["locks", "--endpoints", "7401"])), 64, "7401");
    expect_complaint(&output(&mut fixture.palisade(&["status", "--endpoints", "host:0"])), 64, "host:0");
}

/// No node listens there: 69, and a sentence with the address.
#[test]
fn nothing_running_is_69() {
    let unreachable = format!("127.0.0.1:{}", ports::free(1)[0]);
    // Each looks for a leader for a while before it gives up: they do so side by side.
    let commands: [&[&str]; 4] = [&["locks"], &["locks", "--json"], &["show", "k"], &["show", "k", "--json"]];
    let running: Vec<Running> = commands
        .iter()
        .map(|arguments| {
            let mut command = palisade();
            command.args(*arguments).args(["--endpoints", &unreachable]);
            Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
        })
        .collect();
    for json in [false, true] {
        let output = output(palisade().args(["status", "--endpoints", &unreachable]).args(json.then_some("--json")));
        expect_code(&output, 69);
        assert!(text(&output.stdout).contains(&unreachable), "{output:?}");
    }
    for mut running in running {
        assert_eq!(running.exit_code(), 69);
        let complaint = std::io::read_to_string(running.0.stderr.take().unwrap()).unwrap();
        assert!(
            complaint.starts_with("palisade: no leader answered") && complaint.contains(&unreachable),
            "{complaint}"
        );
        assert_eq!(std::io::read_to_string(running.0.stdout.take().unwrap()).unwrap(), "");
    }
}

/// A reader that has seen enough, such as `head`, is no reason for a panic.
#[test]
fn a_reader_that_goes_away_is_no_accident() {
    let fixture = Fixture::start();
    let waiter = fill(&fixture);
    for arguments in [&["locks"] as &[&str], &["locks", "--json"], &["show", "a/1"], &["status"], &["status", "--json"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = output(fixture.palisade(arguments).stdout(writer).stderr(Stdio::piped()));
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
    }
    drop(fixture);
    let _ = waiter.join();
}

/// On a terminal, headings are bold and the leader is marked; NO_COLOR and a pipe get plain text without
/// tabs, and the same words.
#[test]
fn tables_have_colour_on_a_terminal_only() {
    let fixture = Fixture::start();
    let piped = lines(&fixture, &["status"]);
    assert!(piped.iter().all(|line| !line.contains(['\x1b', '\t'])), "{piped:?}");
    for (no_color, is_coloured) in [("", true), ("1", false)] {
        let (mut person, program) = Terminal::open();
        let mut command = fixture.palisade(&["status"]);
        command.stdout(program).env("TERM", "xterm").env("NO_COLOR", no_color);
        let mut running = Running::start(&mut command);
        drop(command);
        assert_eq!(running.exit_code(), 0);
        let seen = person.read(|seen| seen.lines().count() == 4 && seen.ends_with('\n'));
        assert_eq!(seen.contains("\x1b[32mleader\x1b[0m"), is_coloured, "{seen:?}");
        assert_eq!(seen.starts_with("\x1b[1mENDPOINT"), is_coloured, "{seen:?}");
        assert!(is_coloured || !seen.contains('\x1b'), "{seen:?}");
    }
}
