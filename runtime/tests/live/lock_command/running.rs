//! `palisade lock`: its command runs under the lock, or the lock cannot be acquired.

use std::io::Write;
use std::process::Stdio;

use super::{Stage, expect_code, expect_complaint, text, until};
use crate::support::process::{Running, output, palisade};
use crate::support::{eventually, ports};

/// `palisade lock` ends with the exit code that a shell would report for its command, and the lock
/// is free at once.
#[test]
fn the_commands_exit_code_is_passed_on() {
    let stage = Stage::set();
    let file = stage.path("no-program");
    std::fs::write(&file, "not for running").unwrap();
    for (script, code) in
        [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
    {
        expect_code(&output(&mut stage.lock("k", &[], script)), code);
        assert_eq!(stage.show("k")["held"], false, "after `{script}`");
    }
    let not_found = output(&mut stage.palisade(&["lock", "k", "--", "no-such-command-anywhere"]));
    expect_complaint(&not_found, 127, "no-such-command-anywhere");
    let not_executable = output(&mut stage.palisade(&["lock", "k", "--", file.to_str().unwrap()]));
    expect_complaint(&not_executable, 126, "no-program");
    expect_complaint(&output(&mut stage.palisade(&["lock", "k", "--", "/"])), 126, "cannot run /");
    assert_eq!(stage.show("k")["held"], false);
}

/// The command's environment has the key and the token; the command uses the standard input and
/// output of `palisade lock`.
#[test]
fn the_command_finds_its_key_and_token_in_its_environment() {
    let stage = Stage::set();
    let script = format!(
        "echo \"$PALISADE_KEY $PALISADE_TOKEN\"; touch running; {}; cat; echo done >&2",
        until(&stage.path("go"))
    );
    let mut tokens = Vec::new();
    for owner in ["first", "second"] {
        for name in ["running", "go"] {
            let _ = std::fs::remove_file(stage.path(name));
        }
        let mut command = stage.lock("a key/ä", &["--owner", owner], &script);
        let mut running = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        stage.wait_for_file("running");
        let view = stage.show("a%20key%2F%C3%A4");
        assert_eq!(view["holder"]["owner"], owner);
        running.0.stdin.take().unwrap().write_all(b"from standard input\n").unwrap();
        std::fs::write(stage.path("go"), "").unwrap();
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
    let stage = Stage::set();
    let running = stage.start_lock("k", &[], &until(&stage.path("go")));
    let owner = stage.show("k")["holder"]["owner"].as_str().unwrap().to_string();
    assert!(owner.ends_with(&format!(":{}", running.0.id())), "{owner}");
    std::fs::write(stage.path("go"), "").unwrap();
}

/// If the lock is not free in time, the exit code is 75, the command does not run, and the queue
/// position is given up.
#[test]
fn a_lock_that_is_not_free_in_time_is_75() {
    let stage = Stage::set();
    let _holder = stage.start_lock("k", &["--owner", "the holder"], "sleep 1000");
    let at_once = output(&mut stage.lock("k", &["--wait", "0s"], "touch ran"));
    expect_complaint(&at_once, 75, "the holder");
    let waited = output(&mut stage.lock("k", &["--wait", "300ms"], "touch ran"));
    expect_complaint(&waited, 75, "the lock was not granted within");
    assert_eq!(stage.show("k")["queue"], serde_json::json!([]));
    assert!(!stage.path("ran").exists());
}

/// An upgrade replaces the program's file while `palisade lock` waits: it still runs its command.
#[test]
fn a_replaced_program_runs_its_command() {
    let stage = Stage::set();
    let copy = stage.path("palisade-copy");
    std::fs::copy(env!("CARGO_BIN_EXE_palisade"), &copy).unwrap();
    let mut holder = stage.start_lock("k", &[], &until(&stage.path("go")));
    let mut command = std::process::Command::new(&copy);
    let endpoints = stage.cluster.endpoints().join(",");
    command.args(["lock", "k", "--wait", "5m", "--endpoints", &endpoints, "--", "true"]);
    let mut waiter = Running::start(&mut command);
    eventually("it waits", || (stage.show("k")["queue"].as_array()?.len() == 1).then_some(()));
    std::fs::remove_file(&copy).unwrap();
    std::fs::write(stage.path("go"), "").unwrap();
    assert_eq!((holder.exit_code(), waiter.exit_code()), (0, 0));
}

/// No node listens, or the node does not answer: both are 69, with the reason, and the command does
/// not run.
#[test]
fn an_unreachable_cluster_is_69() {
    let stage = Stage::set();
    let endpoints = format!("127.0.0.1:{}", ports::free(1)[0]);
    let mut refused = stage.lock("k", &["--endpoints", &endpoints, "--wait", "0s"], "touch ran");
    let refused = Running::start(refused.stderr(Stdio::piped()));
    // At the same time, a cluster that is stopped (SIGSTOP).
    stage.cluster.ids().into_iter().for_each(|id| stage.cluster.freeze(id));
    let silent = output(&mut stage.lock("k", &["--wait", "1s"], "touch ran"));
    stage.cluster.ids().into_iter().for_each(|id| stage.cluster.thaw(id));
    expect_complaint(&silent, 69, "no leader answered within 1000 ms");
    let mut refused = refused;
    assert_eq!(refused.exit_code(), 69);
    let complaint = std::io::read_to_string(refused.0.stderr.take().unwrap()).unwrap();
    assert!(complaint.contains(&endpoints), "the address that was tried is named: {complaint}");
    assert!(complaint.contains("within 1000 ms"), "--wait 0s does not take ten seconds: {complaint}");
    let url = format!("http://{endpoints}/");
    let words = ["--endpoints", &url, "--wait", "forever", "--connect-timeout", "300ms"];
    expect_complaint(&output(&mut stage.lock("k", &words, "touch ran")), 69, "no leader answered within 300 ms");
    assert!(!stage.path("ran").exists());
}

/// A command that already runs under the lock would wait for itself, however deep it is nested: 64
/// at once, also with a long wait. Another lock, or the same key in another cluster, is no reason
/// to refuse.
#[test]
fn a_command_that_would_wait_for_itself_is_64() {
    let stage = Stage::set();
    let program = env!("CARGO_BIN_EXE_palisade");
    let script = |key: &str| format!("{program} lock {key} --wait 5m -- touch ran");
    let nested = output(&mut stage.lock("k", &[], &script("k")));
    expect_complaint(&nested, 64, "would wait for itself");
    let deep = output(&mut stage.lock("k", &[], &format!("{program} lock l -- {}", script("k"))));
    expect_complaint(&deep, 64, "k: this command already runs under this lock");
    assert!(!stage.path("ran").exists());
    let other = Stage::set();
    let elsewhere = format!("{} --endpoints {} -- touch ran", "lock k --wait 5m", other.cluster.endpoints().join(","));
    expect_code(&output(&mut stage.lock("k", &[], &format!("{program} {elsewhere}"))), 0);
    assert!(stage.path("ran").exists());
    expect_code(&output(&mut stage.lock("k", &[], &format!("{program} lock other -- touch other"))), 0);
    assert!(stage.path("other").exists());
}

/// A command without `--` before it gets a hint.
#[test]
fn a_forgotten_separator_is_named() {
    for words in [&["lock", "k", "echo", "hi"] as &[&str], &["lock", "k", "-x", "echo"]] {
        let refused = output(palisade().args(words));
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
    let stage = Stage::set();
    expect_code(&output(palisade().args(["lock", "k"])), 2);
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
    for (words, reason) in refused {
        expect_complaint(&output(&mut stage.palisade(words)), 65, reason);
    }
    assert!(!stage.path("ran").exists());
}

/// Of many shells that acquire the same lock, one holds it at a time, and later holders have greater
/// tokens.
#[test]
fn two_commands_on_one_key_never_overlap() {
    let stage = Stage::set();
    // mkdir fails if the directory exists: that is, if another process holds the lock.
    let inside =
        "mkdir inside || { echo overlap >> order; exit 9; }; echo $PALISADE_TOKEN >> order; sleep 0.02; rmdir inside";
    let loops: Vec<Running> = (0..4)
        .map(|_| {
            let program = env!("CARGO_BIN_EXE_palisade");
            let each = format!("{program} lock k --wait 60s -- sh -c '{inside}' || exit 1");
            let mut shell = stage.palisade(&[]);
            let environment: Vec<_> =
                shell.get_envs().filter_map(|(k, v)| Some((k.to_owned(), v?.to_owned()))).collect();
            shell = std::process::Command::new("sh");
            shell.current_dir(stage.directory.path()).envs(environment);
            Running::start(shell.arg("-c").arg(format!("for i in 1 2 3 4 5; do {each}; done")))
        })
        .collect();
    for mut shell in loops {
        assert_eq!(shell.exit_code(), 0, "{}", stage.read("order"));
    }
    let order = stage.read("order");
    let tokens: Vec<u64> = order.lines().map(|line| line.parse().unwrap_or_else(|_| panic!("{order}"))).collect();
    assert_eq!(tokens.len(), 20);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}
