//! Locks of Palisade: each on a session of its own, or many on one.

use std::ops::Range;
use std::time::Duration;

use palisade_client::wire::{Acquire, Answer, Code, Op, OpenSession, Outcome};

use super::{ATTEMPTS, OWNER, RETRY, Refusal, text};
use crate::generate::fill::Fill;
use crate::generate::taken::Taken;

/// Requests on their way on a connection.
pub(crate) const AT_ONCE: usize = 500;
/// How long a server may take to send the next answer.
const ANSWER: Duration = Duration::from_secs(30);

/// The address of the leader of a Palisade cluster.
pub(super) async fn leader(endpoints: &[String]) -> Result<String, String> {
    let mut trouble = String::new();
    for _ in 0..100 {
        for endpoint in endpoints {
            match palisade_client::Security::plain().status(endpoint, Duration::from_secs(2)).await {
                Ok(status) => match status.leader.and_then(|leader| leader.client_addr) {
                    Some(address) => return Ok(address),
                    None => trouble = format!("{endpoint} knows no leader"),
                },
                Err(error) => trouble = error.to_string(),
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(format!("no leader was found: {trouble}"))
}

/// Locks on a session together, or each on one of its own. What was left unanswered is asked again.
pub(super) async fn sessions(fill: &Fill, numbers: Range<u64>, taken: &Taken) -> Refusal {
    let mut left: Vec<u64> = numbers.collect();
    let mut session = None;
    let mut trouble = None;
    for tries in 0..ATTEMPTS {
        let ttl_ms = u64::try_from(fill.lasts.ttl().as_millis()).unwrap_or(u64::MAX);
        let attempt = async {
            let leader = leader(&fill.endpoints).await?;
            if fill.share > 1 && session.is_none() {
                let open = Op::OpenSession(OpenSession { ttl_ms, owner: OWNER.to_owned() });
                match palisade_client::Security::plain().ask(&leader, open, ANSWER).await.map_err(text)? {
                    Answer::Session(lease) => session = Some(lease.session),
                    other => return Err(format!("no session was opened: {other:?}")),
                }
            }
            let options = Acquire { session, ttl_ms, owner: OWNER.to_owned(), ..Acquire::default() };
            let acquire =
                |&number: &u64| Op::Acquire { keys: fill.key(number).into(), options: options.clone(), number: None };
            let mut held = vec![false; left.len()];
            let mut refusal = None;
            let answered = |index, outcome| match outcome {
                Outcome::Error(failure) if passes(failure.error) => {}
                Outcome::Error(failure) if failure.error != Code::Held => {
                    refusal.get_or_insert(failure.message);
                }
                outcome => {
                    let Some(index) = usize::try_from(index).ok().filter(|index| *index < left.len()) else { return };
                    held[index] = true;
                    match outcome {
                        Outcome::Ok(Answer::Acquired(acquired)) => taken.grant(left[index], Some(acquired.token)),
                        Outcome::Error(_) if tries == 0 => taken.refuse(left[index]),
                        // An earlier attempt acquired it, and its answer was lost.
                        _ => taken.find(left[index]),
                    }
                }
            };
            let ops = left.iter().map(acquire);
            let asked = palisade_client::Security::plain().ask_all(&leader, ops, AT_ONCE, ANSWER, answered).await;
            left = left.iter().zip(held).filter(|(_, held)| !held).map(|(&number, _)| number).collect();
            match refusal {
                Some(refusal) => Ok(Some(refusal)),
                None => asked.map(|()| None).map_err(text),
            }
        };
        match attempt.await {
            Ok(Some(refusal)) => return Some(refusal),
            Ok(None) => trouble = None,
            Err(error) => trouble = Some(error),
        }
        if left.is_empty() {
            return None;
        }
        tokio::time::sleep(RETRY).await;
    }
    let reason = trouble.unwrap_or_else(|| "the leader was overloaded".to_owned());
    Some(format!("gave up after {ATTEMPTS} attempts: {reason}"))
}

/// Whether a refusal passes by itself.
fn passes(code: Code) -> bool {
    matches!(code, Code::Overloaded | Code::NotLeader | Code::NoLeader | Code::LeadershipLost | Code::ShuttingDown)
}
