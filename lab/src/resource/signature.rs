//! Tokens that must be signed by the lock service's cluster (docs/fencing.md), so that the resource
//! need not believe a number.
//!
//! The log of the resource orders tokens, not epochs: it belongs to one restore epoch, and tokens of
//! another one are refused.

use palisade_fence::{Refusal, Root, Verifier};
use parking_lot::Mutex;

/// Verifies tokens of one cluster in one restore epoch.
#[derive(Debug)]
pub struct Signatures {
    verifier: Mutex<Verifier>,
    epoch: u64,
}

impl Signatures {
    /// Trusts these roots.
    #[must_use]
    pub fn new(cluster: String, roots: Vec<Root>, epoch: u64) -> Signatures {
        Signatures { verifier: Mutex::new(Verifier::new(cluster, roots)), epoch }
    }

    /// The token of a genuine signed token of the lock `key`.
    ///
    /// # Errors
    /// A sentence: why the token is refused.
    pub fn token(&self, key: &str, signed: &str) -> Result<u64, String> {
        let refused = |refusal: Refusal| format!("{} ({})", refusal, refusal.code());
        let grant = self.verifier.lock().verify(key, signed).map_err(refused)?;
        match grant.epoch == self.epoch {
            true => Ok(grant.token),
            false => Err(format!(
                "the token is of restore epoch {}, and this resource's log is of epoch {}: begin another one (--epoch, --data)",
                grant.epoch, self.epoch
            )),
        }
    }
}
