//! `palisade-lab down`: ends the servers that `palisade-lab up` has started.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::Signal;

use super::error::{Error, file};
use super::kinds;
use super::process::{Identity, signal_all, wait};
use super::state::{Node, Server, State};

/// End the servers that `up` has started, and remove their data
#[derive(Debug, clap::Args)]
pub struct Down {
    /// The directory that `up` has printed
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Keep the data directories and logs
    #[arg(long)]
    pub keep: bool,
    /// How long a server may take to end before it is killed
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Before,
    Gracefully,
    Killed,
    NotAtAll,
}

impl Down {
    /// Runs the command.
    ///
    /// # Errors
    /// The state file is damaged, or a directory cannot be removed.
    pub async fn run(self) -> Result<ExitCode, String> {
        let all_ended = self.end().await.map_err(|error| error.to_string())?;
        Ok(if all_ended { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Ends the servers; false if one does not end.
    async fn end(&self) -> Result<bool, Error> {
        let Some(mut state) = State::read(&self.dir)? else {
            let path = State::path(&self.dir);
            println!("{} does not exist: no servers to end in this directory", path.display());
            return Ok(true);
        };
        let mut alive = Vec::new();
        for server in &state.servers {
            let mut nodes = Vec::new();
            for (node, end) in end_all(&state, server, self.timeout).await? {
                println!("{:<14} pid {:<8} {}", node.name, node.process.pid, said(end, self.timeout));
                if end == End::NotAtAll {
                    nodes.push(node.clone());
                } else {
                    kinds::clean_up(server.kind, &node.data);
                }
            }
            if !nodes.is_empty() {
                alive.push(Server { nodes, ..server.clone() });
            } else if !self.keep {
                // The name and not a path from the file, so that nothing outside the directory is removed.
                remove_all(&self.dir.join(server.kind.name()))?;
            }
        }
        let made_directory = state.made_directory;
        state.servers = alive;
        if !state.servers.is_empty() {
            state.write(&self.dir)?;
            return Ok(false);
        }
        let path = State::path(&self.dir);
        fs::remove_file(&path).map_err(file("cannot remove", &path))?;
        match fs::remove_dir(&self.dir) {
            _ if !made_directory || self.keep => println!("{} is kept", self.dir.display()),
            Ok(()) => println!("{} is removed", self.dir.display()),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                println!("{} is kept: it has files that `up` has not made", self.dir.display());
            }
            Err(error) => return Err(file("cannot remove", &self.dir)(error)),
        }
        Ok(true)
    }
}

/// Ends the nodes of one kind, all at once.
async fn end_all<'a>(state: &State, server: &'a Server, limit: Duration) -> Result<Vec<(&'a Node, End)>, Error> {
    let tree = |node: &Node| if state.is_running(node) { node.process.tree() } else { Vec::new() };
    let nodes: Vec<(&Node, Vec<Identity>)> = server.nodes.iter().map(|node| (node, tree(node))).collect();
    let is_gone = |tree: &[Identity]| tree.iter().all(|process| !process.is_running());
    let failed = |node: &Node| {
        let node = node.name.clone();
        move |source| Error::Process { what: "end", node, source }
    };
    for (node, tree) in nodes.iter().filter(|(_, tree)| !tree.is_empty()) {
        node.process.signal(kinds::stop_signal(server.kind)).map_err(failed(node))?;
        // A paused process acts on the signal when it is resumed.
        signal_all(tree, Signal::CONT).map_err(failed(node))?;
    }
    wait(limit, || nodes.iter().all(|(_, tree)| is_gone(tree))).await;
    let mut ends = Vec::new();
    for (node, tree) in &nodes {
        let mut end = if tree.is_empty() { End::Before } else { End::Gracefully };
        if !is_gone(tree) {
            signal_all(tree, Signal::KILL).map_err(failed(node))?;
            end = if wait(Duration::from_secs(10), || is_gone(tree)).await { End::Killed } else { End::NotAtAll };
        }
        ends.push((*node, end));
    }
    Ok(ends)
}

fn said(end: End, limit: Duration) -> String {
    match end {
        End::Before => {
            "had ended before: the process with this ID, if there is one, was not started by `up`".to_owned()
        }
        End::Gracefully => "has ended".to_owned(),
        End::Killed => format!("did not end within {}, and was killed", humantime::format_duration(limit)),
        End::NotAtAll => {
            "does not end, not even by SIGKILL: the system is stuck in its I/O; try again later".to_owned()
        }
    }
}

fn remove_all(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(file("cannot remove", path)),
    }
}
