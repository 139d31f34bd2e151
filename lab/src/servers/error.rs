//! Errors of starting, reaching or ending servers: each names the server and says what to do next.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use super::find::Missing;

/// Why an operation on servers has failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Programs are not installed: all of them, so that one installation is enough.
    #[error("{}", missing_text(.0))]
    Missing(Vec<Missing>),
    /// A directory or file could not be read, written or made.
    #[error("{what} {}: {source}", .path.display())]
    File {
        /// What failed, as the start of a sentence: "cannot write".
        what: &'static str,
        /// The directory or file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The directory cannot hold the servers' data.
    #[error("{}: {reason}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// A port is not free.
    #[error("{0}")]
    Port(String),
    /// A setting of the configuration template was not given, or a given setting is malformed.
    #[error("the configuration of {kind}: {reason}")]
    Config {
        /// The server kind.
        kind: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A program that prepares a server (initdb, pip) has failed.
    #[error("{what} failed{}{output}", if .output.is_empty() { "" } else { ":\n" })]
    Setup {
        /// The program and its purpose.
        what: String,
        /// The end of its output.
        output: String,
    },
    /// A server's process could not be started or signalled.
    #[error("cannot {what} {node}: {source}")]
    Process {
        /// What was tried: "start", "pause".
        what: &'static str,
        /// The server's name.
        node: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A server that must run does not run, or one that must not run does.
    #[error("{node} {state}")]
    State {
        /// The server's name.
        node: String,
        /// What it does, and what to do: "does not run; restart it first".
        state: &'static str,
    },
    /// A server ended before it served.
    #[error("{node} ended before it served ({status}); the last lines of its log:\n{tail}")]
    Died {
        /// The server's name.
        node: String,
        /// How it ended.
        status: ExitStatus,
        /// The file of its output.
        log: PathBuf,
        /// The last lines of that file.
        tail: String,
    },
    /// A server runs, and does not serve.
    #[error("{node} does not serve after {waited:?}: {reason}; the last lines of its log:\n{tail}")]
    NotReady {
        /// The server's name.
        node: String,
        /// How long it was waited for.
        waited: Duration,
        /// What the last request to it answered.
        reason: String,
        /// The file of its output.
        log: PathBuf,
        /// The last lines of that file.
        tail: String,
    },
    /// A server serves and does not do what the lab needs of it.
    #[error("{node} {reason}")]
    Unfit {
        /// The server's name.
        node: String,
        /// What it does, as the rest of a sentence.
        reason: String,
    },
}

/// For `map_err`: an I/O error with the path it is about.
pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { what, path, source }
}

fn missing_text(missing: &[Missing]) -> String {
    let mut text = String::from("not everything that the servers need is installed:");
    for one in missing {
        text.push_str(&format!("\n  {one}"));
    }
    let debian: std::collections::BTreeSet<&str> = missing.iter().filter_map(Missing::debian_package).collect();
    if !debian.is_empty() {
        let packages: Vec<&str> = debian.into_iter().collect();
        text.push_str(&format!("\nOn Debian: apt-get install {}", packages.join(" ")));
    }
    text
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} is missing; {}", self.kind, self.what, self.remedy)
    }
}
