//! docs/coming-from/README.md: a fleet changes its lock while its jobs run, step by step, and no two jobs overlap. The
//! direct way, from the old version to the new one, has two holders: so these jobs do notice.

use std::fs;
use std::process::{Command, Stdio};

use super::servers;
use super::shell::Shell;
use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::process::Running;

/// A job of a version. It makes a directory, which only one process at a time can, and notes an overlap if it cannot.
const JOB: &str = r#"
if ! mkdir working 2> not-made; then
    echo "$1" >> overlaps
    exit
fi
sleep 0.05
rmdir working
echo "$1" >> jobs
"#;

/// How a worker takes etcd's lock: for longer than a busy machine may stand still.
const ETCD: &str = r#"
under_the_old_lock() { etcdctl lock --ttl 60 nightly -- "$@"; }
"#;

/// How a worker takes the key on Redis.
const REDIS: &str = r#"
under_the_old_lock() {
    until [ "$(redis-cli SET nightly $$ NX PX 600000)" = OK ]; do sleep 0.02; done
    "$@"
    redis-cli EVAL "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0" \
        1 nightly $$
}
"#;

/// What a worker of each version does, again and again.
const VERSIONS: [(&str, &str); 3] = [
    ("old", "under_the_old_lock job old"),
    ("both", "under_the_old_lock palisade lock nightly --wait 60s -- job both"),
    ("new", "palisade lock nightly --wait 60s -- job new"),
];

struct Fleet {
    shell: Shell,
}

impl Fleet {
    fn count(&self, file: &str, version: &str) -> usize {
        let jobs = fs::read_to_string(self.shell.directory.path().join(file)).unwrap_or_default();
        jobs.lines().filter(|line| *line == version).count()
    }

    /// Two workers of a version.
    fn roll_out(&self, version: &str) -> Vec<Running> {
        let (_, work) = VERSIONS.iter().find(|(name, _)| *name == version).expect("a version");
        let script = format!("{}\nuntil [ -e stop-{version} ]; do {work}; done", self.shell.prelude);
        let start = |_| {
            let mut worker = Command::new("sh");
            worker.args(["-c", &script]).current_dir(self.shell.directory.path());
            Running::start(worker.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
        };
        (0..2).map(start).collect()
    }

    /// Waits until each of these versions has done some more jobs.
    fn work(&self, versions: &[&str]) {
        let before: Vec<_> = versions.iter().map(|version| self.count("jobs", version)).collect();
        eventually(&format!("{versions:?} do some jobs"), || {
            let have_worked =
                versions.iter().zip(&before).all(|(version, before)| self.count("jobs", version) > before + 2);
            have_worked.then_some(())
        });
    }

    /// Ends the workers of a version when their jobs are done.
    fn end(&self, version: &str, workers: Vec<Running>) {
        let stop = self.shell.directory.path().join(format!("stop-{version}"));
        fs::write(&stop, "").unwrap();
        for mut worker in workers {
            assert!(worker.wait().success(), "a worker of the version {version} failed");
        }
        fs::remove_file(stop).unwrap();
    }

    fn overlaps(&self) -> String {
        fs::read_to_string(self.shell.directory.path().join("overlaps")).unwrap_or_default()
    }
}

fn changes_over(kind: servers::Kind, old_lock: &str) {
    let cluster = Cluster::start_calm(3);
    let mut shell = Shell::new(&cluster.endpoints());
    let _server = match servers::start(kind, &mut shell) {
        Ok(server) => server,
        Err(missing) => return eprintln!("SKIPPED: {missing}"),
    };
    shell.prelude += old_lock;
    shell.tool("job", JOB);
    let fleet = Fleet { shell };
    // All workers take the old lock.
    let old = fleet.roll_out("old");
    fleet.work(&["old"]);
    // The first roll-out: some workers take both locks.
    let both = fleet.roll_out("both");
    fleet.work(&["old", "both"]);
    // All do.
    fleet.end("old", old);
    fleet.work(&["both"]);
    // The second roll-out: some take the new lock alone.
    let new = fleet.roll_out("new");
    fleet.work(&["both", "new"]);
    // All do.
    fleet.end("both", both);
    fleet.work(&["new"]);
    assert_eq!(fleet.overlaps(), "", "two jobs at a time");
    // The direct way back.
    let old = fleet.roll_out("old");
    eventually("old and new workers overlap", || (!fleet.overlaps().is_empty()).then_some(()));
    fleet.end("old", old);
    fleet.end("new", new);
}

#[test]
fn fleet_on_etcd_changes_over_without_two_holders() {
    changes_over(servers::Kind::Etcd, ETCD);
}

#[test]
fn fleet_on_redis_changes_over_without_two_holders() {
    changes_over(servers::Kind::Redis, REDIS);
}
