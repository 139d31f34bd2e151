//! The checks of one connection: which of the client's answers renew its session.

/// The checks that were sent, and what the client has answered. Each check has a number, from 1 on.
#[derive(Debug, Default)]
pub(super) struct Checks {
    sent: u64,
    answered: u64,
    /// The newest answer that no renewal has followed yet.
    due: Option<u64>,
}

/// An answer to a check that was not sent, or that is not newer than the answer before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unasked;

impl Checks {
    /// The number of the next check.
    pub(super) fn next(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// The client has answered this check. The answer renews the session only if no later check was sent: an
    /// older one may have been on its way for long, and does not show that the process still runs.
    pub(super) fn answer(&mut self, check: u64) -> Result<(), Unasked> {
        if check <= self.answered || check > self.sent {
            return Err(Unasked);
        }
        self.answered = check;
        if check == self.sent {
            self.due = Some(check);
        }
        Ok(())
    }

    /// Takes the answer that the next renewal follows, if there is one: no answer is followed by two.
    pub(super) fn take(&mut self) -> Option<u64> {
        self.due.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every renewal follows an answer of its own, and an answer that comes during a renewal is kept for
    /// the next one.
    #[test]
    fn one_renewal_follows_an_answer() {
        let mut checks = Checks::default();
        assert_eq!(checks.take(), None, "a client that has answered nothing is not renewed");
        let first = checks.next();
        assert_eq!(checks.take(), None);
        assert_eq!(checks.answer(first), Ok(()));
        assert_eq!((checks.take(), checks.take()), (Some(1), None));
        for check in [2, 3] {
            assert_eq!(checks.next(), check);
            assert_eq!(checks.answer(check), Ok(()));
        }
        assert_eq!((checks.take(), checks.take()), (Some(3), None), "the newest answer counts");
    }

    /// Goal: an answer that comes after the next check was sent renews nothing; the answer to the later one does.
    #[test]
    fn late_answer_renews_nothing() {
        let mut checks = Checks::default();
        let (late, newest) = (checks.next(), checks.next());
        assert_eq!((checks.answer(late), checks.take()), (Ok(()), None));
        assert_eq!((checks.answer(newest), checks.take()), (Ok(()), Some(2)));
    }

    /// Goal: a client answers what it was asked, once: nothing is renewed for a guess or a repetition.
    #[test]
    fn guessed_and_repeated_answers_are_refused() {
        let mut checks = Checks::default();
        assert_eq!((checks.answer(0), checks.answer(1)), (Err(Unasked), Err(Unasked)));
        let check = checks.next();
        assert_eq!((checks.answer(check), checks.take()), (Ok(()), Some(1)));
        assert_eq!((checks.answer(check), checks.take()), (Err(Unasked), None));
    }
}
