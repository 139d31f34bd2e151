//! `palisade dev`: a cluster of real processes on this machine.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::support::cluster::recordings;
use crate::support::process::{self, Running, lives, palisade};
use crate::support::{eventually, http, ports};

/// A running `palisade dev`, and its output.
struct Dev {
    running: Running,
    lines: Receiver<String>,
    printed: Vec<String>,
    port: u16,
    /// The directory of its nodes' recordings, if they record.
    recordings: Option<PathBuf>,
    /// Its `TMPDIR`, whose name identifies its processes by their environment.
    temporary: tempfile::TempDir,
}

impl Dev {
    fn start() -> Dev {
        Dev::start_recorded(None)
    }

    fn start_recorded(recordings: Option<PathBuf>) -> Dev {
        Dev::start_with(recordings, &[])
    }

    fn start_with(recordings: Option<PathBuf>, flags: &[&str]) -> Dev {
        Dev::start_in(&[], recordings, flags)
    }

    /// Starts it with these variables.
    fn start_in(variables: &[(&str, &str)], recordings: Option<PathBuf>, flags: &[&str]) -> Dev {
        let temporary = tempfile::tempdir().unwrap();
        let port = ports::free_for_dev(3);
        let mut command = palisade();
        command.args(["dev", "--nodes", "3", "--port", &port.to_string()]).args(flags);
        // A process group of its own, as a shell gives to each of its jobs.
        command.env("TMPDIR", temporary.path()).stdout(Stdio::piped()).process_group(0);
        command.envs(recordings.iter().map(|directory| ("PALISADE_RECORD", directory))).envs(variables.iter().copied());
        let mut running = Running::start(&mut command);
        let stdout = BufReader::new(running.0.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut dev = Dev { running, lines, printed: Vec::new(), port, recordings, temporary };
        dev.wait_for("the ready line", |line| line.starts_with("ready "));
        dev
    }

    /// Waits for a line, and returns it.
    fn wait_for(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        loop {
            let line =
                self.lines.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("not printed: {what}"));
            self.printed.push(line.clone());
            if is_it(&line) {
                return line;
            }
        }
    }

    fn address(&self, node: u16) -> String {
        format!("127.0.0.1:{}", self.port + node)
    }

    fn endpoints(&self) -> String {
        format!("{},{},{}", self.address(1), self.port + 2, self.port + 3)
    }

    /// The printed command that kills a node.
    fn kill_command(&mut self, node: u16) -> String {
        let comment = format!("# node {node},");
        let earlier = self.printed.iter().find(|line| line.contains(&comment)).cloned();
        earlier.unwrap_or_else(|| self.wait_for("how to kill a node", |line| line.contains(&comment)))
    }

    fn expect_nothing_left(&mut self) {
        let mark = self.temporary.path().display().to_string();
        eventually("no process is left", || process::marked(&mark).is_empty().then_some(()));
        for node in 1..=3 {
            assert!(
                http::get(&self.address(node), "/healthz").is_err(),
                "a node still serves on {}",
                self.address(node)
            );
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // Leave no process behind, also after a failure.
        process::end_all(&self.temporary.path().display().to_string());
    }
}

fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null());
    shell
}

/// `dev` prints its nodes' addresses; the commands that it proposes work, and the command that it
/// prints for a killed node starts that node again.
#[test]
fn what_dev_prints_works() {
    let mut dev = Dev::start_recorded(recordings());
    let urls: Vec<String> = (1..=3).map(|node| format!("http://{}", dev.address(node))).collect();
    assert_eq!(dev.printed.last().unwrap(), &format!("ready {}", urls.join(" ")));
    let endpoints = dev.endpoints();
    let locked = process::output(palisade().args(["lock", "k", "--endpoints", &endpoints, "--", "true"]));
    assert_eq!(locked.status.code(), Some(0), "{locked:?}");
    let proposed = dev.wait_for("a lock to try", |line| line.contains(" lock "));
    let tried = process::output(&mut shell(&proposed.replace("sleep 5", "true")));
    assert!(String::from_utf8_lossy(&tried.stdout).starts_with("token "), "{tried:?}");
    let proposed = dev.wait_for("a status to try", |line| line.contains(" status "));
    assert_eq!(process::output(&mut shell(&proposed)).status.code(), Some(0));

    // Kill the leader with the printed command, and start it again with the one printed then.
    let status = http::get(&dev.address(1), "/v1/status").unwrap().ok();
    let leader = u16::try_from(status["leader"]["id"].as_u64().unwrap()).unwrap();
    let kill = dev.kill_command(leader);
    assert_eq!(process::output(&mut shell(&kill)).status.code(), Some(0), "{kill}");
    dev.wait_for("that the node ended", |line| line.starts_with(&format!("node {leader} ended")));
    let again = dev.wait_for("how to start it again", |line| line.contains(" serve "));
    assert!(http::get(&dev.address(leader), "/healthz").is_err());
    let mut restarted = shell(&format!("exec {}", again.trim()));
    restarted.env("TMPDIR", dev.temporary.path()).stderr(Stdio::null());
    restarted.envs(dev.recordings.iter().map(|directory| ("PALISADE_RECORD", directory)));
    let mut restarted = Running::start(&mut restarted);
    let term = eventually("the restarted node follows", || {
        let status = http::get(&dev.address(leader), "/v1/status").ok()?.ok();
        status["leader"].is_object().then(|| status["term"].as_u64())
    });
    assert!(term > status["term"].as_u64(), "it is the same cluster, with the election of its successor behind it");
    let locked = process::output(palisade().args(["lock", "k", "--endpoints", &dev.address(leader), "--", "true"]));
    assert_eq!(locked.status.code(), Some(0), "{locked:?}");
    restarted.signal(Signal::INT);
    assert_eq!(restarted.exit_code(), 0);
    // A process that keeps a recording ends by itself when its node has ended.
    dev.running.signal(Signal::INT);
    assert_eq!(dev.running.exit_code(), 0);
    dev.expect_nothing_left();
}

/// `dev --tls` makes certificates, and the commands that it proposes work with them, curl's too.
#[test]
fn what_dev_prints_with_tls_works() {
    let mut dev = Dev::start_with(None, &["--tls"]);
    let urls: Vec<String> = (1..=3).map(|node| format!("https://{}", dev.address(node))).collect();
    assert_eq!(dev.printed.last().unwrap(), &format!("ready {}", urls.join(" ")));
    let proposals = [
        ("curl -s", "\"token\":"),
        (" lock ", "token "),
        (" status ", "leader"),
        (" acl set ", "access control is on with 1 rule ("),
    ];
    for (what, answer) in proposals {
        let proposed = dev.wait_for(what, |line| line.contains(what)).replace("sleep 5", "true");
        let tried = process::output(&mut shell(&proposed));
        let said = String::from_utf8_lossy(&tried.stdout).into_owned();
        assert!(said.contains(answer), "{proposed}: {said}{}", String::from_utf8_lossy(&tried.stderr));
        assert!(!proposed.contains("http://"), "{proposed}");
    }
    let status = dev.printed.iter().find(|line| line.contains(" status ")).unwrap();
    let refused = process::output(&mut shell(&status.replace(" status ", " acl get ")));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("may not administer"), "{said}");
    assert!(http::get(&dev.address(1), "/v1/status").is_err(), "nothing is answered without TLS");
}

/// Ctrl-C leaves no process, no open port and no file.
#[test]
fn ctrl_c_leaves_nothing_behind() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut dev = Dev::start();
        kill_process_group(dev.running.pid(), signal).unwrap();
        assert_eq!(dev.running.exit_code(), 0);
        dev.expect_nothing_left();
        let left: Vec<_> = std::fs::read_dir(dev.temporary.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Ctrl-C while the nodes start leaves nothing either.
#[test]
fn ctrl_c_during_the_start_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let port = ports::free_for_dev(3);
    let mut command = palisade();
    command.args(["dev", "--port", &port.to_string()]).env("TMPDIR", temporary.path()).stdout(Stdio::null());
    let mut running = Running::start(&mut command);
    // The first node has been started, and the cluster has no leader yet, or has just elected one.
    let mark = temporary.path().display().to_string();
    eventually("the nodes start", || (process::marked(&mark).len() > 1).then_some(()));
    running.signal(Signal::INT);
    assert_eq!(running.exit_code(), 0);
    eventually("no process is left", || process::marked(&mark).is_empty().then_some(()));
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// SIGKILL leaves `dev` no time to clean up. Its nodes end all the same, also one that is stopped
/// and cannot react, and the temporary directory is removed.
#[test]
fn kill_9_of_dev_leaves_nothing_behind() {
    let mut dev = Dev::start();
    let processes = process::marked(&dev.temporary.path().display().to_string());
    assert_eq!(processes.len(), 5, "three nodes, their parent, and the remover of the directory");
    let node = dev.kill_command(2);
    let node = node.split_whitespace().nth(2).and_then(|pid| Pid::from_raw(pid.parse().ok()?)).unwrap();
    kill_process(node, Signal::STOP).unwrap();
    dev.running.signal(Signal::KILL);
    dev.running.wait();
    dev.expect_nothing_left();
    // A process that ends loses its marks first.
    eventually("every process ends", || processes.iter().all(|&pid| !lives(pid)).then_some(()));
    let left: Vec<_> = std::fs::read_dir(dev.temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A directory that the user has named is kept, whatever ends `dev`.
#[test]
fn a_named_directory_is_kept() {
    for signal in [Signal::INT, Signal::KILL] {
        let data = tempfile::tempdir().unwrap();
        let mut dev = Dev::start_with(None, &["--data", &data.path().display().to_string()]);
        dev.running.signal(signal);
        dev.running.wait();
        dev.expect_nothing_left();
        assert!(data.path().join("node-1/identity.json").exists());
    }
}

/// A port that is in use is reported at once, and no process started before is left.
#[test]
fn a_port_in_use_is_named() {
    let port = ports::free_for_dev(3);
    let _taken = std::net::TcpListener::bind(("127.0.0.1", port + 2)).unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let mut command = palisade();
    command.args(["dev", "--port", &port.to_string()]).env("TMPDIR", temporary.path());
    let refused = process::output(&mut command);
    assert_eq!(refused.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(complaint.contains(&format!("cannot listen on port {}", port + 2)), "{complaint}");
    eventually("no process is left", || {
        process::marked(&temporary.path().display().to_string()).is_empty().then_some(())
    });
}

/// Goal: variables that configure one node of another cluster do not reach the nodes of `palisade dev`.
#[test]
fn nodes_ignore_variables_that_are_for_one_node() {
    let variables = [("PALISADE_CONFIG", "/nowhere/palisade.toml"), ("PALISADE_JOIN", "127.0.0.1:1")];
    let dev = Dev::start_in(&variables, None, &[]);
    assert_eq!(http::get(&dev.address(1), "/v1/status").unwrap().ok()["cluster_name"], "dev");
}
