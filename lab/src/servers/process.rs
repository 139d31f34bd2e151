//! Processes that are started, signalled and ended by their own identity, never by a name or a bare
//! process ID: the system gives the ID of an ended process to another one sooner or later.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::clock;
use super::error::Error;
use super::options::{Kind, Options};

/// How often an ending process is looked at.
const POLL: Duration = Duration::from_millis(5);

/// A process: its ID, and the time at which the system started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The process ID.
    pub pid: u32,
    /// The start time, in clock ticks since the machine's start: field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

/// What `/proc/PID/stat` says.
struct Stat {
    state: char,
    parent: u32,
    threads: u32,
    start_time: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, and may itself have any character.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}

impl Stat {
    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }
}

impl Identity {
    /// The identity of a process that runs; none if it has ended.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        stat(pid).map(|stat| Self { pid, start_time: stat.start_time })
    }

    /// Whether this very process runs. An ended process that its parent has not waited for does not; one
    /// whose first thread has ended does, while others still hold its sockets and files.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.stat().is_some_and(|stat| !stat.has_ended())
    }

    fn stat(&self) -> Option<Stat> {
        stat(self.pid).filter(|stat| stat.start_time == self.start_time)
    }

    /// Signals this very process: the identity is compared after the process was opened, so that a
    /// process that gets the ID in between is not signalled. False if it has ended.
    ///
    /// # Errors
    /// The system has refused, such as for a process of another user.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if !self.is_running() {
            return Ok(false);
        }
        match pidfd_send_signal(process, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// This process, and all that it has started: PostgreSQL is a process for each connection.
    #[must_use]
    pub fn tree(&self) -> Vec<Self> {
        if !self.is_running() {
            return Vec::new();
        }
        let Ok(entries) = fs::read_dir("/proc") else { return vec![*self] };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let all: Vec<(u32, Self)> = pids
            .filter_map(|pid| stat(pid).map(|stat| (stat.parent, Self { pid, start_time: stat.start_time })))
            .collect();
        let mut tree = vec![*self];
        let mut next = 0;
        while let Some(parent) = tree.get(next).map(|one| one.pid) {
            tree.extend(all.iter().filter(|(of, _)| *of == parent).map(|(_, child)| *child));
            next += 1;
        }
        tree
    }
}

/// Signals all of the processes that still run.
///
/// # Errors
/// The first refusal of the system, after all were tried.
pub(super) fn signal_all(processes: &[Identity], signal: Signal) -> io::Result<()> {
    let mut outcome = Ok(());
    for process in processes {
        if let Err(error) = process.signal(signal) {
            outcome = outcome.and(Err(error));
        }
    }
    outcome
}

/// Waits until the condition holds; false if it does not hold in time. Blocks the thread: for `Drop`,
/// and for conditions that hold within milliseconds.
pub(super) fn wait_blocking(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

/// Waits until the condition holds; false if it does not hold in time.
pub(super) async fn wait(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Waits until each process has stopped by SIGSTOP or has ended, which takes microseconds.
pub(super) fn wait_stopped(processes: &[Identity]) -> bool {
    let is_still = |process: &Identity| process.stat().is_none_or(|stat| stat.state == 'T' || stat.has_ended());
    wait_blocking(Duration::from_secs(5), || processes.iter().all(is_still))
}

/// What to start as a server's process.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// Variables beside `PATH`, `HOME` and `LANG`: nothing else of this process's environment reaches
    /// a server, because etcd, Java, and PostgreSQL take settings from theirs.
    pub(super) env: Vec<(String, String)>,
    pub(super) prefix: Vec<String>,
    /// The user to run as, if it is not this process's.
    pub(super) user: Option<String>,
    pub(super) outlive: bool,
}

impl Launch {
    /// The program, as the options say how to start it.
    ///
    /// # Errors
    /// libfaketime is missing, or its file cannot be written.
    pub(super) fn new(
        program: &Path,
        args: impl IntoIterator<Item = String>,
        options: &Options,
        kind: Kind,
        dir: &Path,
    ) -> Result<Self, Error> {
        let mut env = options.env.clone();
        if options.fake_clock {
            env.extend(clock::environment(kind, dir)?);
        }
        Ok(Self {
            program: program.to_owned(),
            args: args.into_iter().collect(),
            env,
            prefix: options.prefix.clone(),
            user: None,
            outlive: options.outlive,
        })
    }

    /// Starts the process in a session of its own: a terminal's ^C or hang-up does not reach it.
    /// `setsid` and `setpriv` become the program, so that the child's process ID is the server's.
    pub(super) fn spawn(&self, directory: &Path, log: &Path) -> io::Result<Child> {
        let output = fs::OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = clean("setsid");
        command.arg("setpriv");
        if !self.outlive {
            command.args(["--pdeathsig", "KILL"]);
        }
        if let Some(user) = &self.user {
            command.args(as_user(user));
        }
        command.arg("--").args(&self.prefix).arg(&self.program).args(&self.args);
        command.envs(self.env.iter().map(|(name, value)| (name, value))).current_dir(directory);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        on_spawner_thread(command)
    }
}

/// A command with the environment of servers.
pub(super) fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LANG", "C.UTF-8");
    for name in ["PATH", "HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// The arguments with which `setpriv` becomes the user.
pub(super) fn as_user(user: &str) -> [String; 3] {
    [format!("--reuid={user}"), format!("--regid={user}"), "--init-groups".to_owned()]
}

/// Starts the process from a thread that lasts as long as this process: the system sends the
/// parent-death signal when the *thread* that has started the process ends.
fn on_spawner_thread(command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, reply) in jobs {
                // The requester waits for the reply, so that it cannot be gone.
                drop(reply.send(command.spawn()));
            }
        });
        sender
    });
    let (reply, outcome) = mpsc::channel();
    let gone = || io::Error::other("the thread that starts processes has ended");
    spawner.send((command, reply)).map_err(|_| gone())?;
    outcome.recv().map_err(|_| gone())?
}

/// The last lines of a server's output.
pub(super) fn log_tail(log: &Path) -> String {
    const LINES: usize = 15;
    let text = match fs::read(log) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("  (the file cannot be read: {error})"),
    };
    tail(&text, LINES)
}

/// The last lines of a text, indented.
pub(super) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(count);
    if lines.is_empty() {
        return "  (it is empty)".to_owned();
    }
    lines[from..].iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    #[test]
    fn stranger_with_the_same_pid_is_not_signalled() {
        let mut child = sleeper();
        let real = Identity::of(child.id()).unwrap();
        let earlier = Identity { start_time: real.start_time - 1, ..real };
        assert!(!earlier.is_running());
        assert!(!earlier.signal(Signal::KILL).unwrap());
        assert!(child.try_wait().unwrap().is_none(), "a process with another start time was killed");
        assert!(real.signal(Signal::KILL).unwrap());
        child.wait().unwrap();
        assert!(!real.signal(Signal::KILL).unwrap());
    }

    #[test]
    fn zombie_does_not_run() {
        let mut child = sleeper();
        let process = Identity::of(child.id()).unwrap();
        child.kill().unwrap();
        assert!(wait_blocking(Duration::from_secs(5), || !process.is_running()));
        child.wait().unwrap();
    }

    #[test]
    fn tree_has_the_children() {
        let mut shell = Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let process = Identity::of(shell.id()).unwrap();
        assert!(wait_blocking(Duration::from_secs(5), || process.tree().len() == 2));
        let tree = process.tree();
        signal_all(&tree, Signal::STOP).unwrap();
        assert!(wait_stopped(&tree));
        signal_all(&tree, Signal::KILL).unwrap();
        shell.wait().unwrap();
        assert!(wait_blocking(Duration::from_secs(5), || tree.iter().all(|one| !one.is_running())));
    }
}
