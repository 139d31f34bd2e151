//! Token monotonicity: every grant's fencing token is greater than that of every grant before it. The
//! grants of one claim on several keys follow one another and have one token.

use super::{Check, Property};
use crate::lock::{Event, SessionId, Token};
use crate::require;

/// Compares the tokens of an entry's grants with the greatest one before them, and one another.
pub fn token_monotonicity(greatest: &mut Token, events: &[Event]) -> Check {
    let mut last: Option<SessionId> = None;
    for event in events {
        let Event::Granted { key, session, token, .. } = event else {
            last = None;
            continue;
        };
        let is_same_claim = last == Some(*session) && token == greatest;
        require!(
            Property::TokenMonotonicity,
            token > greatest || is_same_claim,
            "{key} was granted with {token} after {greatest}"
        )?;
        (*greatest, last) = (*token, Some(*session));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::token_monotonicity;
    use crate::invariants::states::{complaint, granted, id};
    use crate::lock::{Event, Mode, Token};

    #[test]
    fn token_that_is_not_greater_is_seen() {
        let mut greatest = Token(0);
        let mut grant = |token| {
            let event = granted("k", 1, token, Mode::EXCLUSIVE);
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
        let grant = |name, session, token| granted(name, session, token, Mode::EXCLUSIVE);
        let judge = |events: &[Event]| complaint(token_monotonicity(&mut Token(0), events));
        let closed = Event::Closed { session: id(2) };
        assert_eq!(judge(&[grant("k", 1, 2), closed.clone(), grant("l", 1, 1)]), "l was granted with 1 after 2");
        assert_eq!(judge(&[grant("k", 1, 2), grant("l", 1, 2), grant("m", 2, 3)]), "");
        assert_eq!(judge(&[grant("k", 1, 2), grant("l", 2, 2)]), "l was granted with 2 after 2");
        assert_eq!(judge(&[grant("k", 1, 2), closed, grant("l", 1, 2)]), "l was granted with 2 after 2");
    }
}
