//! Faults that experiments inject into a running node: stop, kill, pause, resume and restart it, and set its clock.

use std::time::Duration;

use rustix::process::Signal;

use super::{Cluster, Node};
use crate::servers::error::Error;
use crate::servers::process::{Identity, signal_all, wait, wait_stopped};
use crate::servers::{clock, kinds};

/// How a stopped server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// By itself, after it was asked to.
    Gracefully,
    /// By SIGKILL, because it did not end in time.
    Killed,
}

impl Cluster {
    /// Starts a node that was stopped or killed, with its data, and waits until it serves.
    /// The object store has none: it is kept in memory.
    ///
    /// # Errors
    /// As [`Cluster::launch`] and [`Cluster::wait_ready`].
    pub async fn restart(&self, node: usize) -> Result<(), Error> {
        self.launch(node)?;
        self.wait_ready(node).await
    }

    /// Asks the node to end, and kills it if it does not in time. A paused node is resumed for that.
    ///
    /// # Errors
    /// The node does not run, or the system refuses a signal.
    pub async fn stop(&self, node: usize) -> Result<Stopped, Error> {
        let tree = self.tree(node, "stop")?;
        let failed = |source| Error::Process { what: "stop", node: self.name(node).to_owned(), source };
        self.nodes[node].signal_main(kinds::stop_signal(self.kind)).map_err(failed)?;
        signal_all(&tree, Signal::CONT).map_err(failed)?;
        if wait(self.options.stop_timeout, || self.nodes[node].is_gone(&tree)).await {
            return Ok(Stopped::Gracefully);
        }
        self.kill(node).await?;
        Ok(Stopped::Killed)
    }

    /// Kills the node with SIGKILL, as a crash of its machine would, except that the system keeps what was
    /// written and not yet forced to the disk.
    ///
    /// # Errors
    /// The node does not run, or the system refuses the signal.
    pub async fn kill(&self, node: usize) -> Result<(), Error> {
        let tree = self.tree(node, "kill")?;
        let failed = |source| Error::Process { what: "kill", node: self.name(node).to_owned(), source };
        signal_all(&tree, Signal::KILL).map_err(failed)?;
        if wait(Duration::from_secs(30), || self.nodes[node].is_gone(&tree)).await {
            return Ok(());
        }
        Err(failed(std::io::Error::other("it has not ended 30 s after SIGKILL: the system is stuck in its I/O")))
    }

    /// Pauses the node with SIGSTOP: it keeps its connections and answers nothing. Returns once it is still.
    ///
    /// # Errors
    /// The node does not run, or the system refuses the signal.
    pub fn pause(&self, node: usize) -> Result<(), Error> {
        let failed = |source| Error::Process { what: "pause", node: self.name(node).to_owned(), source };
        // A process that was started while the first ones were stopped is found by the second look.
        for _ in 0..2 {
            let tree = self.tree(node, "pause")?;
            signal_all(&tree, Signal::STOP).map_err(failed)?;
            if !wait_stopped(&tree) {
                return Err(failed(std::io::Error::other("it still runs 5 s after SIGSTOP")));
            }
        }
        Ok(())
    }

    /// Resumes a paused node with SIGCONT.
    ///
    /// # Errors
    /// The node does not run, or the system refuses the signal.
    pub fn resume(&self, node: usize) -> Result<(), Error> {
        let mut tree = self.tree(node, "resume")?;
        tree.reverse();
        let failed = |source| Error::Process { what: "resume", node: self.name(node).to_owned(), source };
        signal_all(&tree, Signal::CONT).map_err(failed)
    }

    /// Sets the node's wall clock off by an offset from now on, as in `+10s`, `-1.5m`, `+0`, while it runs.
    /// The servers were started with [`Options::fake_clock`](super::Options::fake_clock). Only the wall clock moves: the monotonic one
    /// does not. It has no effect on etcd, which reads the clock without the C library.
    ///
    /// # Errors
    /// The servers run without libfaketime, or the file cannot be written.
    pub fn set_clock(&self, node: usize, offset: &str) -> Result<(), Error> {
        if !self.options.fake_clock {
            return Err(Error::State {
                node: self.name(node).to_owned(),
                state: "runs with the machine's clock; start it with Options::fake_clock",
            });
        }
        clock::write(&self.nodes[node].plan.dir, offset)
    }

    fn tree(&self, node: usize, what: &'static str) -> Result<Vec<Identity>, Error> {
        let tree = self.identity(node).map(|process| process.tree()).unwrap_or_default();
        if tree.is_empty() {
            let state = match what {
                "stop" | "kill" => "does not run: it was stopped before, or has ended by itself (see its log)",
                _ => "does not run; restart it first",
            };
            return Err(Error::State { node: self.name(node).to_owned(), state });
        }
        Ok(tree)
    }
}

impl Node {
    /// Signals the process that was started, and not those that it has started.
    pub(super) fn signal_main(&self, signal: Signal) -> std::io::Result<()> {
        match self.running.lock().as_ref() {
            Some((_, process)) => process.signal(signal).map(drop),
            None => Ok(()),
        }
    }

    /// Whether all processes of the tree have ended. Waits for the child, so that no zombie stays.
    pub(super) fn is_gone(&self, tree: &[Identity]) -> bool {
        if let Some((child, _)) = self.running.lock().as_mut() {
            drop(child.try_wait());
        }
        tree.iter().all(|process| !process.is_running())
    }
}
