//! Reading from a peer. A node that is no member of the cluster (as far as this node knows: it may
//! be the leader of a cluster that this node has just joined) is read under limits: its frames
//! count towards a budget that all unknown programs at this port share, and it must complete one
//! every few seconds. A member has neither limit: its messages may be large, and it may have none to
//! send. Nor has a node whose certificate has proved its number.

use palisade_spec::raft::NodeId;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout_at};

use super::Peers;
use crate::addresses::ClientAddress;
use crate::budget::{Exhausted, Share};
use crate::limits::STRANGER_TIMEOUT;
use crate::tls::Stream;

/// Why no more is read from a peer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadFailure {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("node {0} is no member of the cluster, and completed no frame within {STRANGER_TIMEOUT:?}")]
    Slow(NodeId),
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

/// The limits under which a peer is read.
#[derive(Debug)]
pub(super) struct Intake {
    peer: NodeId,
    /// `None` once the peer is a member.
    limits: Option<Limits>,
}

#[derive(Debug)]
struct Limits {
    share: Share,
    /// When the next frame must be complete.
    deadline: Instant,
}

impl Intake {
    /// For a peer at this address that has completed the handshake just now, and has proved its number
    /// if it `is_certified`.
    pub(super) fn new(peers: &Peers, peer: NodeId, address: ClientAddress, is_certified: bool) -> Intake {
        let limits = (!is_certified).then(|| {
            // A node that has just joined knows no member: the leader's first frame may be large.
            let knows_none = peers.members.lock().iter().next().is_none();
            let budget = &peers.stranger_bytes;
            let share = if knows_none { budget.whole_share(address) } else { budget.share(address) };
            Limits { share, deadline: Instant::now() + STRANGER_TIMEOUT }
        });
        Intake { peer, limits }
    }

    /// The peer has completed a frame; `left` bytes of the next one are in memory.
    pub(super) fn completed(&mut self, left: usize) -> Result<(), Exhausted> {
        let Some(limits) = &mut self.limits else { return Ok(()) };
        limits.deadline = Instant::now() + STRANGER_TIMEOUT;
        limits.share.hold(left)
    }

    /// Appends what the peer sends next to `bytes`; returns the number of bytes, 0 at the end.
    pub(super) async fn read(
        &mut self,
        peers: &Peers,
        stream: &mut Stream,
        bytes: &mut Vec<u8>,
    ) -> Result<usize, ReadFailure> {
        loop {
            if self.limits.is_some() && peers.is_member(self.peer) {
                self.limits = None;
            }
            let Some(limits) = &mut self.limits else { return Ok(stream.read_buf(bytes).await?) };
            if let Ok(read) = timeout_at(limits.deadline, stream.read_buf(bytes)).await {
                let read = read?;
                limits.share.hold(bytes.len())?;
                return Ok(read);
            }
            if !peers.is_member(self.peer) {
                return Err(ReadFailure::Slow(self.peer));
            }
        }
    }
}
