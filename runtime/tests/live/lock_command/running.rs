//! `palisade lock`: its command runs under the lock, or the lock cannot be acquired.

use std::io::Write;
use std::process::Stdio;

use super::{Fixture, expect_code, expect_complaint, text, until};
use crate::support::process::{Running, output, palisade};
use crate::support::{eventually, ports};

/// `palisade lock` ends with the exit code that a shell would report for its command, and the lock
/// is free at once.
#[test]
fn the_commands_exit_code_is_passed_on() {
    let fixture = Fixture::start();
    let file = fixture.path("no-program");
    std::fs::write(&file, "not for running").unwrap();
    for (script, code) in
        [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
    {
        expect_code(&output(&mut fixture.lock("k", &[], script)), code);
        assert_eq!(fixture.show("k")["held"], false, "after `{script}`");
    }
    let not_found = output(&mut fixture.palisade(&["lock", "k", "--", "no-such-command-anywhere"]));
    expect_complaint(&not_found, 127, "no-such-command-anywhere");
    let not_executable = output(&mut fixture.palisade(&["lock", "k", "--", file.to_str().unwrap()]));
    expect_complaint(&not_executable, 126, "no-program");
    expect_complaint(&output(&mut fixture.palisade(&["lock", "k", "--", "/"])), 126, "cannot run /");
    assert_eq!(fixture.show("k")["held"], false);
}

/// The command's environment has the key and the token; the command uses the standard input and
/// output of `palisade lock`.
#[test]
fn the_command_finds_its_key_and_token_in_its_environment() {
    let fixture = Fixture::start();
    let script = format!(
        "echo \"$PALISADE_KEY $PALISADE_TOKEN\"; touch running; {}; cat; echo done >&2",
        until(&fixture.path("go"))
    );
    let mut tokens = Vec::new();
    for owner in ["first", "second"] {
        for name in ["running", "go"] {
            let _ = std::fs::remove_file(fixture.path(name));
        }
        let mut command = fixture.lock("a key/ä", &["--owner", owner], &script);
        let mut running = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        fixture.wait_for_file("running");
        let view = fixture.show("a%20key%2F%C3%A4");
        assert_eq!(view["holder"]["owner"], owner);
        running.0.stdin.take().unwrap().write_all(b"from standard input\n").unwrap();
        std::fs::write(fixture.path("go"), "").unwrap();
        assert_eq!(running.exit_code(), 0);
        let said = std::io::read_to_string(running.0.stdout.take().unwrap()).unwrap();
        let token = view["holder"]["token"].as_u64().unwrap();
        assert_eq!(said, format!("a key/ä {token}\nfrom standard input\n"));
        assert_eq!(std::io::read_to_string(running.0.stderr.take().unwrap()).unwrap(), "done\n");
        tokens.push(token);
    }
    assert!(tokens[0] < tokens[1]);
}

/// Without `--owner` the holder is shown as this host and process, so that an operator can find it.
#[test]
fn the_holder_is_shown_as_its_host_and_process() {
    let fixture = Fixture::start();
    let running = fixture.start_lock("k", &[], &until(&fixture.path("go")));
    let owner = fixture.show("k")["holder"]["owner"].as_str().unwrap().to_string();
    assert!(owner.ends_with(&format!(":{}", running.0.id())), "{owner}");
    std::fs::write(fixture.path("go"), "").unwrap();
}

/// If the lock is not free in time, the exit code is 75, the command does not run, and the queue
/// position is given up.
#[test]
fn a_lock_that_is_not_free_in_time_is_75() {
    let fixture = Fixture::start();
    let _holder = fixture.start_lock("k", &["--owner", "the holder"], "sleep 1000");
    let at_once = output(&mut fixture.lock("k", &["--wait", "0s"], "touch ran"));
    expect_complaint(&at_once, 75, "the holder");
    let waited = output(&mut fixture.lock("k", &["--wait", "300ms"], "touch ran"));
    expect_complaint(&waited, 75, "the lock was not granted within 300 ms");
    assert_eq!(fixture.show("k")["queue"], serde_json::json!([]));
    assert!(!fixture.path("ran").exists());
}

/// An upgrade replaces the program's file while `palisade lock` waits: it still runs its command.
#[test]
fn a_replaced_program_runs_its_command() {
    let fixture = Fixture::start();
    let copy = fixture.path("palisade-copy");
    std::fs::copy(env!("CARGO_BIN_EXE_palisade"), &copy).unwrap();
    let mut holder = fixture.start_lock("k", &[], &until(&fixture.path("go")));
    let mut command = std::process::Command::new(&copy);
    let endpoints = fixture.cluster.endpoints().join(",");
    command.args(["lock", "k", "--wait", "5m", "--endpoints", &endpoints, "--", "true"]);
    let mut waiter = Running::start(&mut command);
    eventually("it waits", || (fixture.show("k")["queue"].as_array()?.len() == 1).then_some(()));
    std::fs::remove_file(&copy).unwrap();
    std::fs::write(fixture.path("go"), "").unwrap();
    assert_eq!((holder.exit_code(), waiter.exit_code()), (0, 0));
}

/// No node listens, or the node does not answer: both are 69, with the reason, and the command does
/// not run.
#[test]
fn an_unreachable_cluster_is_69() {
    let fixture = Fixture::start();
    let endpoints = format!("127.0.0.1:{}", ports::free(1)[0]);
    let mut refused = fixture.lock("k", &["--endpoints", &endpoints, "--wait", "0s"], "touch ran");
    let refused = Running::start(refused.stderr(Stdio::piped()));
    // At the same time, a cluster that is stopped (SIGSTOP).
    fixture.cluster.ids().into_iter().for_each(|id| fixture.cluster.freeze(id));
    let silent = output(&mut fixture.lock("k", &["--wait", "1s"], "touch ran"));
    fixture.cluster.ids().into_iter().for_each(|id| fixture.cluster.thaw(id));
    expect_complaint(&silent, 69, "no leader answered within 1000 ms");
    let mut refused = refused;
    assert_eq!(refused.exit_code(), 69);
    let complaint = std::io::read_to_string(refused.0.stderr.take().unwrap()).unwrap();
    assert!(complaint.contains(&endpoints), "the address that was tried is named: {complaint}");
    assert!(complaint.contains("within 1000 ms"), "--wait 0s does not take ten seconds: {complaint}");
    let url = format!("http://{endpoints}/");
    let arguments = ["--endpoints", &url, "--wait", "forever", "--connect-timeout", "300ms"];
    expect_complaint(&output(&mut fixture.lock("k", &arguments, "touch ran")), 69, "no leader answered within 300 ms");
    assert!(!fixture.path("ran").exists());
}

/// A command that already runs under the lock would wait for itself, however deep it is nested: 64
/// at once, also with a long wait. Another lock, or the same key in another cluster, is no reason
/// to refuse.
#[test]
fn a_command_that_would_wait_for_itself_is_64() {
    let fixture = Fixture::start();
    // A lock under itself.
    let program = env!("CARGO_BIN_EXE_palisade");
    let script = |key: &str| format!("{program} lock {key} --wait 5m -- touch ran");
    let nested = output(&mut fixture.lock("k", &[], &script("k")));
    expect_complaint(&nested, 64, "would wait for itself");
    let deep = output(&mut fixture.lock("k", &[], &format!("{program} lock l -- {}", script("k"))));
    expect_complaint(&deep, 64, "k: this command already runs under this lock");
    assert!(!fixture.path("ran").exists());
    let other = Fixture::start();
    let elsewhere = format!("{} --endpoints {} -- touch ran", "lock k --wait 5m", other.cluster.endpoints().join(","));
    expect_code(&output(&mut fixture.lock("k", &[], &format!("{program} {elsewhere}"))), 0);
    assert!(fixture.path("ran").exists());
    expect_code(&output(&mut fixture.lock("k", &[], &format!("{program} lock other -- touch other"))), 0);
    assert!(fixture.path("other").exists());
}

/// A command without `--` before it gets a hint.
#[test]
fn a_forgotten_separator_is_named() {
    for arguments in [&["lock", "k", "echo", "hi"] as &[&str], &["lock", "k", "-x", "echo"]] {
        let refused = output(palisade().args(arguments));
        expect_code(&refused, 2);
        let complaint = text(&refused.stderr);
        assert!(complaint.contains("write `--` before the command"), "{complaint}");
    }
    let other = output(palisade().args(["lock", "k", "--wiat", "1s", "--", "true"]));
    assert!(text(&other.stderr).contains("'--wait'") && !text(&other.stderr).contains("`--`"), "{other:?}");
}

/// Mistakes in the command line or the request are reported before anything runs.
#[test]
fn wrong_arguments_are_refused() {
    let fixture = Fixture::start();
    expect_code(&output(palisade().args(["lock"])), 2);
    expect_code(&output(palisade().args(["lock", "k", "--ttl", "soon", "--", "true"])), 2);
    expect_code(&output(palisade().args(["lock", "k", "--wait", "-1s", "--", "true"])), 2);
    let no_time = output(palisade().args(["lock", "k", "--connect-timeout", "0s", "--", "true"]));
    expect_code(&no_time, 2);
    assert!(text(&no_time.stderr).contains("no node can answer within 0s"), "{no_time:?}");
    expect_complaint(&output(palisade().args(["lock", "k", "--endpoints", "nowhere", "--", "true"])), 64, "nowhere");
    let long = "k".repeat(513);
    let refused: [(&[&str], &str); 4] = [
        (&["lock", "", "--", "touch", "ran"], "0 bytes"),
        (&["lock", &long, "--", "touch", "ran"], "513 bytes"),
        (&["lock", "k", "--ttl", "99ms", "--", "touch", "ran"], "ttl_ms is 99"),
        (&["lock", "k", "--ttl", "25h", "--", "touch", "ran"], "ttl_ms is 90000000"),
    ];
    for (arguments, reason) in refused {
        expect_complaint(&output(&mut fixture.palisade(arguments)), 65, reason);
    }
    assert!(!fixture.path("ran").exists());
}

/// Of many shells that acquire the same lock, one holds it at a time, and later holders have greater
/// tokens.
#[test]
fn two_commands_on_one_key_never_overlap() {
    let fixture = Fixture::start();
    // mkdir fails if the directory exists: that is, if another process holds the lock.
    let inside =
        "mkdir inside || { echo overlap >> order; exit 9; }; echo $PALISADE_TOKEN >> order; sleep 0.02; rmdir inside";
    let loops: Vec<Running> = (0..4)
        .map(|_| {
            // A lock under itself.
            let program = env!("CARGO_BIN_EXE_palisade");
            let each = format!("{program} lock k --wait 60s -- sh -c '{inside}' || exit 1");
            let mut shell = fixture.palisade(&[]);
            let environment: Vec<_> =
                shell.get_envs().filter_map(|(k, v)| Some((k.to_owned(), v?.to_owned()))).collect();
            shell = std::process::Command::new("sh");
            shell.current_dir(fixture.directory.path()).envs(environment);
            Running::start(shell.arg("-c").arg(format!("for i in 1 2 3 4 5; do {each}; done")))
        })
        .collect();
    for mut shell in loops {
        assert_eq!(shell.exit_code(), 0, "{}", fixture.read("order"));
    }
    let order = fixture.read("order");
    let tokens: Vec<u64> = order.lines().map(|line| line.parse().unwrap_or_else(|_| panic!("{order}"))).collect();
    assert_eq!(tokens.len(), 20);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// `--shared` lets commands run side by side, and `--permits` as many as there are permits for; a command
/// that needs the lock alone waits for them.
#[test]
fn commands_share_a_lock() {
    let fixture = Fixture::start();
    let script = until(&fixture.path("go"));
    let shared = [["--shared"], ["--shared"]];
    let mut running = Vec::new();
    for (number, flags) in shared.iter().enumerate() {
        let script = format!("touch reader-{number}; {script}");
        running.push(Running::start(fixture.lock("r", flags, &script).stderr(Stdio::piped())));
        fixture.wait_for_file(&format!("reader-{number}"));
    }
    for number in 0..2 {
        let script = format!("touch permits-{number}; {script}");
        running.push(Running::start(fixture.lock("s", &["--permits", "2/5"], &script).stderr(Stdio::piped())));
        fixture.wait_for_file(&format!("permits-{number}"));
    }
    let shown = |key: &str| -> String { text(&output(&mut fixture.palisade(&["show", key])).stdout) };
    assert!(shown("r").lines().filter(|line| line.ends_with(", shared")).count() == 2, "{}", shown("r"));
    assert!(shown("s").lines().filter(|line| line.ends_with(", 2 of 5 permits")).count() == 2, "{}", shown("s"));
    let locks = text(&output(&mut fixture.palisade(&["locks"])).stdout);
    assert_eq!(locks.lines().count(), 1 + 4, "a line for each holder: {locks}");

    expect_complaint(&output(&mut fixture.lock("r", &["--wait", "0s"], "exit 0")), 75, "the lock is held by");
    expect_complaint(
        &output(&mut fixture.lock("s", &["--permits", "2/5", "--wait", "50ms"], "exit 0")),
        75,
        "and by 1 others",
    );
    expect_code(&output(&mut fixture.lock("s", &["--permits", "1/5", "--wait", "0s"], "exit 0")), 0);
    expect_complaint(&output(&mut fixture.lock("s", &["--permits", "1/4"], "exit 0")), 65, "a semaphore of 5 permits");
    expect_complaint(&output(&mut fixture.lock("s", &["--permits", "6/5"], "exit 0")), 65, "permits is 6 of 5");
    expect_code(&output(&mut fixture.lock("s", &["--permits", "five"], "exit 0")), 2);
    expect_code(&output(&mut fixture.lock("s", &["--permits", "1/5", "--shared"], "exit 0")), 2);
    // A break names one of several grants.
    let force = ["unlock", "r", "--force", "--reason", "a test"];
    expect_complaint(&output(&mut fixture.palisade(&force)), 64, "2 sessions share the lock; name the grant to break");
    std::fs::write(fixture.path("go"), "").unwrap();
    for mut command in running {
        assert_eq!(command.exit_code(), 0);
    }
    expect_code(&output(&mut fixture.lock("r", &["--wait", "0s"], "exit 0")), 0);
}

/// Several keys are held together, and the environment has all of them.
#[test]
fn a_command_runs_under_several_locks() {
    let fixture = Fixture::start();
    let script = format!("echo \"$PALISADE_KEY\"; touch running; {}", until(&fixture.path("go")));
    let mut command = fixture.lock("b", &["a"], &script);
    let mut running = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    fixture.wait_for_file("running");
    let holders = ["a", "b"].map(|key| fixture.show(key)["holder"].clone());
    assert_eq!(holders[0]["token"], holders[1]["token"]);
    let refused = output(&mut fixture.lock("c", &["b", "--wait", "50ms"], "exit 0"));
    expect_complaint(&refused, 75, "c, b: the lock was not granted");
    assert!(text(&refused.stderr).contains("; b: the lock is held by"), "{}", text(&refused.stderr));
    assert_eq!((&fixture.show("c")["held"], &fixture.show("b")["queue"]), (&false.into(), &serde_json::json!([])));
    std::fs::write(fixture.path("go"), "").unwrap();
    assert_eq!(running.exit_code(), 0);
    assert_eq!(std::io::read_to_string(running.0.stdout.take().unwrap()).unwrap(), "a\nb\n");
    // A lock under itself.
    let program = env!("CARGO_BIN_EXE_palisade");
    let inner = format!("{program} lock c a -- true");
    expect_complaint(
        &output(&mut fixture.lock("b", &["a"], &inner)),
        64,
        "a: this command already runs under this lock",
    );
    expect_code(&output(&mut fixture.palisade(&["lock", "--", "true"])), 2);
    expect_complaint(&output(&mut fixture.lock("a", &["a"], "exit 0")), 65, "a key occurs twice");
}

/// Candidates of an election lead one after the other: the value of the leader is shown, the end of its
/// command resigns, and the next leader has a greater token.
#[test]
fn candidates_lead_one_after_the_other() {
    let fixture = Fixture::start();
    let candidate = |number: u32| {
        let script =
            format!("echo $PALISADE_TOKEN > leads-{number}; {}", until(&fixture.path(&format!("resign-{number}"))));
        let value = format!("host-{number}:80");
        let arguments = ["elect", "group", "--value", &value, "--", "sh", "-c", &script];
        Running::start(fixture.palisade(&arguments).stderr(Stdio::piped()))
    };
    let shown = || text(&output(&mut fixture.palisade(&["show", "group"])).stdout);
    let mut first = candidate(1);
    fixture.wait_for_file("leads-1");
    let mut second = candidate(2);
    eventually("the second waits", || (fixture.show("group")["queue"].as_array()?.len() == 1).then_some(()));
    assert!(shown().lines().any(|line| line == "  value    host-1:80"), "{}", shown());
    std::fs::write(fixture.path("resign-1"), "").unwrap();
    assert_eq!(first.exit_code(), 0);
    fixture.wait_for_file("leads-2");
    assert!(shown().lines().any(|line| line == "  value    host-2:80"), "{}", shown());
    let token = |number: u32| -> u64 { fixture.read(&format!("leads-{number}")).trim().parse().unwrap() };
    assert!(token(1) < token(2));
    let refused = output(&mut fixture.palisade(&["elect", "group", "--wait", "0s", "--", "true"]));
    expect_complaint(&refused, 75, "the lock is held by");
    std::fs::write(fixture.path("resign-2"), "").unwrap();
    assert_eq!(second.exit_code(), 0);
    let refused = output(&mut fixture.palisade(&["elect", "group", "true"]));
    expect_code(&refused, 2);
    assert!(text(&refused.stderr).contains("palisade elect NAME -- COMMAND"), "{}", text(&refused.stderr));
    let value = "v".repeat(4_097);
    let refused = output(&mut fixture.lock("k", &["--value", &value], "exit 0"));
    expect_complaint(&refused, 65, "the value has 4097 bytes; it may have 4096");
}

/// A command does not join a queue that is longer than it accepts.
#[test]
fn a_command_waits_in_a_short_queue_only() {
    let fixture = Fixture::start();
    let mut holder = fixture.start_lock("k", &[], &until(&fixture.path("go")));
    expect_complaint(&output(&mut fixture.lock("k", &["--max-queue", "0"], "exit 0")), 75, "no session waits for it");
    std::fs::write(fixture.path("go"), "").unwrap();
    assert_eq!(holder.exit_code(), 0);
    expect_code(&output(&mut fixture.lock("k", &["--max-queue", "0"], "exit 0")), 0);
}
