//! One snapshot is received at a time. A node that is no member gives way to a member: it could
//! otherwise keep the turn for as long as it sends anything. The leader of an earlier term gives way to
//! that of a later one, whose snapshot this node needs instead.

use std::time::Duration;

use palisade_spec::raft::Term;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;

/// How long a member's offer waits for the end of another transfer.
const WAIT: Duration = Duration::from_secs(2);

/// The right to a turn: a greater one goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Whether the peer is a member of the cluster.
    pub(super) is_member: bool,
    /// The term in which it says to be the leader.
    pub(super) term: Term,
}

/// Gives one peer at a time its turn to send a snapshot.
#[derive(Debug)]
pub(in crate::peers) struct Turns {
    one: Semaphore,
    /// The ranks of the offers that wait.
    waiting: watch::Sender<Vec<Rank>>,
}

/// The turn of a peer to send its snapshot.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    _permit: SemaphorePermit<'a>,
    rank: Rank,
    waiting: watch::Receiver<Vec<Rank>>,
}

/// An offer that waits; it no longer does when this is dropped.
struct Waiting<'a>(&'a Turns, Rank);

impl Turns {
    pub(in crate::peers) fn new() -> Turns {
        Turns { one: Semaphore::new(1), waiting: watch::Sender::new(Vec::new()) }
    }

    /// The turn of a peer, if no other peer has it or gives way in time.
    pub(super) async fn begin(&self, rank: Rank) -> Option<Turn<'_>> {
        let permit = match self.one.try_acquire() {
            Ok(permit) => permit,
            Err(_) if rank.is_member => {
                let _waiting = self.wait(rank);
                timeout(WAIT, self.one.acquire()).await.ok()?.ok()?
            }
            Err(_) => return None,
        };
        Some(Turn { _permit: permit, rank, waiting: self.waiting.subscribe() })
    }

    fn wait(&self, rank: Rank) -> Waiting<'_> {
        self.waiting.send_modify(|waiting| waiting.push(rank));
        Waiting(self, rank)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Waiting(turns, rank) = self;
        turns.waiting.send_modify(|waiting| {
            let own = waiting.iter().position(|one| one == rank);
            own.map(|own| waiting.swap_remove(own));
        });
    }
}

impl Turn<'_> {
    /// Resolves when the peer must give way: an offer of a greater rank waits.
    pub(super) async fn is_over(&mut self) {
        let rank = self.rank;
        // The sender lives as long as the permit.
        let _ = self.waiting.wait_for(|waiting| waiting.iter().any(|other| *other > rank)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn rank(is_member: bool, term: u64) -> Rank {
        Rank { is_member, term: Term(term) }
    }

    fn is_ready(future: impl Future<Output = ()>) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    /// Goal: only a greater rank ends a turn, and only for as long as it waits.
    #[tokio::test]
    async fn turn_is_over_while_a_greater_rank_waits() {
        let turns = Turns::new();
        let mut turn = turns.begin(rank(true, 3)).await.expect("the turn is free");
        for (other, ends) in
            [(rank(false, 9), false), (rank(true, 2), false), (rank(true, 3), false), (rank(true, 4), true)]
        {
            let waiting = turns.wait(other);
            assert_eq!(is_ready(turn.is_over()), ends, "{other:?}");
            drop(waiting);
            assert!(!is_ready(turn.is_over()), "{other:?} no longer waits");
        }
        // A stranger does not wait.
        assert!(turns.begin(rank(false, 9)).await.is_none() && turns.waiting.borrow().is_empty());
        drop(turn);
        let mut turn = turns.begin(rank(false, 9)).await.expect("the turn is free");
        let _waiting = turns.wait(rank(true, 0));
        assert!(is_ready(turn.is_over()), "a stranger gives way to any member");
    }

    /// Goal: an offer whose connection ends while it waits is forgotten: strangers would otherwise give way to it for ever.
    #[tokio::test]
    async fn offer_that_is_dropped_does_not_wait() {
        let turns = Turns::new();
        let _turn = turns.begin(rank(true, 1)).await;
        assert!(!is_ready(async { drop(turns.begin(rank(true, 2)).await) }));
        assert!(turns.waiting.borrow().is_empty());
    }
}
