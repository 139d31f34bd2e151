//! Errors that stop a stepped node.

use std::io;
use std::path::PathBuf;

use palisade::storage::StorageError;

/// Why a stepped node could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum StepperError {
    /// The directory is a server's.
    #[error("{} is the data directory of a server: a stepped node would send messages in that server's name; give another --data", .0.display())]
    Served(PathBuf),
    /// An address is not a loopback address.
    #[error("`{0}` is not a loopback address and port: a stepped node connects to this machine only")]
    NotLoopback(String),
    /// The first line is not a [`Setting`](super::protocol::Setting).
    #[error("the first line of standard input is not a valid setting: {0}")]
    Setting(#[source] serde_json::Error),
    /// Standard input cannot be read, or standard output cannot be written.
    #[error("cannot exchange requests and answers on standard input and output: {0}")]
    Stdio(#[source] io::Error),
    /// The node cannot listen for peers.
    #[error("cannot listen for peers on the loopback device: {0}")]
    Listen(#[source] io::Error),
    /// The data directory cannot be read or written, or is damaged.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl StepperError {
    /// The process's exit code, after sysexits.
    pub fn exit_code(&self) -> u8 {
        match self {
            StepperError::Served(_) | StepperError::NotLoopback(_) | StepperError::Setting(_) => 78,
            StepperError::Stdio(_) => 65,
            StepperError::Listen(_) => 71,
            StepperError::Storage(_) => 74,
        }
    }
}
