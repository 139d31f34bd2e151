//! Release by holder only: a release or a break drops the claim that it names, and no other one.

use super::{Check, ClaimView, EntryStep, Property};
use crate::lock::Command;
use crate::require;

/// Checks that a release or a break drops only the claim that it names: if the session has no such claim
/// on exactly these keys, all claims on all keys stay as they are. Otherwise the other claims stay,
/// as the order of the queues demands.
pub fn release_by_holder_only(step: &EntryStep<'_>) -> Check {
    let meant = match step.command {
        Some(Command::Release { session, keys, claim, .. }) => {
            EntryStep::has_claim(step.found(), *session, keys, *claim)
        }
        Some(Command::Break { key, token, .. }) => {
            ClaimView::all(step.found(), key).any(|claim| claim.token == Some(*token))
        }
        _ => return Ok(()),
    };
    require!(
        Property::ReleaseByHolderOnly,
        meant || step.found().locks() == step.after.locks(),
        "{:?} means no claim, and made {:?} into {:?}",
        step.command,
        step.found().locks(),
        step.after.locks()
    )
}

#[cfg(test)]
mod tests {
    use super::release_by_holder_only;
    use crate::invariants::EntryStep;
    use crate::invariants::states::{acquire, complaint, id, key, table};
    use crate::lock::{Claim, Command, Principal, Token};
    use crate::raft::{Stamp, StateMachine};

    /// Session 1 holds k with token 1, and session 2 waits for it; then `done` is executed, and said to be `asked`.
    fn judge(asked: &Command, done: &Command) -> alloc::string::String {
        let mut before = table(2);
        before.apply(Stamp(0), &acquire(1, 0, "k"));
        before.apply(Stamp(0), &acquire(2, 0, "k"));
        let mut after = before.clone();
        let outcome = after.apply(Stamp(0), done);
        complaint(release_by_holder_only(&EntryStep::new(&before, Stamp(0), Some(asked), &outcome, &after)))
    }

    #[test]
    fn claim_that_goes_without_being_named_is_seen() {
        let release =
            |session, claim| Command::Release { session: id(session), sequence: None, keys: "k".into(), claim };
        let breaks = |token| Command::Break { key: key("k"), token: Token(token), principal: Principal::default() };
        let named = [release(1, Claim::Held(Token(1))), release(1, Claim::Either), breaks(1)];
        for done in &named {
            assert_eq!(judge(done, done), "");
            for other in [release(1, Claim::Held(Token(2))), release(1, Claim::Waiting), breaks(2)] {
                assert!(judge(&other, done).contains("means no claim"), "{other:?}");
                assert_eq!(judge(&other, &other), "");
            }
        }
    }
}
