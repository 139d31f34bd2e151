//! Signals to `palisade lock` and to its terminal's process group, and SIGKILL, which no process can
//! handle.

use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use super::heartbeat::{beat, beats, now};
use super::{Fixture, until};
use crate::support::process::{Running, lives, palisade};
use crate::support::terminal::Terminal;
use crate::support::{eventually, metrics};

/// A TTL longer than any test: with it, a lock passes on by a release only.
const LONG: [&str; 2] = ["--ttl", "10m"];

/// Starts a second `palisade lock` on the key, and waits until it is in the queue.
fn next_waiter(fixture: &Fixture, key: &str) -> Running {
    let script = format!("touch {key}.next");
    let waiter = Running::start(&mut fixture.lock(key, &["--wait", "5m"], &script));
    eventually("it waits", || (fixture.show(key)["queue"].as_array()?.len() == 1).then_some(()));
    waiter
}

/// Fills a pipe, which has room for 64 KiB: a process that writes more waits for a reader.
fn fill(pipe: &mut std::io::PipeWriter) {
    rustix::io::ioctl_fionbio(&*pipe, true).unwrap();
    while std::io::Write::write(pipe, &[b'x'; 1024]).is_ok() {}
    rustix::io::ioctl_fionbio(&*pipe, false).unwrap();
}

/// Starts a shell that leads a session with a terminal of its own. At Ctrl-C, bash lets its command end first, and then
/// ends by SIGINT only if the command has died of it.
fn on_a_terminal(fixture: &Fixture, script: &str) -> (Terminal, Running) {
    let (terminal, program) = Terminal::open();
    let mut shell = Command::new("setsid");
    shell
        .args(["--ctty", "bash", "-c", script])
        .current_dir(fixture.directory.path())
        .env("PALISADE", palisade().get_program())
        .env("PALISADE_ENDPOINTS", fixture.cluster.endpoints().join(","))
        .stdin(program.try_clone().unwrap())
        .stdout(program.try_clone().unwrap())
        .stderr(program);
    (terminal, Running::start(&mut shell))
}

/// `palisade lock` forwards every signal that would end a process and can be handled (docs/lock-command.md) to its command,
/// and releases the lock as soon as the command has ended.
#[test]
fn a_signal_stops_the_command_and_releases_at_once() {
    let fixture = Fixture::start();
    for signal in [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::VTALARM,
        Signal::PROF,
        Signal::IO,
        Signal::XCPU,
        Signal::XFSZ,
        Signal::POWER,
        Signal::STKFLT,
    ] {
        let key = format!("signal-{}", signal.as_raw());
        // Some of them would leave a core dump.
        let mut holder = fixture.start_lock(&key, &LONG, "ulimit -c 0; exec sleep 1000");
        let mut next = next_waiter(&fixture, &key);
        holder.signal(signal);
        let status = holder.wait();
        // A shell whose command dies of SIGINT ends its script.
        let (code, signalled) = match signal {
            Signal::INT => (None, Some(signal.as_raw())),
            _ => (Some(128 + signal.as_raw()), None),
        };
        assert_eq!((status.code(), status.signal()), (code, signalled), "the command ended by that very signal");
        assert!(!lives(fixture.command_pid(&key)));
        assert_eq!(next.exit_code(), 0);
        assert!(fixture.path(&format!("{key}.next")).exists());
    }
}

/// Ctrl-C in a terminal goes to the whole process group. The command receives it once, may clean
/// up, and only then the lock is released.
#[test]
fn ctrl_c_lets_the_command_clean_up_before_the_release() {
    let fixture = Fixture::start();
    let tidy = format!(
        "trap 'echo int >> heard; {}; echo tidy >> heard; exit 5' INT; touch k.started",
        until(&fixture.path("go"))
    );
    let script = format!("{tidy}; while :; do sleep 0.02; done");
    let mut command = fixture.lock("k", &LONG, &script);
    let mut holder = Running::start(command.process_group(0));
    fixture.wait_for_file("k.started");
    let mut next = next_waiter(&fixture, "k");
    kill_process_group(holder.pid(), Signal::INT).unwrap();
    eventually("the command hears of it", || (fixture.read("heard") == "int\n").then_some(()));
    // While the command cleans up, it holds the lock.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(holder.runs() && next.runs());
    assert_eq!(fixture.show("k")["queue"].as_array().unwrap().len(), 1);
    std::fs::write(fixture.path("go"), "").unwrap();
    assert_eq!(holder.exit_code(), 5);
    assert_eq!(fixture.read("heard"), "int\ntidy\n");
    assert_eq!(next.exit_code(), 0);
}

/// Ctrl-C at the terminal of a command ends the script around it, as it does if the command is not under a lock: the lock
/// is released, and then `palisade lock` and its shell die of SIGINT.
#[test]
fn ctrl_c_ends_the_script_around_the_command() {
    let fixture = Fixture::start();
    // The command starts when its process group is in the foreground of the terminal.
    let script = r#""$PALISADE" lock k --ttl 10m -- sh -c '
        until [ "$(cut -d" " -f8 /proc/$$/stat)" = $$ ]; do sleep 0.01; done; touch started; exec sleep 1000'
        touch went-on"#;
    let (mut terminal, mut shell) = on_a_terminal(&fixture, script);
    fixture.wait_for_file("started");
    terminal.press("\x03");
    assert_eq!(shell.wait().signal(), Some(Signal::INT.as_raw()));
    assert_eq!(fixture.show("k")["held"], false);
    assert!(!fixture.path("went-on").exists());
}

/// Ctrl-C while `palisade lock` waits ends the script around it, too, and one whose command has no terminal.
#[test]
fn ctrl_c_ends_the_script_around_a_wait() {
    let fixture = Fixture::start();
    let _holder = fixture.start_lock("k", &LONG, "exec sleep 1000");
    let (mut terminal, mut shell) = on_a_terminal(&fixture, r#""$PALISADE" lock k -- true; touch went-on"#);
    eventually("it waits", || (fixture.show("k")["queue"].as_array()?.len() == 1).then_some(()));
    terminal.press("\x03");
    assert_eq!(shell.wait().signal(), Some(Signal::INT.as_raw()));
    eventually("the queue is empty", || (fixture.show("k")["queue"].as_array()?.is_empty()).then_some(()));
    let script =
        r#""$PALISADE" lock other --ttl 10m -- sh -c 'touch runs; exec sleep 1000' < /dev/null; touch went-on"#;
    let (mut terminal, mut shell) = on_a_terminal(&fixture, script);
    fixture.wait_for_file("runs");
    terminal.press("\x03");
    assert_eq!(shell.wait().signal(), Some(Signal::INT.as_raw()));
    assert_eq!(fixture.show("other")["held"], false);
    assert!(!fixture.path("went-on").exists());
}

/// A `palisade lock` that is stopped while it waits leaves the queue at once, and its command never
/// runs.
#[test]
fn a_signal_ends_a_wait() {
    let fixture = Fixture::start();
    let _holder = fixture.start_lock("k", &LONG, "exec sleep 1000");
    for (signal, code) in [(Signal::INT, None), (Signal::TERM, Some(143)), (Signal::KILL, None)] {
        let mut waiter = next_waiter(&fixture, "k");
        waiter.signal(signal);
        let status = waiter.wait();
        assert_eq!((status.code(), status.signal()), (code, code.is_none().then_some(signal.as_raw())));
        eventually("the queue is empty", || (fixture.show("k")["queue"].as_array()?.is_empty()).then_some(()));
    }
    assert!(!fixture.path("k.next").exists());
}

/// SIGKILL gives `palisade lock` no time for anything. The command and all that it started die all
/// the same, at once; then the watchdog gives the lock back, long before the TTL ends, and not
/// before the last of them is dead.
#[test]
fn kill_9_takes_everything_along() {
    let fixture = Fixture::start();
    let child = |name: &str| format!("(trap '' TERM INT HUP; {}) &", beat(name));
    let script =
        format!("trap '' TERM INT HUP; {} {} touch k.family; sleep 1000", child("son.beats"), child("daughter.beats"));
    let mut lock = fixture.lock("k", &LONG, &script);
    let mut holder = Running::start(lock.stderr(Stdio::piped()));
    fixture.wait_for_file("k.family");
    let mut next = fixture.lock("k", &["--wait", "5m"], &format!("{} & sleep 0.1; kill $!", beat("next.beats")));
    let mut next = Running::start(&mut next);
    eventually("the next session waits", || (fixture.show("k")["queue"].as_array()?.len() == 1).then_some(()));
    holder.signal(Signal::KILL);
    holder.wait();
    // The next holder, too, which ends by itself when it has got the lock.
    eventually("everything is dead", || fixture.processes().is_empty().then_some(()));
    assert_eq!(next.exit_code(), 0);
    let complaint = std::io::read_to_string(holder.0.stderr.take().unwrap()).unwrap();
    assert!(
        complaint.starts_with("palisade: k: killed the command (SIGKILL): `palisade lock` was killed"),
        "{complaint}"
    );
    let first = *beats(&fixture, "next.beats").first().unwrap();
    for file in ["son.beats", "daughter.beats"] {
        let last = *beats(&fixture, file).last().unwrap();
        assert!(last <= first, "{file}: alive at {last:?}, the next holder began at {first:?}");
    }
}

/// The watchdog closes the session of its own holder only: a lock that another session has got
/// meanwhile is not released.
#[test]
fn kill_9_releases_no_other_sessions_lock() {
    let fixture = Fixture::start();
    let mut holder = fixture.start_lock("k", &LONG, "exec sleep 1000");
    // Stopped, it learns nothing of the break.
    holder.signal(Signal::STOP);
    fixture.break_lock("k");
    std::fs::remove_file(fixture.path("k.started")).unwrap();
    let other = fixture.start_lock("k", &["--owner", "other"], "exec sleep 1000");
    holder.signal(Signal::KILL);
    holder.wait();
    eventually("the first command is dead, and its watchdog has ended", || {
        (fixture.processes().len() == 3).then_some(())
    });
    assert_eq!(fixture.show("k")["holder"]["owner"], "other");
    drop(other);
}

/// A stopped `palisade lock` (SIGSTOP) renews nothing and watches nothing. Its watchdog does: before
/// the TTL is over, the command and all that it started are dead, and the watchdog has given the lock back.
/// When `palisade lock` resumes, it reports what happened.
#[test]
fn a_stopped_palisade_lock_ends_the_command_before_its_ttl() {
    let fixture = Fixture::start();
    let ttl = std::time::Duration::from_secs(3);
    let son = format!("(trap '' TERM; {}) &", beat("son.beats"));
    let script = format!("trap '' TERM; {son} {}", beat("own.beats"));
    let mut holder = fixture.start_lock("k", &["--ttl", "3s"], &script);
    eventually("it beats", || (!beats(&fixture, "son.beats").is_empty()).then_some(()));
    holder.signal(Signal::STOP);
    let stopped = now();
    eventually("the lock passed on", || (fixture.show("k")["held"] == false).then_some(()));
    let free = now();
    let leader = fixture.cluster.client_addr(fixture.cluster.wait_ready());
    assert_eq!(metrics::value(&leader, "palisade_sessions_expired_total"), 0.0, "no session had to expire");
    for file in ["own.beats", "son.beats"] {
        let last = *beats(&fixture, file).last().unwrap();
        assert!(last < stopped + ttl, "{file}: alive {:?} after the stop", last - stopped);
        assert!(last < free);
    }
    holder.signal(Signal::CONT);
    assert_eq!(holder.exit_code(), 76);
    eventually("nothing is left", || fixture.processes().is_empty().then_some(()));
}

/// The command is dead in time although no process reads the standard error of `palisade lock` and
/// its watchdog: it is a full pipe, or closed.
#[test]
fn full_or_closed_stderr_delays_nothing() {
    for closed in [false, true] {
        let fixture = Fixture::start();
        let ttl = std::time::Duration::from_secs(3);
        let script = format!("trap '' TERM; (trap '' TERM; {}) & {}", beat("son.beats"), beat("own.beats"));
        let (reader, writer) = std::io::pipe().unwrap();
        let mut full = writer.try_clone().unwrap();
        let mut lock = fixture.lock("k", &["--ttl", "3s"], &script);
        let mut holder = Running::start(lock.stderr(writer));
        drop(lock);
        eventually("it beats", || (!beats(&fixture, "son.beats").is_empty()).then_some(()));
        if closed {
            drop((reader, full));
        } else {
            fill(&mut full);
            std::mem::forget(reader);
        }
        holder.signal(Signal::STOP);
        let stopped = now();
        eventually("the lock passed on", || (fixture.show("k")["held"] == false).then_some(()));
        for file in ["own.beats", "son.beats"] {
            let last = *beats(&fixture, file).last().unwrap();
            assert!(last < stopped + ttl, "{file}: alive {:?} after the stop", last - stopped);
        }
        holder.signal(Signal::CONT);
        assert_eq!(holder.exit_code(), 76);

        // The same if `palisade lock` itself has to stop the command.
        let other = fixture.lock("l", &["--ttl", "3s"], &script.replace("beats", "later"));
        let mut other = other;
        let mut holder = Running::start(other.stderr(Stdio::null()));
        eventually("it beats", || (!fixture.read("son.later").is_empty()).then_some(()));
        fixture.break_lock("l");
        assert_eq!(holder.exit_code(), 76);
        eventually("nothing is left", || fixture.processes().is_empty().then_some(()));
    }
}

/// The last error of a process, which says why it ends, waits for a reader that is late, or a machine that is busy.
#[test]
fn the_last_error_waits_for_its_reader() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    fill(&mut writer.try_clone().unwrap());
    let mut command = palisade();
    let mut proclaim =
        Running::start(command.args(["proclaim", "late"]).env_remove("PALISADE_PROCLAIM").stderr(writer));
    drop(command);
    // Longer than any other error is waited for.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut reader, &mut said).unwrap();
    assert!(said.trim_start_matches('x').starts_with("palisade: no value is replaced"), "{said:.80}");
    assert_eq!(proclaim.exit_code(), 64);
}

/// A command may end with any code, also with the one that means "lost": its lock is released.
#[test]
fn a_command_may_end_with_76() {
    let fixture = Fixture::start();
    let output = super::process::output(&mut fixture.lock("k", &LONG, "exit 76"));
    super::expect_code(&output, 76);
    assert_eq!(fixture.show("k")["held"], false);
}

/// Ctrl-Z would let the lock expire under a stopped command: the command is resumed instead.
#[test]
fn a_command_cannot_be_suspended() {
    let fixture = Fixture::start();
    let mut holder = fixture.start_lock("k", &LONG, &format!("sleep 0.01; {}; exit 7", until(&fixture.path("go"))));
    let group = Pid::from_raw(fixture.command_pid("k")).unwrap();
    for signal in [Signal::TSTP, Signal::STOP] {
        kill_process_group(group, signal).unwrap();
    }
    std::fs::write(fixture.path("go"), "").unwrap();
    assert_eq!(holder.exit_code(), 7);
}

/// A terminal may stop background processes that write to it (`stty tostop`). A message of a background `palisade
/// lock` stops neither it nor what it has to do afterwards.
#[test]
fn message_from_the_background_stops_nothing() {
    let fixture = Fixture::start();
    let mut holder = fixture.start_lock("k", &LONG, &until(&fixture.path("go")));
    let script = r#"stty tostop; set -m; "$PALISADE" lock k -n -- true & wait $!; echo "exit code $?" > ended"#;
    let (mut terminal, mut shell) = on_a_terminal(&fixture, script);
    fixture.wait_for_file("ended");
    assert_eq!(fixture.read("ended"), "exit code 75\n");
    assert!(terminal.read(|seen| seen.contains('\n')).contains("held by"));
    assert_eq!(shell.exit_code(), 0);
    std::fs::write(fixture.path("go"), "").unwrap();
    assert_eq!(holder.exit_code(), 0);
}

/// A shell may start its commands by `vfork`, and then waits until the child has become another
/// program; a stop signal that arrives meanwhile stops the child, but not the shell. Here that
/// moment is long: the shell looks in a hundred thousand directories for a script whose interpreter
/// does not exist.
#[test]
fn a_command_cannot_be_suspended_while_it_starts_another() {
    let fixture = Fixture::start();
    std::fs::write(fixture.path("lost"), "#!/no/interpreter\n").unwrap();
    std::fs::set_permissions(fixture.path("lost"), Permissions::from_mode(0o755)).unwrap();
    let doubled = "path=no; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17; do path=$path:$path; done";
    let script = format!(
        "{doubled}; PATH=.:$path; while ! [ -e '{}' ]; do lost 2> lost.err; done; exit 7",
        fixture.path("go").display()
    );
    let mut holder = fixture.start_lock("k", &LONG, &script);
    let group = Pid::from_raw(fixture.command_pid("k")).unwrap();
    fixture.wait_for_file("lost.err");
    kill_process_group(group, Signal::STOP).unwrap();
    std::fs::write(fixture.path("go"), "").unwrap();
    assert_eq!(holder.exit_code(), 7);
}

/// `nohup palisade lock …` works: a signal that was ignored at the start stays ignored.
#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let fixture = Fixture::start();
    let script = format!("touch k.started; {}; exit 8", until(&fixture.path("go")));
    let lock = fixture.lock("k", &LONG, &script);
    let arguments = lock.get_args().map(|word| word.to_string_lossy().into_owned());
    let quoted = arguments.map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect::<Vec<_>>().join(" ");
    let program = lock.get_program().to_string_lossy().into_owned();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("trap '' HUP; exec {program} {quoted}")]).current_dir(fixture.path(""));
    lock.get_envs().for_each(|(name, value)| {
        let _ = value.map(|value| shell.env(name, value));
    });
    let mut holder = Running::start(&mut shell);
    fixture.wait_for_file("k.started");
    holder.signal(Signal::HUP);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(holder.runs());
    std::fs::write(fixture.path("go"), "").unwrap();
    assert_eq!(holder.exit_code(), 8);
}

/// A command that leaves a process running in the background has ended: its exit code is passed on
/// at once.
#[test]
fn the_end_of_the_command_is_the_end_of_the_lock() {
    let fixture = Fixture::start();
    let mut holder =
        Running::start(fixture.lock("k", &LONG, "sleep 1000 & echo $! > left; exit 4").stdout(Stdio::null()));
    assert_eq!(holder.exit_code(), 4);
    assert_eq!(fixture.show("k")["held"], false);
    let left: i32 = fixture.read("left").trim().parse().unwrap();
    if let Some(pid) = rustix::process::Pid::from_raw(left) {
        // End the process that the command has left.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}
