//! The gallery: common designs of distributed locks, each as a small model. The checker finds each
//! design's flaw, and shows that the same property holds in the repaired design.
//!
//! A flawed design and its repair are one model with one parameter: the rule in which they differ.
//! All else is idealized: servers that the flaw does not concern never fail, and clocks run at the
//! same rate. So the rule alone causes the violation. `docs/gallery.md` describes the designs.
//!
//! | module | design and fault |
//! |---|---|
//! | [`redis_failover`] | a key on one Redis server, asynchronous replication, and a failover |
//! | [`redis_release`] | giving a lock back with `GET` and `DEL` |
//! | [`redlock`] | Redlock, when an instance forgets a key |
//! | [`redlock_pause`] | Redlock, when a client pauses |
//! | [`fencing`] | any lock with a time-to-live, when a client pauses |
//! | [`made_up_token`] | a resource that compares fencing tokens, when a client makes one up |
//! | [`raft_early_apply`] | Raft, with followers that apply what is not committed |
//! | [`raft_early_token`] | Raft, with a fencing token from before the grant |
//! | [`raft_queue_in_memory`] | Raft, with a queue that only the leader knows |
//! | [`raft_local_clock`] | Raft, with replicas that look at their own clocks |

mod coarse_raft;
pub mod fencing;
pub mod made_up_token;
pub mod raft_early_apply;
pub mod raft_early_token;
pub mod raft_local_clock;
pub mod raft_queue_in_memory;
pub mod redis_failover;
pub mod redis_release;
pub mod redlock;
pub mod redlock_pause;
mod sequence_diagram;
mod show;

use std::sync::Arc;

use self::fencing::Fencing;
use self::made_up_token::{Believes, MadeUpToken};
use self::raft_early_apply::{Apply, RaftEarlyApply};
use self::raft_early_token::{RaftEarlyToken, Token};
use self::raft_local_clock::{RaftLocalClock, Time};
use self::raft_queue_in_memory::{Queue, RaftQueueInMemory};
use self::redis_failover::{RedisFailover, Rule};
use self::redis_release::{RedisRelease, Release};
use self::redlock::{Clock, Fault, Redlock, Restart};
use self::redlock_pause::RedlockPause;
pub use self::show::Client;
use crate::erased::Erased;
use crate::named::{Named, Tier, holds, violates};
use crate::presentation::Presentation;

/// How the resource that a lock protects treats a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// It accepts every write.
    Trusts,
    /// It rejects a write if it has seen a greater fencing token.
    ChecksTokens,
}

/// All models of the gallery: each flawed design, followed by its repair.
pub fn models() -> Vec<Named> {
    let exclusion = "mutual exclusion";
    vec![
        flawed("gallery-redis-failover", "a key on Redis, copied after the grant, and a failover", exclusion, || {
            RedisFailover { rule: Rule::Asynchronous }
        }),
        flawed("gallery-redis-wait", "a key on Redis, told after WAIT 1, and a failover", exclusion, || {
            RedisFailover { rule: Rule::WaitForOne }
        }),
        repaired("gallery-redis-failover-repaired", "the newest replica of a majority takes over", || RedisFailover {
            rule: Rule::Majority,
        }),
        flawed("gallery-redis-release", "a key that is given back with GET and DEL", exclusion, || RedisRelease {
            release: Release::GetThenDel,
        }),
        repaired("gallery-redis-release-repaired", "a script compares and deletes at once", || RedisRelease {
            release: Release::CompareAndDelete,
        }),
        flawed("gallery-redlock-clock", "Redlock over 5 instances, and a wall clock that jumps", exclusion, || {
            Redlock { fault: Fault::ClockJump(Clock::Wall) }
        }),
        repaired("gallery-redlock-clock-repaired", "keys expire by the monotonic clock", || Redlock {
            fault: Fault::ClockJump(Clock::Monotonic),
        }),
        flawed("gallery-redlock-crash", "Redlock over 5 instances, and a crash before the sync", exclusion, || {
            Redlock { fault: Fault::Crash(Restart::AtOnce) }
        }),
        repaired("gallery-redlock-crash-repaired", "an instance that crashed stays away for the longest TTL", || {
            Redlock { fault: Fault::Crash(Restart::Delayed) }
        }),
        flawed("gallery-redlock-pause", "Redlock over 5 instances, and a client that pauses", "no stale write", || {
            RedlockPause { resource: Resource::Trusts }
        }),
        repaired("gallery-redlock-pause-repaired", "a token from elsewhere, and a resource that checks it", || {
            RedlockPause { resource: Resource::ChecksTokens }
        }),
        flawed("gallery-fencing", "a perfect lock with a TTL, and a client that pauses", "no stale write", || {
            Fencing { resource: Resource::Trusts }
        }),
        repaired("gallery-fencing-repaired", "the resource checks fencing tokens", || Fencing {
            resource: Resource::ChecksTokens,
        }),
        flawed("gallery-raft-apply", "Raft, 5 servers: followers apply what they receive", exclusion, || {
            RaftEarlyApply { apply: Apply::AtReceipt }
        }),
        repaired("gallery-raft-apply-repaired", "followers apply what is committed", || RaftEarlyApply {
            apply: Apply::AtCommit,
        }),
        flawed("gallery-raft-token", "Raft: the token is read when the request arrives", "token monotonicity", || {
            RaftEarlyToken { token: Token::FromRequest }
        }),
        repaired("gallery-raft-token-repaired", "the token is counted when the lock is granted", || RaftEarlyToken {
            token: Token::FromGrant,
        }),
        flawed("gallery-raft-queue", "Raft: the queue is in the leader's memory", "FIFO order", || RaftQueueInMemory {
            queue: Queue::InMemory,
        }),
        repaired("gallery-raft-queue-repaired", "the queue is replicated", || RaftQueueInMemory {
            queue: Queue::Replicated,
        }),
        flawed("gallery-raft-clock", "Raft: replicas look at their own, perfect, clocks", "replicas agree", || {
            RaftLocalClock { time: Time::WhenApplied }
        }),
        repaired("gallery-raft-clock-repaired", "entries carry the leader's time", || RaftLocalClock {
            time: Time::WhenAppended,
        }),
        flawed("gallery-made-up-token", "fencing tokens, and a client that lies", "the holder may write", || {
            MadeUpToken { believes: Believes::Numbers }
        }),
        repaired("gallery-made-up-token-repaired", "the service signs tokens, the resource verifies them", || {
            MadeUpToken { believes: Believes::Signatures }
        }),
    ]
}

fn flawed<M: Presentation>(
    name: &'static str,
    about: &'static str,
    property: &'static str,
    make: impl Fn() -> M + Send + Sync + 'static,
) -> Named {
    violates(Tier::Full, name, about, property, erased(make))
}

fn repaired<M: Presentation>(
    name: &'static str,
    about: &'static str,
    make: impl Fn() -> M + Send + Sync + 'static,
) -> Named {
    holds(Tier::Full, name, about, erased(make))
}

/// These models are small, and many: they share what is compiled for a model.
fn erased<M: Presentation>(
    make: impl Fn() -> M + Send + Sync + 'static,
) -> impl Fn() -> Erased + Send + Sync + 'static {
    const { assert!(M::REPRESENTATIVE.is_none(), "an erased model has no representatives") };
    move || Erased::new(Arc::new(make()))
}
