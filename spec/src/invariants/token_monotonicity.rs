//! Token monotonicity: every grant's fencing token is greater than that of every grant before it.

use super::{Check, require};
use crate::lock::{Event, Token};

/// Follows the grants among the events of one entry; `greatest` is the greatest token seen before.
pub fn token_monotonicity(greatest: &mut Token, events: &[Event]) -> Check {
    for event in events {
        if let Event::Granted { key, token, .. } = event {
            require!("token monotonicity", token > greatest, "{key} was granted with {token} after {greatest}");
            *greatest = *token;
        }
    }
    Ok(())
}
