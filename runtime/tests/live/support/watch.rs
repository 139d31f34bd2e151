//! Watching a dead holder's lock until it is gone, and judging the moment.
//!
//! What is promised: the lock is there for a time-to-live from the holder's last sign of life, and
//! gone within a second after that, where *time in which the cluster served* counts: an outage
//! extends it by itself and no more. Both bounds are judged from outside so that a slow test cannot
//! fail a good cluster: the lock was gone *too early* if an answer came before its time and did not
//! show the holder, and *too late* if a question was asked after its time and the answers did show
//! it.
//!
//! All reads are stale ones: a linearizable read is a log entry of its own, and would itself let
//! time pass for the table. A node that has just been started may not have applied yet what this is
//! about; what it shows does not count.

use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use palisade_client::wire::StatusView;

use super::cluster::Cluster;
use super::eventually;
use super::locks::{self, lock_at};

/// How long an idle leader may take to notice that a deadline has passed.
const NOTICE: Duration = Duration::from_secs(1);
/// Two looks that lie further apart than this say nothing of the time between them: this machine
/// stood still.
const STANDSTILL: Duration = Duration::from_millis(300);
/// When the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// A holder that has died.
pub struct Dead {
    pub key: String,
    /// The public number of its session.
    pub session: u64,
    pub token: u64,
    pub ttl: Duration,
    /// The last sign of life was not before this,
    pub not_before: Instant,
    /// and not after this.
    pub not_after: Instant,
    /// A node that has applied this much knows of the grant.
    applied: u64,
}

/// How it ended.
pub struct End {
    /// From the last sign of life on.
    pub lived: Duration,
    /// How much of that there was no leader that all running nodes knew.
    pub outage: Duration,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gone {:?} after the last sign of life, {:?} of them without a leader", self.lived, self.outage)
    }
}

impl Dead {
    /// Takes the free lock on `key` over plain HTTP and is not heard of again: the acquire was its
    /// last sign of life.
    pub fn holder(cluster: &Cluster, key: &str, ttl: Duration) -> Dead {
        let session = locks::open_session(cluster, "dead", ttl);
        let asked = Instant::now();
        let grant = locks::acquire(cluster, key, session);
        Dead::new(cluster, key, (grant.session.number(), grant.token), ttl, (asked, Instant::now()))
    }

    /// A holder that was killed, whatever it was: what the leader says of its deadline tells when
    /// it was last heard.
    pub fn killed(cluster: &Cluster, key: &str, ttl: Duration) -> Dead {
        // Whatever was under way when it died has arrived.
        sleep(Duration::from_millis(500));
        let leader = cluster.wait_ready();
        let asked = Instant::now();
        let lock = lock_at(cluster, leader, key).expect("the leader answers");
        let answered = Instant::now();
        let holder = lock.holder.expect("the lock is held until its holder expires");
        let rest = Duration::from_millis(holder.expires_in_ms);
        Dead::new(cluster, key, (holder.session, holder.token), ttl, (asked + rest - ttl, answered + rest - ttl))
    }

    fn new(
        cluster: &Cluster,
        key: &str,
        (session, token): (u64, u64),
        ttl: Duration,
        (not_before, not_after): (Instant, Instant),
    ) -> Dead {
        let mut dead = Dead { key: key.to_owned(), session, token, ttl, not_before, not_after, applied: 0 };
        // In this order: a node's status may be a moment behind its answers.
        dead.applied = eventually("a node shows the grant, and how far it is", || {
            let knows = cluster.running().into_iter().find(|&id| dead.is_shown(cluster, id) == Some(true))?;
            cluster.status(knows).map(|status| status.applied)
        });
        dead
    }

    /// Watches the lock until its time has come, and fails if that was too early or too late.
    /// `gap`: what the cluster may forget of the time that passed, beyond the outage. `meanwhile`
    /// is called again and again.
    pub fn watch(&self, cluster: &mut Cluster, gap: Duration, mut meanwhile: impl FnMut(&mut Cluster)) -> End {
        let promised = self.ttl + NOTICE + gap;
        let mut outage = Duration::ZERO;
        let (mut before, mut at) = (leadership(cluster), self.not_after);
        loop {
            meanwhile(cluster);
            let asked = Instant::now();
            let now = leadership(cluster);
            if now.is_none() || now != before || (at > self.not_after && asked - at > STANDSTILL) {
                outage += asked.saturating_duration_since(at);
            }
            (before, at) = (now, asked);

            let running = cluster.running();
            let views: Vec<bool> = running.iter().filter_map(|&id| self.is_shown(cluster, id)).collect();
            let lived = self.not_before.elapsed();
            if views.contains(&false) {
                assert!(lived >= self.ttl, "gone {lived:?} after the last sign of life; the TTL is {:?}", self.ttl);
                return End { lived, outage };
            }
            let served = asked.saturating_duration_since(self.not_after).saturating_sub(outage);
            let shown = views.len() > cluster.ids().len() / 2;
            assert!(
                !shown || served <= promised,
                "still held {served:?} of served time after the last sign of life, and {outage:?} of outage; \
                 promised: {promised:?}"
            );
            assert!(lived < PATIENCE, "no node can be asked any more");
            sleep(Duration::from_millis(10));
        }
    }

    /// Whether node `id` shows that the dead hold the lock, if it can know.
    fn is_shown(&self, cluster: &Cluster, id: u16) -> Option<bool> {
        cluster.status(id).filter(|status| status.applied >= self.applied)?;
        let holder = lock_at(cluster, id, &self.key)?.holder;
        Some(holder.is_some_and(|holder| (holder.session, holder.token) == (self.session, self.token)))
    }
}

/// The leader of each term, if a node says that it leads and a majority agrees.
fn leadership(cluster: &Cluster) -> Option<(u16, u64)> {
    let views: Vec<StatusView> = cluster.running().into_iter().filter_map(|id| cluster.status(id)).collect();
    let leader = views.iter().find(|view| {
        let same = |other: &&StatusView| (other.term, leader(other)) == (view.term, Some(view.node));
        view.role == "leader" && views.iter().filter(same).count() > cluster.ids().len() / 2
    })?;
    Some((leader.node, leader.term))
}

fn leader(view: &StatusView) -> Option<u16> {
    view.leader.as_ref().map(|leader| leader.id)
}
