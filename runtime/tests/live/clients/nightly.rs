//! The job that the README tells a new user to try, in each language: it survives the leader, and learns of a pause.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use super::clusters::await_queue;
use super::program::{Kind, Program};
use super::unless_missing;
use crate::support::cluster::Cluster;
use crate::support::process::Running;
use crate::support::{eventually, http};

const KEY: &str = "nightly";

/// A job that runs, and what it has printed.
pub(super) struct Job {
    pub(super) process: Running,
    printed: PathBuf,
    _directory: tempfile::TempDir,
}

impl Job {
    pub(super) fn start(mut command: Command, cluster: &Cluster) -> Job {
        let directory = tempfile::tempdir().expect("there is a temporary directory");
        let printed = directory.path().join("printed");
        let file = File::create(&printed).expect("the file can be made");
        let errors = file.try_clone().expect("the file has two handles");
        command.env("PALISADE_ENDPOINTS", cluster.endpoints().join(",")).stdout(file).stderr(errors);
        Job { process: Running::start(&mut command), printed, _directory: directory }
    }

    pub(super) fn printed(&self) -> String {
        fs::read_to_string(&self.printed).expect("the file is text")
    }

    /// How many pages the job has written.
    fn pages(&self) -> usize {
        self.printed().matches(" is written").count()
    }

    fn await_pages(&self, pages: usize) {
        eventually("the job writes pages", || (self.pages() >= pages).then_some(()));
    }

    /// The token with which the job holds the lock.
    fn await_token(&self) -> u64 {
        eventually("the job is granted the lock", || {
            let printed = self.printed();
            let (_, rest) = printed.split_once("holds the lock with token ")?;
            rest.split_once('\n')?.0.parse().ok()
        })
    }
}

/// Goal: the job goes on with its token after the leader was killed. A job that was paused past its TTL, while the next
/// job wrote, has its next write refused, and ends with the loss of its lock.
fn survives_the_leader_and_notices_a_pause(program: &Program) {
    let mut cluster = Cluster::start(3);
    let mut paused = Job::start(program.command(), &cluster);
    let token = paused.await_token();
    paused.await_pages(2);
    let next = Job::start(program.command(), &cluster);
    await_queue(&cluster, KEY, 1);

    cluster.kill(cluster.wait_ready());
    let leader = cluster.wait_ready();
    paused.await_pages(paused.pages() + 2);

    paused.process.freeze();
    let next_token = next.await_token();
    assert!(next_token > token, "token {next_token} was granted after token {token}");
    next.await_pages(1);
    paused.process.signal(Signal::CONT);
    assert_eq!(paused.process.exit_code(), 1, "{}", paused.printed());
    let printed = paused.printed();
    let granted = format!("token {next_token} was granted after it");
    assert!(printed.contains(" is refused: ") && printed.contains(&granted), "{printed}");
    let lost = printed.lines().find(|line| line.starts_with("the job is not done: "));
    assert!(lost.is_some_and(|line| line.contains(&format!("token {token}"))), "{printed}");

    next.await_pages(next.pages() + 2);
    let record = http::get(&cluster.client_addr(leader), "/v1/kv/nightly").expect("the leader answers");
    assert_eq!(record.header("x-max-fence"), Some(next_token.to_string().as_str()), "{record:?}");
}

#[test]
fn python() {
    unless_missing(Kind::Python.nightly(), |program| survives_the_leader_and_notices_a_pause(&program));
}

#[test]
fn typescript() {
    unless_missing(Kind::TypeScript.nightly(), |program| survives_the_leader_and_notices_a_pause(&program));
}

#[test]
fn go() {
    unless_missing(Kind::Go.nightly(), |program| survives_the_leader_and_notices_a_pause(&program));
}
