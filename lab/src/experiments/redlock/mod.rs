//! Experiment `redlock`: Redlock on five Redis under a partition, a pause, and a crash without sync.
//!
//! A majority of five instances grants the lock. Where that is enough, and where it is not: two majorities share an
//! instance, and an instance that forgets its key, or a client that is paused, is enough for two owners. The fence refuses
//! the earlier owner's write, if the token comes from one counter. Redlock's own numbers do not grow with the grants, so
//! a fence with them is shown, too.
//!
//! | file | contents |
//! |---|---|
//! | `case` | one case: the faults, the clients' steps, what came of it |
//! | `page` | the page |

mod case;
mod page;

pub use page::page;
use palisade_history::Recorder;
use serde::{Deserialize, Serialize};

use self::case::FaultCase;
use super::processes::Counts;
use super::{Context, Found};
use crate::history::Judgement;
use crate::report::Prediction;
use crate::resource::rule::Fence;
use crate::servers::{self, Durability, Kind, Options};

pub(super) const ROUNDS: u64 = 3;
/// How often A fails before it is granted the lock: that many numbers are used up at two instances.
const FAILURES: u64 = 3;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The rounds.
    pub rounds: Vec<Round>,
}

/// What happens while A holds the lock. A is cut off from instances 4 and 5, unless the fault says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Nothing else.
    MinorityPartition,
    /// A is cut off from three instances, before it asks.
    MajorityPartition,
    /// A is stopped by SIGSTOP until its lease is over, and B is cut off from instances 1 and 2.
    Pause,
    /// Instance 3 is killed and started again at once; it syncs each write.
    SyncedCrash,
    /// Instance 3 is killed and started again at once; it syncs nothing.
    Crash,
    /// As `Crash`, but the instance stays away until the TTL has passed.
    DelayedRestart,
}

/// Where the tokens of the writes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokens {
    /// The greatest of the counters of the instances that granted the lock.
    Own,
    /// One counter elsewhere, which the owner asks when it has the lock.
    Counter,
}

/// The resource's rule, and the tokens that it sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writes {
    /// Whether stale tokens are refused.
    pub fence: Fence,
    /// Where tokens come from.
    pub tokens: Tokens,
}

/// One round of a case. Times are since its beginning, in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The fault.
    pub fault: Fault,
    /// How both owners write, if two owners are predicted.
    pub writes: Option<Writes>,
    /// The round's number.
    pub round: u64,
    /// The TTL.
    pub ttl_ms: u64,
    /// Client A, which asks first.
    pub a: RedlockClient,
    /// Client B.
    pub b: RedlockClient,
    /// From when to when A was stopped.
    pub stopped_us: Option<(u64, u64)>,
    /// The owners whose writes were accepted, in their order.
    pub accepted: Vec<String>,
    /// What the resource counted.
    pub counts: Option<Counts>,
    /// What the checkers say of the history.
    pub judged: Judgement,
}

/// What a client got.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedlockClient {
    /// When it was granted the lock.
    pub granted_us: Option<u64>,
    /// When it was refused the lock, the first time.
    pub refused_us: Option<u64>,
    /// The end of its lease by its own clock, which is right.
    pub lease_until_us: Option<u64>,
    /// Redlock's number of its grant.
    pub number: Option<u64>,
    /// The token of its write.
    pub token: Option<u64>,
    /// When the resource answered its write.
    pub written_us: Option<u64>,
}

impl Round {
    /// Whether B was granted the lock while A's lease ran.
    #[must_use]
    pub fn two_holders(&self) -> bool {
        matches!((self.a.lease_until_us, self.b.granted_us), (Some(until), Some(granted)) if granted < until)
    }

    /// Whether B was refused the lock while A's lease ran.
    #[must_use]
    pub fn refused_in_time(&self) -> bool {
        matches!((self.a.lease_until_us, self.b.refused_us), (Some(until), Some(refused)) if refused < until)
    }

    /// Whether A's write was accepted after B's, whose grant is later.
    #[must_use]
    pub fn stale_write(&self) -> bool {
        self.accepted == ["B", "A"]
    }

    /// Whether A's write was refused, and B's was not.
    #[must_use]
    pub fn refused_write(&self) -> bool {
        self.accepted == ["B"] && self.counts.is_some_and(|counts| counts.stale_rejections == 1)
    }

    /// Whether the checkers find two holders exactly if there were two, and stale writes exactly if the resource counted
    /// them. Redlock's own numbers are no tokens: with them, the checkers must accuse the lock of that, too.
    #[must_use]
    pub fn judged_alike(&self) -> bool {
        let own = self.writes.is_some_and(|writes| writes.tokens == Tokens::Own);
        let stale = self.counts.map_or(0, |counts| counts.stale_accepted);
        self.judged.service.is_empty() != (self.two_holders() || own)
            && (own || self.judged.resource.len() as u64 == stale)
    }
}

/// Runs all cases, one after the other.
///
/// # Errors
/// A server or a process fails.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let failed = |error: servers::Error| error.to_string();
    let volatile = Options { durability: Durability::Volatile, ..Options::default() };
    let volatile = servers::start(Kind::Redlock, &volatile).await.map_err(failed)?;
    let counter = servers::start(Kind::Redis, &Options::default()).await.map_err(failed)?;
    let rule = |fence, tokens| Some(Writes { fence, tokens });
    let off = rule(Fence::Off, Tokens::Counter);
    let on = [rule(Fence::On, Tokens::Own), rule(Fence::On, Tokens::Counter)];
    let mut rounds = Vec::new();
    for round in 1..=context.rounds.unwrap_or(ROUNDS) {
        eprintln!("redlock: round {round}");
        let one = async |fault, writes| {
            let cluster = match fault {
                Fault::Crash | Fault::DelayedRestart => &volatile,
                _ => &*context.cluster,
            };
            let case = FaultCase {
                fault,
                writes,
                round,
                cluster,
                counter: counter.address(0),
                recorder: Recorder::in_memory(),
                metrics: &context.metrics,
            };
            let name = format!("{fault:?}, {writes:?}, round {round}");
            case.run().await.map_err(|reason| format!("{name}: {reason}"))
        };
        for fault in [Fault::MinorityPartition, Fault::MajorityPartition, Fault::SyncedCrash, Fault::DelayedRestart] {
            rounds.push(one(fault, None).await?);
        }
        for fault in [Fault::Pause, Fault::Crash] {
            for writes in [off].into_iter().chain(on) {
                if writes.is_some_and(|writes: Writes| context.fences.contains(&writes.fence)) {
                    rounds.push(one(fault, writes).await?);
                }
            }
        }
    }
    let predictions = predictions(&rounds);
    Ok((Figures { rounds }, predictions))
}

fn predictions(rounds: &[Round]) -> Vec<Prediction> {
    let mut predictions = Vec::new();
    let mut all = |what: &str, of: &dyn Fn(&Round) -> bool, holds: &dyn Fn(&Round) -> bool| {
        let cases: Vec<_> = rounds.iter().filter(|round| of(round)).collect();
        if !cases.is_empty() {
            predictions.push(Prediction::all(what, cases.len(), cases.iter().filter(|round| holds(round)).count()));
        }
    };
    let held = |round: &Round| round.a.granted_us.is_some() && round.refused_in_time() && !round.two_holders();
    all(
        "a minority out of reach: A is granted the lock, and B refused it meanwhile",
        &is(Fault::MinorityPartition),
        &held,
    );
    all("a majority out of reach: A is refused the lock, and B granted it", &is(Fault::MajorityPartition), &|round| {
        round.a.granted_us.is_none() && round.b.granted_us.is_some()
    });
    all("a crash with sync: B is refused the lock while A's lease runs", &is(Fault::SyncedCrash), &held);
    all(
        "a crash without sync, delayed restart: B is refused the lock while A's lease runs",
        &is(Fault::DelayedRestart),
        &held,
    );
    all("a crash without sync: B is granted the lock while A's lease runs", &is(Fault::Crash), &Round::two_holders);
    all("a pause: B is granted the lock when A's lease is over", &is(Fault::Pause), &|round| {
        round.a.granted_us.is_some() && round.b.granted_us.is_some() && !round.two_holders()
    });
    for (fault, name) in [(Fault::Pause, "a pause"), (Fault::Crash, "a crash without sync")] {
        let with =
            |fence, tokens| move |round: &Round| round.fault == fault && round.writes == Some(Writes { fence, tokens });
        let off = with(Fence::Off, Tokens::Counter);
        all(&format!("{name}, fence off: A's write is accepted after B's"), &off, &Round::stale_write);
        let own = with(Fence::On, Tokens::Own);
        let what = format!(
            "{name}, fence on, Redlock's own numbers: B's is the lower one, and A's write is accepted after B's"
        );
        all(&what, &own, &|round| round.b.number < round.a.number && round.stale_write());
        let counter = with(Fence::On, Tokens::Counter);
        let what = format!("{name}, fence on, tokens from one counter: A's write is refused with 409");
        all(&what, &counter, &Round::refused_write);
    }
    all("the checkers of histories find the same", &|_| true, &Round::judged_alike);
    predictions
}

fn is(fault: Fault) -> impl Fn(&Round) -> bool {
    move |round| round.fault == fault
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(fault: Fault, writes: Option<Writes>, b_granted_us: u64, accepted: &[&str]) -> Round {
        let a = RedlockClient {
            granted_us: Some(1),
            lease_until_us: Some(100),
            number: Some(4),
            ..RedlockClient::default()
        };
        let b = RedlockClient {
            granted_us: Some(b_granted_us),
            refused_us: Some(50),
            number: Some(1),
            ..RedlockClient::default()
        };
        let accepted: Vec<_> = accepted.iter().map(|&name| name.to_owned()).collect();
        let refused = u64::from(accepted == ["B"]);
        let counts = Counts { stale_rejections: refused, ..Counts::default() };
        let judged = Judgement::default();
        let (counts, stopped_us) = (writes.map(|_| counts), None);
        Round { fault, writes, round: 1, ttl_ms: 1, a, b, stopped_us, accepted, counts, judged }
    }

    fn first(round: &Round) -> bool {
        predictions(std::slice::from_ref(round))[0].holds
    }

    #[test]
    fn a_grant_before_the_end_of_a_lease_is_a_second_holder() {
        assert!(first(&round(Fault::DelayedRestart, None, 100, &[])));
        assert!(!first(&round(Fault::DelayedRestart, None, 99, &[])));
        assert!(first(&round(Fault::Crash, None, 99, &[])));
        assert!(!first(&round(Fault::Crash, None, 100, &[])), "a run without two holders was accepted");
        let mut never_asked = round(Fault::SyncedCrash, None, 100, &[]);
        never_asked.b.refused_us = Some(100);
        assert!(!first(&never_asked), "B did not ask while A held the lock");
    }

    #[test]
    fn a_stale_write_is_found_with_any_tokens() {
        let writes = |fence, tokens| Some(Writes { fence, tokens });
        let outcome = |writes, accepted: &[&str]| {
            let round = round(Fault::Pause, writes, 100, accepted);
            predictions(&[round])[1].holds
        };
        let (off, own) = (writes(Fence::Off, Tokens::Counter), writes(Fence::On, Tokens::Own));
        let on = writes(Fence::On, Tokens::Counter);
        assert!(outcome(off, &["B", "A"]) && !outcome(off, &["B"]) && !outcome(off, &["A", "B"]));
        assert!(outcome(own, &["B", "A"]) && !outcome(own, &["B"]));
        assert!(outcome(on, &["B"]) && !outcome(on, &["B", "A"]) && !outcome(on, &[]));
    }

    #[test]
    fn pause_of_a_client_without_the_lock_has_failed() {
        let pause = round(Fault::Pause, None, 100, &[]);
        assert!(first(&pause));
        let mut never_granted = pause;
        (never_granted.a.granted_us, never_granted.a.lease_until_us) = (None, None);
        assert!(!first(&never_granted));
    }

    #[test]
    fn checkers_that_disagree_are_found() {
        let mut two = round(Fault::Crash, None, 99, &[]);
        assert!(!two.judged_alike());
        two.judged.service.push(String::new());
        assert!(two.judged_alike());
        let mut one = round(Fault::SyncedCrash, None, 100, &[]);
        assert!(one.judged_alike());
        one.judged.resource.push(String::new());
        assert!(!one.judged_alike());
    }
}
