//! Random changes of histories. The result may still be valid.

use palisade_history::{Answer, Call, End, History, Holder, Mode, Refusal, Session, Time};
use rand::Rng;
use rand::rngs::StdRng;

/// Changes one operation as a broken service would. `None` if the chosen change does not apply.
pub(crate) fn mutate(history: &History, random: &mut StdRng) -> Option<History> {
    let mut mutant = history.clone();
    let count = mutant.operations.len();
    let chosen = random.random_range(0..count);
    let last = mutant.operations.iter().filter_map(|operation| operation.end.as_ref()).map(|(time, _)| time.0).max()?;
    match random.random_range(0..10) {
        // A token becomes another grant's, or one more, or one less.
        0 => {
            let other = random.random_range(1..8);
            token_of(&mut mutant.operations[chosen].end)?.clone_from(&other);
        }
        1 => {
            let token = token_of(&mut mutant.operations[chosen].end)?;
            *token = if random.random_bool(0.5) { *token + 1 } else { token.checked_sub(1)? };
        }
        // A read shows another state.
        2 => {
            let (_, End::Ok(Answer::Lock { holders, queue, .. })) = mutant.operations[chosen].end.as_mut()? else {
                return None;
            };
            match random.random_range(0..5) {
                0 => holders.clear(),
                1 if queue.len() > 1 => queue.reverse(),
                1 => drop(queue.pop()?),
                2 if holders.len() > 1 => drop(holders.pop()?),
                3 => {
                    let mode = &mut holders.first_mut()?.mode;
                    *mode = if mode.is_exclusive() { Mode::Shared } else { Mode::Exclusive };
                }
                _ => {
                    let session = queue.first()?.clone();
                    let holder = holders.first()?.clone();
                    *holders = vec![Holder { session, token: holder.token + 1, ..holder }];
                    queue.remove(0);
                }
            }
        }
        // A refused operation succeeds, or a successful one is refused.
        3 => {
            let call = mutant.operations[chosen].call.clone();
            let (_, end) = mutant.operations[chosen].end.as_mut()?;
            *end = match (call, &end) {
                (Call::Release { .. }, End::Ok(_)) => End::Fail(Refusal::NotHolder),
                (Call::Release { .. }, End::Fail(_)) => End::Ok(Answer::Released),
                (Call::Break { .. }, End::Ok(_)) => End::Fail(Refusal::NotHolder),
                (Call::Break { .. }, End::Fail(_)) => End::Ok(Answer::Broken { session: session_of(history, random)? }),
                (Call::KeepAlive { .. }, End::Ok(_)) => End::Fail(Refusal::NoSession),
                (Call::KeepAlive { .. }, End::Fail(_)) => End::Ok(Answer::KeptAlive),
                (Call::Acquire { session: Some(session), .. }, End::Fail(_)) => {
                    End::Ok(Answer::Granted { session, token: random.random_range(1..8) })
                }
                (Call::Acquire { wait_ms, .. }, End::Ok(_)) if wait_ms > 0 => End::Fail(Refusal::Timeout),
                _ => return None,
            };
        }
        // The operation happens much later or much earlier.
        4 => {
            let operation = &mut mutant.operations[chosen];
            let by = random.random_range(0..last);
            operation.invoked.0 += by;
            operation.notes.iter_mut().for_each(|(time, _)| time.0 += by);
            operation.end.iter_mut().for_each(|(time, _)| time.0 += by);
        }
        // The answer arrives at once, or the request is sent just before the answer.
        5 => {
            let operation = &mut mutant.operations[chosen];
            operation.notes.clear();
            operation.end.as_mut()?.0 = Time(operation.invoked.0 + 1);
        }
        6 => {
            let operation = &mut mutant.operations[chosen];
            operation.notes.clear();
            operation.invoked = Time(operation.end.as_ref()?.0.0.checked_sub(1)?);
        }
        // The operation is removed from the record: a release or a request is missing.
        7 => drop(mutant.operations.remove(chosen)),
        // A release or a withdrawal leaves one hold more, or one less.
        8 => {
            let (_, End::Ok(answer)) = mutant.operations[chosen].end.as_mut()? else { return None };
            let more = random.random_bool(0.5);
            *answer = match answer {
                Answer::Released | Answer::Withdrawn => Answer::StillHeld { holds: 1 },
                Answer::StillHeld { holds } if more => Answer::StillHeld { holds: *holds + 1 },
                Answer::StillHeld { holds: 1 } => Answer::Released,
                Answer::StillHeld { holds } => Answer::StillHeld { holds: *holds - 1 },
                _ => return None,
            };
        }
        // Two answers of one kind are exchanged.
        _ => {
            let other = random.random_range(0..count);
            let (one, two) = (chosen.min(other), chosen.max(other));
            let (before, after) = mutant.operations.split_at_mut(two);
            let one = before.get_mut(one)?;
            std::mem::swap(&mut one.end.as_mut()?.1, &mut after[0].end.as_mut()?.1);
        }
    }
    // Invalid histories are discarded.
    History::from_events(mutant.events()).ok()
}

/// The session of some operation.
fn session_of(history: &History, random: &mut StdRng) -> Option<Session> {
    history.operations[random.random_range(0..history.operations.len())].call.session().cloned()
}

fn token_of(end: &mut Option<(Time, End)>) -> Option<&mut u64> {
    match &mut end.as_mut()?.1 {
        End::Ok(Answer::Granted { token, .. }) | End::Fail(Refusal::Held { token: Some(token) }) => Some(token),
        End::Ok(Answer::Lock { holders, .. }) => holders.first_mut().map(|holder| &mut holder.token),
        _ => None,
    }
}
