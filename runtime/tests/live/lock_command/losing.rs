//! A lock that cannot be held any longer: the command is dead before another client can get the
//! lock.
//!
//! A lease is good until the moment at which its last answered renewal was sent plus the TTL. Once
//! no node answers any more, no renewal is answered: from that moment the command has one TTL to
//! live, at the most.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Stage;
use super::heartbeat::{beat, beats, now};
use crate::support::process::{Running, lives};
use crate::support::{eventually, http};

const TTL: Duration = Duration::from_secs(4);
/// `palisade lock` keeps a twentieth of the TTL in reserve. If a thread that only sleeps was late
/// by half of that, the delay is the machine's, not that of `palisade`: the round is repeated.
const STALL: Duration = Duration::from_millis(100);
const ROUNDS: usize = 5;
const BEATS: [&str; 4] = ["obeys.beats", "ignores.beats", "son.beats", "daughter.beats"];

/// Three commands: one that tidies up when asked, one that ignores being asked, and one with
/// children that ignore it.
struct Trio(Vec<(&'static str, Running)>);

impl Trio {
    fn start(stage: &Stage) -> Trio {
        let obeys = format!("trap 'echo asked >> obeys.heard; exit 0' TERM; {}", beat("obeys.beats"));
        let ignores = format!("trap 'echo asked >> ignores.heard' TERM; {}", beat("ignores.beats"));
        let child = |name: &str| format!("(trap '' TERM INT HUP; {}) &", beat(name));
        let family = format!("trap '' TERM; {} {} wait", child("son.beats"), child("daughter.beats"));
        let scripts = [("obeys", obeys), ("ignores", ignores), ("family", family)];
        let trio = scripts.map(|(key, script)| (key, stage.start_lock(key, &["--ttl", "4s"], &script)));
        for file in BEATS {
            eventually("it beats", || (!beats(stage, file).is_empty()).then_some(()));
        }
        Trio(trio.into())
    }

    /// All of them end with 76, after a request to stop, and none of the processes that they
    /// started is left.
    fn expect_lost(self, stage: &Stage) {
        for (key, mut running) in self.0 {
            assert_eq!(running.exit_code(), 76, "{key}");
            let complaint = std::io::read_to_string(running.0.stderr.take().unwrap()).unwrap();
            assert!(complaint.contains("cannot be held any longer"), "{key}: {complaint}");
            assert!(!lives(stage.command_pid(key)));
        }
        assert_eq!(stage.read("obeys.heard"), "asked\n");
        assert!(stage.read("ignores.heard").starts_with("asked\n"));
    }
}

/// The last sign of life of each of them: not after `silence` + TTL, and not much sooner than need
/// be.
fn expect_dead_in_time(stage: &Stage, silence: Duration) {
    for file in BEATS {
        let last = *beats(stage, file).last().unwrap();
        assert!(last <= silence + TTL, "{file}: alive {:?} after the TTL ran out", last - silence - TTL);
        // Renewals are sent every third of a TTL: at least a third of it was left, and was used.
        assert!(last >= silence + TTL / 3, "{file}: stopped too soon, last seen at {last:?}, silence from {silence:?}");
    }
}

/// Waits until a lease has just been renewed: a cluster that falls silent now leaves almost a whole
/// TTL to the holder, which must not take more.
fn wait_for_renewal(stage: &Stage, key: &str) {
    let leader = stage.cluster.client_addr(stage.cluster.wait_ready());
    let mut left = u64::MAX;
    eventually("the lease is renewed", || {
        let view = http::get(&leader, &format!("/v1/locks/{key}?consistency=stale")).unwrap().ok();
        let before = std::mem::replace(&mut left, view["holder"]["expires_in_ms"].as_u64().unwrap());
        (left > before).then_some(())
    });
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs rounds until the machine was not delayed in one; what that round asserts holds.
fn awake<T>(mut round: impl FnMut() -> (T, Box<dyn FnOnce(T)>)) {
    for number in 1..=ROUNDS {
        let (over, latest) = (AtomicBool::new(false), AtomicU64::new(0));
        let (found, judge) = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    std::thread::sleep(Duration::from_millis(10));
                    let took = u64::try_from(begin.elapsed().as_millis()).unwrap();
                    latest.fetch_max(took, Ordering::Relaxed);
                }
            });
            // Also if the round fails: no test may wait for the thread for ever.
            let _over = Over(&over);
            round()
        });
        let latest = Duration::from_millis(latest.into_inner());
        if latest < STALL || number == ROUNDS {
            judge(found);
            return;
        }
        eprintln!("round {number}: the machine stood still for {latest:?}; again");
    }
}

/// The cluster is paused: connections stay open and no node answers. When it resumes, the next
/// waiter gets the lock, and the old holder's command has ended.
#[test]
fn a_frozen_cluster_ends_the_command_before_its_ttl() {
    awake(|| {
        let stage = Stage::set();
        let trio = Trio::start(&stage);
        let script = format!("{} & sleep 0.3; kill $!", beat("next.beats"));
        let mut next = Running::start(&mut stage.lock("ignores", &["--wait", "5m"], &script));
        eventually("it waits", || (stage.show("ignores")["queue"].as_array()?.len() == 1).then_some(()));
        wait_for_renewal(&stage, "ignores");
        stage.cluster.ids().into_iter().for_each(|id| stage.cluster.freeze(id));
        let silence = now();
        eventually("the TTL is over", || (now() > silence + TTL).then_some(()));
        stage.cluster.ids().into_iter().for_each(|id| stage.cluster.thaw(id));
        trio.expect_lost(&stage);
        assert_eq!(next.exit_code(), 0);
        eventually("nothing that they started is left", || stage.processes().is_empty().then_some(()));
        let last = *beats(&stage, "ignores.beats").last().unwrap();
        let first = *beats(&stage, "next.beats").first().unwrap();
        assert!(last < first, "the next began at {first:?}, the one before was alive at {last:?}");
        ((stage, silence), Box::new(|(stage, silence)| expect_dead_in_time(&stage, silence)))
    });
}

/// The cluster is gone: connections are refused. The same must hold.
#[test]
fn a_killed_cluster_ends_the_command_before_its_ttl() {
    awake(|| {
        let mut stage = Stage::set();
        let trio = Trio::start(&stage);
        wait_for_renewal(&stage, "ignores");
        stage.cluster.ids().into_iter().for_each(|id| stage.cluster.kill(id));
        let silence = now();
        trio.expect_lost(&stage);
        eventually("nothing that they started is left", || stage.processes().is_empty().then_some(()));
        ((stage, silence), Box::new(|(stage, silence)| expect_dead_in_time(&stage, silence)))
    });
}

/// Another client ended the session: the lock may have another holder already. With the next
/// renewal `palisade lock` learns this and stops the command, also one that ignores the request to
/// stop.
#[test]
fn a_session_that_was_ended_ends_the_command() {
    let stage = Stage::set();
    let trio = Trio::start(&stage);
    let leader = stage.cluster.client_addr(stage.cluster.wait_ready());
    for key in ["obeys", "ignores", "family"] {
        let session = stage.show(key)["holder"]["session"].as_str().unwrap().to_string();
        http::send(&leader, "DELETE", &format!("/v1/sessions/{session}"), "").unwrap().ok();
    }
    let ended = now();
    trio.expect_lost(&stage);
    eventually("nothing that they started is left", || stage.processes().is_empty().then_some(()));
    for file in BEATS {
        let last = *beats(&stage, file).last().unwrap();
        assert!(last < ended + TTL, "{file}: alive {:?} after the session's end", last - ended);
    }
}
