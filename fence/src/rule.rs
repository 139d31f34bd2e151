//! The rule of the highest token, without IO: for [`Fence`](crate::Fence), and for a resource that
//! keeps the marks in its own database.

use crate::format::Grant;
use crate::refusal::Refusal;

/// The highest grant that was admitted for a key, in the resource's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its token.
    pub token: u64,
    /// Its session.
    pub session: u64,
}

impl Mark {
    /// The mark that this grant leaves.
    pub fn of(grant: &Grant) -> Mark {
        Mark { token: grant.token, session: grant.session }
    }
}

/// Why a grant is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is higher than all before it: the resource must keep its epoch and [`Mark`] before it acts.
    Raise,
    /// It is the grant that was admitted last.
    Repeat,
}

/// Whether a verified grant may act on a resource that has seen `epoch` (0 at first) as the highest
/// restore epoch of the cluster, and `mark` as the highest grant of the key in that epoch.
///
/// Grants are ordered by epoch, then by token. An epoch ends all grants of lower epochs, whatever
/// their key: when the resource keeps a higher epoch, it forgets the marks of all keys. A token
/// belongs to one session; the cluster never grants it to two, so a second session with the same
/// token shows a second cluster with the same name and epoch (a restored backup without a new
/// epoch), or a stolen signing key.
///
/// # Errors
/// [`Refusal::StaleEpoch`], [`Refusal::StaleToken`] or [`Refusal::TokenOfAnotherSession`].
pub fn decide(epoch: u64, mark: Option<Mark>, grant: &Grant) -> Result<Decision, Refusal> {
    if grant.epoch < epoch {
        return Err(Refusal::StaleEpoch { seen: epoch, got: grant.epoch });
    }
    let Some(mark) = mark.filter(|_| grant.epoch == epoch) else { return Ok(Decision::Raise) };
    if grant.token > mark.token {
        Ok(Decision::Raise)
    } else if grant.token < mark.token {
        Err(Refusal::StaleToken { seen: mark.token, got: grant.token })
    } else if grant.session == mark.session {
        Ok(Decision::Repeat)
    } else {
        Err(Refusal::TokenOfAnotherSession { token: mark.token, seen: mark.session, got: grant.session })
    }
}
