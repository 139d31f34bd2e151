//! A live node: a `palisade step-node`, its files and its strings.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use palisade::stepper::protocol::{Answer, Now, Request, Setting};
use palisade_model::mutants::ON;

/// How long an answer may take, on the slowest of machines.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a live node does not do what it is told.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// It cannot be started.
    #[error("cannot start {}: {source}", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It has ended.
    #[error("the process has ended: {0}")]
    Ended(String),
    /// It says nothing.
    #[error("the process has not answered within {PATIENCE:?}")]
    Silent,
    /// It cannot do what it is told.
    #[error("{0}")]
    Cannot(String),
    /// It says what makes no sense.
    #[error("the process answers with what makes no sense here: {0}")]
    Senseless(String),
}

/// What a live node is a process of.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file; `palisade`, or another one that has its command `puppet`.
    pub file: PathBuf,
    /// Which mutant is on, by its number, if it has any ([`mutants`](super::mutants)); else nothing.
    pub on: String,
}

/// A process, and what is needed to start it again.
#[derive(Debug)]
pub struct Live {
    program: Program,
    directory: PathBuf,
    setting: Setting,
    running: Running,
    /// Where it listens for nodes.
    pub peer_addr: String,
}

#[derive(Debug)]
struct Running {
    child: Child,
    strings: ChildStdin,
    answers: Receiver<String>,
}

impl Live {
    /// Starts a node in a directory, and says what it is.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn start(program: &Program, directory: PathBuf, setting: Setting) -> Result<(Live, Now), LiveError> {
        let running = Running::start(program, &directory)?;
        let program = program.clone();
        let mut live = Live { program, directory, setting, running, peer_addr: String::new() };
        let now = live.introduce()?;
        Ok((live, now))
    }

    /// Kills the process, with a signal that it does not see.
    pub fn kill(&mut self) {
        // What is dead already need not be killed.
        let _ = self.running.child.kill();
        let _ = self.running.child.wait();
    }

    /// Starts the node again in its directory, and says what it is.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn restart(&mut self) -> Result<Now, LiveError> {
        self.kill();
        self.running = Running::start(&self.program, &self.directory)?;
        self.introduce()
    }

    fn introduce(&mut self) -> Result<Now, LiveError> {
        let setting = serde_json::to_string(&self.setting).expect("settings are plain values");
        match self.running.ask(&setting)? {
            Answer::Ready { peer_addr, self_now } => {
                self.peer_addr = peer_addr;
                Ok(*self_now)
            }
            other => Err(LiveError::Senseless(format!("{other:?}"))),
        }
    }

    /// Pulls a string.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn request(&mut self, request: &Request) -> Result<Answer, LiveError> {
        let request = serde_json::to_string(request).expect("strings are plain values");
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
        let (strings, out) = (child.stdin.take(), child.stdout.take());
        let (Some(strings), Some(out)) = (strings, out) else { unreachable!("both were asked for") };
        let (told, answers) = channel();
        let listen = move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("answers".into()).spawn(listen).map_err(failed)?;
        Ok(Running { child, strings, answers })
    }

    fn ask(&mut self, line: &str) -> Result<Answer, LiveError> {
        if writeln!(self.strings, "{line}").is_err() {
            return Err(self.ended());
        }
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => serde_json::from_str(&answer).map_err(|error| LiveError::Senseless(error.to_string())),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => Err(LiveError::Silent),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    fn ended(&mut self) -> LiveError {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let mut last = String::new();
        if let Some(mut complaints) = self.child.stderr.take() {
            let _ = complaints.read_to_string(&mut last);
        }
        LiveError::Ended(format!("{status}: {}", last.trim()))
    }
}
