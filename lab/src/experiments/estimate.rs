//! How long experiments take on a quiet machine: from the times that their cases wait, and from what starting servers and
//! processes has been seen to take.

use std::time::Duration;

use super::{Name, clocks, contention, failover, fairness, fenced_stores, pause, peers, redlock, release, renew};
use super::{ten_million, tokens, ttl, work};
use crate::dlock::Backend;
use crate::dlock::tokens::Tokens;

/// A load average above which other programs are in the way.
pub(super) const BUSY: f64 = 1.0;

/// No experiment is said to take longer, in seconds: sums of such times fit a [`Duration`].
const LONGEST_S: f64 = 1e15;

/// What of the command line changes how long an experiment takes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked {
    pub(super) rounds: Option<u64>,
    pub(super) contenders: usize,
    pub(super) keys: Option<u64>,
    pub(super) duration: Option<Duration>,
    pub(super) ttl: Option<Duration>,
    pub(super) work: Option<Duration>,
    pub(super) pause: Option<Duration>,
    pub(super) window: Option<Duration>,
    /// Rules of the resource.
    pub(super) fences: usize,
    /// Lock services of `peers`.
    pub(super) peers: usize,
}

/// How long an experiment takes on one lock service, its servers' start and end included; of `peers`, on all.
pub(super) fn time(name: Name, backend: Backend, asked: &Asked) -> Duration {
    let or = |time: Option<Duration>, usual: Duration| time.unwrap_or(usual).as_secs_f64();
    let ms = |ms: u64| Duration::from_millis(ms);
    let rounds = |usual: u64| asked.rounds.unwrap_or(usual) as f64;
    // The time of the waits, beside what the steps of the round take.
    let pause = or(asked.pause, ms(pause::PAUSE_MS)) + 1.0;
    let seconds = match name {
        Name::Pause => rounds(pause::ROUNDS) * pause,
        Name::Release => {
            let kinds = if backend == Backend::Redis { 2.0 } else { 1.0 };
            rounds(release::ROUNDS) * kinds * (release::TTL_MS as f64 / 1e3 + 0.5)
        }
        // A holder is killed, and another one releases in the first half of its lease.
        Name::Ttl => {
            let ttls = asked.ttl.map_or_else(|| ttl::TTLS_MS.map(ms).to_vec(), |ttl| vec![ttl]);
            ttls.iter().map(|ttl| 1.5 * ttl.as_secs_f64() + 2.0).sum()
        }
        Name::Renew => {
            let (cases, pauses) = (renew::CASES.len() as f64, renew::PAUSES.len() as f64);
            let mean = renew::PAUSES.iter().sum::<u64>() as f64 / pauses / 100.0;
            let round = or(asked.ttl, ms(renew::TTL_MS)) * (mean + 0.3) + 1.0;
            cases * pauses * asked.fences as f64 * rounds(renew::ROUNDS) * round / renew::AT_ONCE as f64
        }
        // The jobs with a TTL of twice the work come one after the other.
        Name::Work => {
            let of = |(work_ms, jobs): (u64, u64)| work::WORKERS as f64 * rounds(jobs) * (work_ms as f64 / 1e3 + 0.02);
            let (longest, shorter) = work::works(asked.work.map(crate::event::millis));
            of(longest).max(shorter.into_iter().map(|work| 2.5 * of(work)).sum()) + 3.0
        }
        Name::Contention => {
            let cases = if asked.contenders > 0 { asked.contenders } else { contention::CONTENDERS.len() };
            let open = contention::open::DURATION.as_secs_f64();
            let closed = or(asked.duration, contention::DURATION) + 4.0;
            // A round without contention: the work, with the timer's rounding, between an acquire and a release.
            let around = if backend == Backend::ZooKeeper { 0.02 } else { 0.005 };
            let uncontended = contention::UNCONTENDED as f64 * (or(asked.work, contention::WORK) + around);
            cases as f64 * closed + contention::open::LOADS.len() as f64 * (open + 3.0) + uncontended + 4.0
        }
        Name::Fairness => 3.0 * or(asked.duration, fairness::DURATION) + 2.0,
        Name::Tokens => {
            let all = [Tokens::Revision, Tokens::PerKey, Tokens::Sharded(tokens::SHARDS), Tokens::Global];
            let sources = all.into_iter().filter(|tokens| tokens.fits(backend)).count() as f64;
            rounds(tokens::ROUNDS) * sources * or(asked.duration, tokens::WINDOW) + 3.0
        }
        // The stores start, and each round ends with races.
        Name::FencedStores => {
            10.0 + rounds(pause::ROUNDS) * (pause + 2.0 * asked.fences as f64 * fenced_stores::RACES as f64 * 0.2)
        }
        Name::Redlock => {
            5.0 + rounds(redlock::ROUNDS) * (4.0 * 2.0 + 3.0 + asked.fences as f64 * 1.5 * (3.0 + 2.0 + 2.0))
        }
        Name::Prediction => match backend {
            Backend::Redlock => 50.0,
            _ => 20.0,
        },
        Name::TenMillion => ten_million::seconds(backend, asked.keys, asked.duration),
        Name::Peers => {
            let cells = (peers::OWN.len() + peers::SHARED.len() + peers::HOT.len()) as f64;
            let systems = if asked.peers > 0 { 2.0 * asked.peers as f64 } else { 10.0 };
            // Each cell connects, has a load that is not counted, and drains.
            let cell = or(asked.window, peers::WINDOW) + 2.0;
            systems * (rounds(peers::ROUNDS) * (cells * cell + 1.5) + cell + 4.0)
        }
        Name::Failover => 2.0 * rounds(failover::ROUNDS) * 11.0,
        Name::Clocks => {
            let servers = match backend {
                Backend::Redis => 1,
                Backend::Redlock => 5,
                _ => 3,
            };
            let cases = clocks::ClockCase::all(servers).len() as f64;
            // The clocks of one case jump back, and the other client waits for the end of the lease and longer.
            let longest = (clocks::TTL_MS + clocks::LATE_MS) as f64 / 1e3;
            rounds(clocks::ROUNDS) * ((cases - 1.0) * 4.0 + longest + 1.0)
        }
    };
    let start = match backend {
        _ if name == Name::Peers => 40.0,
        Backend::Redis => 1.0,
        Backend::Redlock | Backend::Palisade => 3.0,
        Backend::Etcd | Backend::EtcdLock => 5.0,
        Backend::ZooKeeper => 8.0,
    };
    Duration::from_secs_f64((seconds + start).min(LONGEST_S))
}

/// A time in whole seconds, or in whole minutes if it is long.
pub(super) fn words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

/// What to say of a load average, if it is too high.
pub(super) fn noise(load: &str) -> Option<String> {
    let busy = load.parse::<f64>().is_ok_and(|load| load > BUSY);
    busy.then(|| format!("figures will be noisy: load {load}; end other programs, or wait until it is below {BUSY:.1}"))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    fn seconds(name: Name, backend: Backend, asked: &Asked) -> u64 {
        time(name, backend, asked).as_secs()
    }

    #[test]
    fn each_experiment_has_a_time_that_its_flags_change() {
        let asked = Asked { fences: 2, ..Asked::default() };
        for name in Name::value_variants() {
            for backend in name.backends() {
                let time = seconds(*name, backend, &asked);
                assert!((5..3_600).contains(&time), "{} on {backend}: {time} s", name.text());
                let Some(flag) = ["rounds", "duration"].into_iter().find(|flag| name.takes(flag)) else { continue };
                let more = match flag {
                    "rounds" if *name != Name::Ttl => Asked { rounds: Some(100), ..asked },
                    "duration" => Asked { duration: Some(Duration::from_secs(7_200)), ..asked },
                    // The rounds of one TTL run at the same time.
                    _ => continue,
                };
                assert!(seconds(*name, backend, &more) >= time, "{} on {backend}: --{flag}", name.text());
            }
        }
        let endless = Asked { rounds: Some(u64::MAX), keys: Some(u64::MAX), ..asked };
        assert!(Name::value_variants().iter().all(|name| seconds(*name, Backend::Redlock, &endless) >= 5));
        let (rounds, window) = (Some(10), Some(Duration::from_secs(3)));
        let time = |asked| seconds(Name::Peers, Backend::Palisade, &asked);
        assert!(time(Asked { rounds, ..asked }) > time(asked) && time(Asked { window, ..asked }) > time(asked));
    }

    #[test]
    fn load_above_one_is_named() {
        assert_eq!(noise("1.00"), None);
        assert_eq!(noise("unknown"), None);
        assert!(noise("3.2").is_some_and(|text| text.starts_with("figures will be noisy: load 3.2;")));
    }

    #[test]
    fn long_times_are_in_minutes() {
        assert_eq!([119, 120, 121].map(|seconds| words(Duration::from_secs(seconds))), ["119 s", "2 min", "3 min"]);
    }
}
