//! Commands for shell scripts: a lock without a command, `--no-wait`, `--shell`, and leases that a
//! script manages itself.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use super::{Fixture, expect_code, expect_complaint, text};
use crate::support::eventually;
use crate::support::process::{Running, output, palisade};

/// A TTL longer than any test: with it, a lock passes on by a release only.
const LONG: [&str; 2] = ["--ttl", "10m"];

fn said(fixture: &Fixture, arguments: &[&str]) -> String {
    let output = output(&mut fixture.palisade(arguments));
    expect_code(&output, 0);
    text(&output.stdout)
}

/// Starts `palisade lock k` without a command, and waits until it holds the lock.
fn hold(fixture: &Fixture) -> Running {
    hold_by(fixture, "lock")
}

/// The same with `lock` or `hold`.
fn hold_by(fixture: &Fixture, command: &str) -> Running {
    let holder = Running::start(fixture.palisade(&[&[command, "k"][..], &LONG].concat()).stderr(Stdio::piped()));
    eventually("the lock is held", || (fixture.show("k")["held"] == true).then_some(()));
    holder
}

/// Goal: without a command the lock is held until a signal, and is free when the program ends; standard
/// error says what is held. `palisade hold` does the same.
#[test]
fn lock_without_a_command_holds_until_a_signal() {
    let fixture = Fixture::start();
    for (command, signal) in
        [("lock", Signal::INT), ("lock", Signal::TERM), ("hold", Signal::INT), ("hold", Signal::TERM)]
    {
        let mut holder = hold_by(&fixture, command);
        let token = fixture.show("k")["holder"]["token"].clone();
        holder.signal(signal);
        assert_eq!(holder.exit_code(), 0);
        assert_eq!(fixture.show("k")["held"], false);
        let said = std::io::read_to_string(holder.0.stderr.take().unwrap()).unwrap();
        assert_eq!(said, format!("palisade: k: holding the lock with token {token} until Ctrl-C or SIGTERM\n"));
    }
}

/// Goal: a holder without a command ends with 76 when an operator takes its lock.
#[test]
fn lock_without_a_command_ends_when_it_is_lost() {
    let fixture = Fixture::start();
    for command in ["lock", "hold"] {
        let mut holder = hold_by(&fixture, command);
        fixture.break_lock("k");
        assert_eq!(holder.exit_code(), 76);
        let said = std::io::read_to_string(holder.0.stderr.take().unwrap()).unwrap();
        assert!(said.lines().last().unwrap().contains("is lost"), "{said}");
    }
}

/// Goal: `palisade hold` holds several locks together, waits for them as `palisade lock` does, and runs no command.
#[test]
fn hold_takes_several_keys_and_no_command() {
    let fixture = Fixture::start();
    let mut holder = Running::start(&mut fixture.palisade(&[&["hold", "a", "--key", "b"][..], &LONG].concat()));
    eventually("the locks are held", || (fixture.show("b")["held"] == true).then_some(()));
    assert_eq!(fixture.show("a")["holder"]["token"], fixture.show("b")["holder"]["token"]);
    expect_complaint(&output(&mut fixture.palisade(&["hold", "b", "-n"])), 75, "held by");
    holder.signal(Signal::TERM);
    assert_eq!(holder.exit_code(), 0);
    assert_eq!([&fixture.show("a")["held"], &fixture.show("b")["held"]], [false, false]);
    expect_complaint(&output(palisade().args(["hold", "k", "--", "true"])), 2, "`palisade hold` runs no command");
}

/// Goal: `palisade hold` takes no command for a key, and holds nothing then: neither a path that names a program, whether the
/// program exists or not, nor the name of an executable file. Behind `--key` it is a key.
#[test]
fn hold_refuses_a_command_among_its_keys() {
    let fixture = Fixture::start();
    let program = fixture.path("backup.sh");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    std::fs::write(fixture.path("report"), "no program").unwrap();
    for word in ["./backup.sh", "backup.sh", "./missing.sh", "../missing.sh", program.to_str().unwrap()] {
        let refused = output(&mut fixture.palisade(&["hold", "nightly", word]));
        expect_complaint(&refused, 2, &format!("write palisade lock nightly -- {word}; "));
    }
    let several = output(&mut fixture.palisade(&["hold", "nightly", "report", "./backup.sh", "now"]));
    expect_complaint(&several, 2, "write palisade lock nightly --key report -- ./backup.sh now; ");
    let named = output(&mut fixture.palisade(&["hold", "--key", "nightly", "report", "./backup.sh"]));
    expect_complaint(&named, 2, "write palisade lock report --key nightly -- ./backup.sh; ");
    let only_named = output(&mut fixture.palisade(&["hold", "--key", "nightly", "./backup.sh"]));
    expect_complaint(&only_named, 2, "write palisade lock nightly -- ./backup.sh; ");
    let option = output(palisade().args(["hold", "nightly", "rsync", "--archive"]));
    assert!(
        option.status.code() == Some(2) && text(&option.stderr).contains("palisade lock KEY -- COMMAND"),
        "{option:?}"
    );
    assert_eq!(fixture.show("nightly")["held"], false);

    let arguments = ["hold", "report", "jobs/report", "--key", "backup.sh", "--key", "./backup.sh"];
    let mut holder = Running::start(&mut fixture.palisade(&[&arguments[..], &LONG].concat()));
    eventually("the locks are held", || (fixture.show("report")["held"] == true).then_some(()));
    assert_eq!(fixture.show("backup.sh")["holders"][0]["keys"].as_array().unwrap().len(), 4);
    holder.signal(Signal::TERM);
    assert_eq!(holder.exit_code(), 0);
}

/// Goal: a command line whose command is empty or not after `--` holds no lock instead.
#[test]
fn forgotten_command_does_not_hold_the_lock() {
    let nothing = output(palisade().args(["lock", "k", "--"]));
    expect_complaint(&nothing, 2, "there is no command after `--`");
    for arguments in [["lock", "k", "date"].as_slice(), &["lock", "--key", "k", "date"]] {
        expect_complaint(&output(palisade().args(arguments)), 2, "write `--` before the command");
    }
}

/// Goal: `-n` tries once, and `-c` runs a line of shell under the lock and passes its exit code on.
#[test]
fn shell_line_runs_under_the_lock_without_waiting() {
    let fixture = Fixture::start();
    let shell = output(&mut fixture.palisade(&["lock", "k", "-n", "-c", "echo $PALISADE_KEY | tr k K; exit 3"]));
    expect_code(&shell, 3);
    assert_eq!(text(&shell.stdout), "K\n");
    let holder = hold(&fixture);
    let refused = output(&mut fixture.palisade(&["lock", "k", "-n", "-c", "touch ran"]));
    expect_complaint(&refused, 75, "held by");
    expect_code(&output(&mut fixture.palisade(&["acquire", "k", "--no-wait"])), 75);
    assert!(!fixture.path("ran").exists());
    let both = output(&mut fixture.palisade(&["lock", "k", "-n", "--wait", "1s"]));
    expect_code(&both, 2);
    drop(holder);
}

/// Goal: a lock that a script acquires outlives the program that acquired it, is shown and renewed by its
/// session, and released by its token.
#[test]
fn script_acquires_renews_and_releases() {
    let fixture = Fixture::start();
    let line = said(&fixture, &[&["acquire", "k", "--owner", "a script"][..], &LONG].concat());
    let (token, session) = line.trim().split_once(' ').unwrap();
    let held = fixture.show("k");
    assert_eq!((&held["holder"]["owner"], held["holder"]["token"].to_string()), (&"a script".into(), token.to_owned()));
    let shown: Value = serde_json::from_str(&said(&fixture, &["session", "show", session, "--json"])).unwrap();
    assert_eq!((&shown["keys"][0], &shown["ttl_ms"]), (&"k".into(), &600_000.into()));
    assert_eq!(said(&fixture, &["session", "renew", session]), "");
    let wrong = output(&mut fixture.palisade(&["release", "k", "--session", session, "--token", "999"]));
    expect_complaint(&wrong, 76, "k: ");
    assert_eq!(fixture.show("k")["held"], true);
    assert_eq!(said(&fixture, &["release", "k", "--session", session, "--token", token]), "");
    assert_eq!(fixture.show("k")["held"], false);
    let again = output(&mut fixture.palisade(&["release", "k", "--session", session, "--token", token]));
    expect_code(&again, 76);
}

/// Goal: a script whose token could not be written holds no lock, and learns of it; so does one that reads too little.
#[test]
fn lock_whose_token_cannot_be_written_is_released() {
    let fixture = Fixture::start();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for form in [&[][..], &["--json"], &["--export"]] {
        let arguments = [&["acquire", "k"][..], &LONG, form].concat();
        let unread = output(fixture.palisade(&arguments).stdout(full()));
        expect_code(&unread, 74);
        let said = text(&unread.stderr);
        assert!(said.contains("cannot write to standard output") && said.contains("releasing the lock"), "{said}");
        assert_eq!(fixture.show("k")["held"], false, "{form:?}");
    }
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let unread = output(fixture.palisade(&[&["acquire", "k"][..], &LONG].concat()).stdout(closed));
    expect_complaint(&unread, 74, "releasing the lock");
    assert_eq!(fixture.show("k")["held"], false, "no program has read the token");
    for arguments in [&["locks"][..], &["show", "k", "--json"], &["status"], &["completions", "bash"]] {
        let unread = output(fixture.palisade(arguments).stdout(full()));
        expect_complaint(&unread, 74, "cannot write to standard output");
    }
}

/// Goal: `palisade watch` ends when the reader of its output has closed it, without waiting for another event.
#[test]
fn watch_ends_when_its_output_is_closed() {
    let fixture = Fixture::start();
    let mut watch = Running::start(fixture.palisade(&["watch", "k"]).stdout(Stdio::piped()));
    let mut output = std::io::BufReader::new(watch.0.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert!(line.contains("listed") && watch.runs(), "{line}");
    drop(output);
    assert_eq!(watch.exit_code(), 0);
}

/// Goal: `--key` means what KEY means, alone and beside it, for each command of a lock.
#[test]
fn keys_come_also_with_an_option() {
    let fixture = Fixture::start();
    for arguments in [["--key", "a", "--key", "b"].as_slice(), &["a", "--key", "b"], &["--key=b", "a"]] {
        let script = ["--", "sh", "-c", "echo $PALISADE_KEY"];
        assert_eq!(said(&fixture, &[&["lock"], arguments, &script].concat()), "a b\n");
        let line = said(&fixture, &[&["acquire"], arguments, &LONG].concat());
        let (token, session) = line.trim().split_once(' ').unwrap();
        assert_eq!([&fixture.show("a")["held"], &fixture.show("b")["held"]], [true, true]);
        said(&fixture, &[&["release", "--session", session, "--token", token], arguments].concat());
        assert_eq!([&fixture.show("a")["held"], &fixture.show("b")["held"]], [false, false]);
    }
    // Several keys of the option cannot be a command without `--`.
    let mut holder =
        Running::start(&mut fixture.palisade(&[&["lock", "--key", "a", "--key", "b"][..], &LONG].concat()));
    eventually("the locks are held", || (fixture.show("b")["held"] == true).then_some(()));
    holder.signal(Signal::INT);
    assert_eq!(holder.exit_code(), 0);
    let none = output(palisade().args(["lock", "--", "true"]));
    assert!(none.status.code() == Some(2) && text(&none.stderr).contains("--key <KEY>"), "{none:?}");
}

/// Goal: a user who writes `--key` for the key of a certificate learns how that option is named, and takes no lock.
#[test]
fn key_of_a_certificate_is_no_lock() {
    let arguments = ["--ca", "ca.pem", "--cert", "c.pem", "--key", "c-key.pem"];
    for command in [&["lock", "k"][..], &["hold", "k"], &["acquire", "k"], &["release", "k"], &["status"]] {
        let refused = output(palisade().args(command).args(arguments).env_remove("PALISADE_CERT_KEY"));
        assert_eq!(refused.status.code(), Some(2), "{command:?}");
        assert!(text(&refused.stderr).contains("key of --cert by `--cert-key`"), "{}", text(&refused.stderr));
    }
}

/// Goal: a shell evaluates `--export`, and the commands that follow find session and token in the
/// environment; several keys are one grant; a closed session is lost, and to close it again is no error.
#[test]
fn exported_variables_serve_the_commands_that_follow() {
    let fixture = Fixture::start();
    let program = palisade().get_program().to_str().unwrap().to_owned();
    let script = format!(
        "set -e; eval \"$('{program}' acquire a b --ttl 10m --export)\"; '{program}' session renew; '{program}' show b --json; \
         '{program}' release a b; '{program}' session close; '{program}' session close; '{program}' session renew"
    );
    let mut shell = fixture.palisade(&[]);
    let variables: Vec<_> =
        shell.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
    shell = std::process::Command::new("sh");
    for (name, value) in variables {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let done = output(shell.args(["-c", &script]).current_dir(fixture.directory.path()));
    expect_code(&done, 76);
    let shown: Value = serde_json::from_str(text(&done.stdout).trim()).unwrap();
    assert_eq!(shown["holders"][0]["keys"], serde_json::json!(["a", "b"]));
    assert_eq!([&fixture.show("a")["held"], &fixture.show("b")["held"]], [false, false]);
    let grant: Value = serde_json::from_str(&said(&fixture, &["acquire", "s", "--shared", "--json"])).unwrap();
    assert_eq!((&grant["key"], &grant["ttl_ms"]), (&"s".into(), &30_000.into()));
    assert!(grant["token"].is_u64() && grant["session"].is_string(), "{grant}");
    // A client without the session's secret cannot renew it, and is answered as if the session had ended.
    let other = "00000000-0000-0000-0000-000000000000";
    expect_code(&output(&mut fixture.palisade(&["session", "renew", other])), 76);
}
