//! A live node: the stepper process, its files and its pipes.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use palisade_model::mutants::ON;

use crate::stepper::protocol::{Answer, Now, Request, Setting};

/// How long to wait for an answer, generous enough for a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Why a live node did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The process could not be started.
    #[error("cannot start {}: {source}", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The process has ended.
    #[error("the process has ended: {0}")]
    Ended(String),
    /// The process did not answer in time.
    #[error("the process has not answered within {PATIENCE:?}")]
    Silent,
    /// The process cannot execute the request.
    #[error("{0}")]
    Cannot(String),
    /// The process gave an unexpected answer.
    #[error("the process gave an answer that does not fit the request: {0}")]
    Unexpected(String),
}

/// The program that live nodes run: this one, or the one of a build that contains mutants.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file: one with the command `step-node`.
    pub file: PathBuf,
    /// The number of the enabled mutant ([`mutants`](crate::mutants)); empty for none.
    pub on: String,
}

/// A node's process, and what is needed to restart it.
#[derive(Debug)]
pub struct Live {
    program: Program,
    directory: PathBuf,
    setting: Setting,
    running: Running,
    /// The address on which the process listens for peers.
    pub peer_addr: String,
}

#[derive(Debug)]
struct Running {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
}

impl Live {
    /// Starts a node in a directory and returns its state.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn start(program: &Program, directory: PathBuf, setting: Setting) -> Result<(Live, Now), LiveError> {
        let running = Running::start(program, &directory)?;
        let program = program.clone();
        let mut live = Live { program, directory, setting, running, peer_addr: String::new() };
        let now = live.set_up()?;
        Ok((live, now))
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.running.child.kill();
        let _ = self.running.child.wait();
    }

    /// Kills the node, starts it again in its directory, and returns its state.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn restart(&mut self) -> Result<Now, LiveError> {
        self.kill();
        self.running = Running::start(&self.program, &self.directory)?;
        self.set_up()
    }

    fn set_up(&mut self) -> Result<Now, LiveError> {
        let setting = serde_json::to_string(&self.setting).expect("settings are plain values");
        match self.running.ask(&setting)? {
            Answer::Ready { peer_addr, self_now } => {
                self.peer_addr = peer_addr;
                Ok(*self_now)
            }
            other => Err(LiveError::Unexpected(format!("{other:?}"))),
        }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn request(&mut self, request: &Request) -> Result<Answer, LiveError> {
        let request = serde_json::to_string(request).expect("requests are plain values");
        match self.running.ask(&request)? {
            Answer::Cannot(why) => Err(LiveError::Cannot(why)),
            answer => Ok(answer),
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Running {
    fn start(program: &Program, directory: &Path) -> Result<Running, LiveError> {
        let failed = |source| LiveError::Start { program: program.file.clone(), source };
        let mut command = Command::new(&program.file);
        command.env(ON, &program.on).arg("step-node").arg("--data").arg(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (requests, out) = (child.stdin.take(), child.stdout.take());
        let (Some(requests), Some(out)) = (requests, out) else { unreachable!("stdin and stdout are pipes") };
        let (sender, answers) = channel();
        let listen = move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("answers".into()).spawn(listen).map_err(failed)?;
        Ok(Running { child, requests, answers })
    }

    fn ask(&mut self, line: &str) -> Result<Answer, LiveError> {
        if writeln!(self.requests, "{line}").is_err() {
            return Err(self.ended());
        }
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => serde_json::from_str(&answer).map_err(|error| LiveError::Unexpected(error.to_string())),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => Err(LiveError::Silent),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    fn ended(&mut self) -> LiveError {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let mut last = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut last);
        }
        LiveError::Ended(format!("{status}: {}", last.trim()))
    }
}
