//! Token monotonicity: every grant's fencing token is greater than that of every grant before it.

use super::{Check, Property};
use crate::lock::{Event, Token};
use crate::require;

/// Follows the grants among the events of one entry; `greatest` is the greatest earlier token.
pub fn token_monotonicity(greatest: &mut Token, events: &[Event]) -> Check {
    for event in events {
        if let Event::Granted { key, token, .. } = event {
            require!(Property::TokenMonotonicity, token > greatest, "{key} was granted with {token} after {greatest}")?;
            *greatest = *token;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::token_monotonicity;
    use crate::invariants::states::{complaint, id, key};
    use crate::lock::{Event, Token};

    #[test]
    fn token_that_is_not_greater_is_seen() {
        let mut greatest = Token(0);
        let mut grant = |token| {
            let event = Event::Granted { key: key("k"), session: id(1), token: Token(token) };
            complaint(token_monotonicity(&mut greatest, &[event]))
        };
        assert_eq!(grant(1), "");
        assert_eq!(grant(5), "");
        assert_eq!(grant(5), "k was granted with 5 after 5");
        assert_eq!(grant(4), "k was granted with 4 after 5");
        assert_eq!(grant(6), "");
    }

    #[test]
    fn grants_of_one_entry_are_compared_too() {
        let grant = |name, token| Event::Granted { key: key(name), session: id(1), token: Token(token) };
        let events = [grant("k", 2), Event::Closed { session: id(2) }, grant("l", 1)];
        assert_eq!(complaint(token_monotonicity(&mut Token(0), &events)), "l was granted with 1 after 2");
    }
}
