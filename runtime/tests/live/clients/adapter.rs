//! A running adapter: commands that go in, answers and events that come out (docs/clients.md).

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::program::Program;
use crate::support::process::Running;
use crate::support::wall_clock::WallClock;

/// When a scenario gives up. None expects anything to take so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client in a process of its own.
pub struct Adapter {
    process: Running,
    input: Mutex<Input>,
    heard: Arc<Heard>,
}

struct Input {
    stdin: ChildStdin,
    next_id: u64,
}

/// What the process has said.
#[derive(Default)]
struct Heard {
    said: Mutex<Said>,
    more: Condvar,
}

#[derive(Default)]
struct Said {
    lines: Vec<Value>,
    errors: String,
    ended: bool,
}

/// A grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    pub token: u64,
    /// When the client told its user, in microseconds of the system's time.
    pub at_us: u64,
}

/// What a client says about a claim.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct State {
    pub valid: bool,
    pub token: Option<u64>,
    pub remaining_ms: f64,
}

/// A command that is not answered yet.
#[must_use]
pub struct Pending<'a> {
    adapter: &'a Adapter,
    id: u64,
    command: Value,
}

impl Adapter {
    /// Starts the client of these endpoints.
    pub fn start(program: &Program, endpoints: &[String]) -> Adapter {
        Adapter::start_with(program, endpoints, &[])
    }

    /// The same, with these options.
    pub fn start_with(program: &Program, endpoints: &[String], options: &[&str]) -> Adapter {
        Adapter::start_command(program.command(), endpoints, options)
    }

    /// The same, with this wall clock.
    pub fn start_with_clock(program: &Program, endpoints: &[String], clock: &WallClock) -> Adapter {
        let mut command = program.command();
        clock.show_to(&mut command);
        let adapter = Adapter::start_command(command, endpoints, &[]);
        clock.note(adapter.process.pid());
        adapter
    }

    fn start_command(mut command: Command, endpoints: &[String], options: &[&str]) -> Adapter {
        command.args(["--endpoints", &endpoints.join(",")]).args(options);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Running::start(&mut command);
        let stdin = process.0.stdin.take().expect("its input is a pipe");
        let stdout = process.0.stdout.take().expect("its output is a pipe");
        let mut stderr = process.0.stderr.take().expect("its errors are a pipe");
        let heard = Arc::new(Heard::default());
        let (lines, errors) = (Arc::clone(&heard), Arc::clone(&heard));
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| json!({"garbage": line}));
                lines.hear(|said| said.lines.push(line));
            }
            lines.hear(|said| said.ended = true);
        });
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = stderr.read(&mut piece) {
                errors.hear(|said| said.errors += &String::from_utf8_lossy(&piece[..length]));
            }
        });
        Adapter { process, input: Mutex::new(Input { stdin, next_id: 1 }), heard }
    }

    /// Sends a command, and does not wait for its answer.
    pub fn send(&self, mut command: Value) -> Pending<'_> {
        let mut input = self.input.lock();
        let id = input.next_id;
        input.next_id += 1;
        command["id"] = id.into();
        if let Err(error) = writeln!(input.stdin, "{command}") {
            panic!("the adapter does not read {command}: {error}; it said {}", self.heard.said.lock().errors);
        }
        Pending { adapter: self, id, command }
    }

    /// Asks for a lock, and does not wait for the answer.
    pub fn ask(&self, name: &str, key: &str, ttl: Duration, wait: Duration) -> Pending<'_> {
        self.send(acquire(name, key, ttl, wait))
    }

    /// Asks for a lock that must be granted.
    #[track_caller]
    pub fn acquire(&self, name: &str, key: &str, ttl: Duration, wait: Duration) -> Granted {
        self.ask(name, key, ttl, wait).granted()
    }

    /// What the client says about a claim now.
    pub fn state(&self, name: &str) -> State {
        self.send(json!({"do": "state", "name": name})).state()
    }

    /// Gives up a claim.
    pub fn release(&self, name: &str) -> Pending<'_> {
        self.send(json!({"do": "release", "name": name}))
    }

    /// Waits until the client has told its user that a lock is lost, and returns when that was.
    pub fn lost(&self, name: &str) -> u64 {
        let loss = self.heard.find(|line| is_loss(line, name));
        loss["at_us"].as_u64().unwrap_or_else(|| panic!("an event has its time: {loss}"))
    }

    /// How often it has told that.
    pub fn losses(&self, name: &str) -> usize {
        self.heard.said.lock().lines.iter().filter(|line| is_loss(line, name)).count()
    }

    /// Waits until a watch has told this, and returns it.
    #[track_caller]
    pub fn told(&self, watch: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.heard.find(|line| line["name"] == watch && line["event"].is_string() && wanted(line))
    }

    /// The events of this kind that a watch has told so far, in order.
    pub fn all_told(&self, watch: &str, event: &str) -> Vec<Value> {
        let said = self.heard.said.lock();
        said.lines.iter().filter(|line| line["name"] == watch && line["event"] == event).cloned().collect()
    }

    /// Stops the process where it stands (SIGSTOP), with all its threads.
    pub fn freeze(&self) {
        self.process.freeze();
    }

    /// Lets it go on (SIGCONT).
    pub fn thaw(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process.0.kill().expect("the process can be killed");
        self.process.wait();
    }

    /// Lets it quit, and expects that it ends without an error.
    pub fn quit(mut self) {
        let _ = self.send(json!({"do": "quit"}));
        assert_eq!(self.process.exit_code(), 0, "{}", self.heard.said.lock().errors);
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        if thread::panicking() {
            let said = self.heard.said.lock();
            eprintln!("--- what process {} said ---", self.process.pid().as_raw_nonzero());
            said.lines.iter().for_each(|line| eprintln!("{line}"));
            eprintln!("{}", said.errors);
        }
    }
}

/// The command that asks for a lock.
pub fn acquire(name: &str, key: &str, ttl: Duration, wait: Duration) -> Value {
    json!({
        "do": "acquire", "name": name, "key": key, "owner": name,
        "ttl_ms": millis(ttl), "wait_ms": millis(wait),
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a few seconds")
}

fn is_loss(line: &Value, name: &str) -> bool {
    line["event"] == "lost" && line["name"] == name
}

impl Heard {
    fn hear(&self, what: impl FnOnce(&mut Said)) {
        what(&mut self.said.lock());
        self.more.notify_all();
    }

    /// Waits for a line.
    #[track_caller]
    fn find(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        let mut said = self.said.lock();
        loop {
            if let Some(line) = said.lines.iter().find(|line| wanted(line)) {
                return line.clone();
            }
            assert!(!said.ended, "the adapter ended; it said {:?} {}", said.lines, said.errors);
            let late = self.more.wait_until(&mut said, deadline).timed_out();
            assert!(!late, "not within a minute; the adapter said {:?} {}", said.lines, said.errors);
        }
    }
}

impl Pending<'_> {
    /// Waits for the answer.
    #[track_caller]
    pub fn answer(&self) -> Value {
        self.adapter.heard.find(|line| line["id"] == self.id)
    }

    /// Whether it is answered.
    pub fn is_answered(&self) -> bool {
        self.adapter.heard.said.lock().lines.iter().any(|line| line["id"] == self.id)
    }

    /// Waits for the answer, which must not be a failure.
    #[track_caller]
    pub fn ok(&self) -> Value {
        let answer = self.answer();
        assert!(answer["ok"].is_object(), "{} was answered {answer}", self.command);
        answer
    }

    /// Waits for a grant.
    #[track_caller]
    pub fn granted(&self) -> Granted {
        let answer = self.ok();
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("a grant lacks a number: {answer}"));
        Granted { token: number(&answer["ok"]["token"]), at_us: number(&answer["at_us"]) }
    }

    /// Waits for a failure of this kind, with a sentence for people.
    #[track_caller]
    pub fn refused(&self, code: &str) -> Value {
        let answer = self.answer();
        assert_eq!(answer["error"], code, "{} was answered {answer}", self.command);
        answer
    }

    /// Waits for the version of a write that is done.
    #[track_caller]
    pub fn version(&self) -> u64 {
        let answer = self.ok();
        answer["ok"]["version"].as_u64().unwrap_or_else(|| panic!("a write lacks its version: {answer}"))
    }

    /// Waits for what the client says about a claim.
    #[track_caller]
    pub fn state(&self) -> State {
        let answer = self.ok();
        serde_json::from_value(answer["ok"].clone()).unwrap_or_else(|error| panic!("no state: {error}: {answer}"))
    }
}
