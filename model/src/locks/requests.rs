//! The requests that may be applied to a table at any moment.
//!
//! The table alone determines the effect of a request without a number. It makes no difference when
//! the request was sent, by which client, or how often it was applied before. So every such request
//! within the bounds may be applied in every state, for each session that was ever opened. Plain
//! HTTP sends such requests; so does the server itself, for waits that timed out and for
//! connections that closed.
//!
//! A **stranger** knows everything that is public: the numbers of sessions, also the next one; keys,
//! tokens, and that no operation has a greater number than [`MAX_NUMBER`]. It sends every request
//! in the name of every session, with a proof that is not that session's: the proof of no session,
//! and, because a client with a session of its own may be a stranger to the others, the proof of
//! every other session. Each session has its own proof.

use std::collections::BTreeSet;

use palisade_spec::lock::{
    Claim, Command, Key, LockRequest, Opening, Owner, Proof, Sequence, SessionId, Token, Ttl, Writer,
};
use palisade_spec::raft::{MAX_NUMBER, Payload};

use super::{Bounds, Operation, PROCLAIMED, State, denials, is_of, without_wait};
use crate::world::Ref;

/// A command that needs no client.
pub type Request = Ref<Payload<Command>>;

/// All requests without a number.
pub(super) struct Requests {
    /// The requests that open a session, by the number of sessions opened so far: the next session has
    /// a proof of its own.
    openings: Vec<Vec<Request>>,
    /// The requests of each session, each with the token that must have been granted before a
    /// client can know it.
    by_session: Vec<Vec<(Token, Request)>>,
    /// By the number of sessions opened so far: a keepalive of all of them, and of one that does
    /// not exist.
    joint_keepalives: Vec<Request>,
    /// The breaks of operators, each with the token that must have been granted before.
    breaks: Vec<(Token, Request)>,
    /// The changes of the access rules.
    changes: Vec<Request>,
    /// The transactions of clients without a session, each with the token that must have been granted before.
    by_clients: Vec<(Token, Request)>,
    /// The requests of strangers, by the number of the session that they name.
    by_strangers: Vec<Vec<(Token, Request)>>,
}

impl Requests {
    /// Creates the requests that the bounds allow.
    pub(super) fn new(bounds: &Bounds, wanted: &[LockRequest], keep: impl Fn(Command) -> Request) -> Requests {
        let once = |opening: &Opening, request| Command::AcquireOnce { opening: opening.clone(), request };
        let keys: BTreeSet<&Key> = wanted.iter().flat_map(|request| request.keys.iter()).collect();
        let opens = |start: &Start, number| {
            let opening = opening(bounds, number);
            match start {
                Start::Open => vec![Command::Open { opening }],
                Start::Wait => wanted.iter().map(|request| once(&opening, request.clone())).collect(),
                Start::Try => wanted.iter().map(|request| once(&opening, without_wait(request))).collect(),
            }
        };
        let together = |last: u64| Command::KeepAlive { sessions: (1..=last + 1).map(session).collect() };
        Requests {
            openings: (1..=bounds.opened + 1)
                .map(|next| bounds.openings.iter().flat_map(|start| opens(start, next)).map(&keep).collect())
                .collect(),
            by_session: (1..=bounds.opened)
                .map(|number| {
                    let all = session_requests(bounds, wanted, session(number), bounds.unnumbered, None);
                    all.into_iter().map(|(token, command)| (token, keep(command))).collect()
                })
                .collect(),
            joint_keepalives: (0..=bounds.opened).map(|last| keep(together(last))).collect(),
            breaks: (1..=bounds.grants)
                .filter(|_| bounds.breaks)
                .flat_map(|token| keys.iter().map(move |key| (Token(token), *key)))
                .flat_map(|(token, key)| denials::breaks(bounds, key, token).into_iter().map(move |it| (token, it)))
                .map(|(token, command)| (token, keep(command)))
                .collect(),
            changes: denials::changes(bounds).into_iter().map(&keep).collect(),
            by_clients: client_requests(bounds).into_iter().map(|(token, command)| (token, keep(command))).collect(),
            by_strangers: (1..=bounds.opened + 1)
                .filter(|_| bounds.strangers)
                .map(|number| {
                    let all = stranger_requests(bounds, wanted, number).into_iter();
                    all.map(|(token, command)| (token, keep(command))).collect()
                })
                .collect(),
        }
    }

    /// The requests that may be applied in a state.
    pub(super) fn possible(&self, state: &State) -> impl Iterator<Item = Request> {
        let opened = usize::try_from(state.opened).expect("a number of sessions fits in usize");
        let granted = state.greatest;
        // A stranger also names the session that is opened next.
        let foreign = self.by_strangers.iter().take(opened + 1);
        let named = self.by_session[..opened].iter().chain(foreign);
        let single = named.flatten().chain(&self.breaks).chain(&self.by_clients);
        let single = single.filter(move |(token, _)| *token <= granted);
        let together = (opened > 0).then(|| self.joint_keepalives[opened]);
        let all = self.openings[opened].iter().copied().chain(single.map(|(_, request)| *request)).chain(together);
        all.chain(self.changes.iter().copied())
    }
}

/// How a session is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// By itself.
    Open,
    /// By an acquire that waits if the lock is held.
    Wait,
    /// By an acquire that does not wait.
    Try,
}

/// A number that no session has.
const NO_SESSION: u64 = 99;

/// The proof of the session with this number.
pub(super) fn proof(number: u64) -> Proof {
    Proof::from(u128::from(number))
}

/// The session of this number.
pub(super) fn session(number: u64) -> SessionId {
    SessionId { number, proof: proof(number) }
}

/// The opening of the session with this number. The first sessions have clients.
pub(super) fn opening(bounds: &Bounds, number: u64) -> Opening {
    let client = Some(number).filter(|number| *number <= bounds.sessions);
    let owner = client.map_or_else(String::new, |client| format!("client {client}"));
    let (proof, principal) = (proof(number), denials::principal(bounds, client.unwrap_or(0)));
    Opening { proof, owner: Owner::from(owner.as_str()), principal, ttl: Ttl(bounds.ttl) }
}

/// Every transaction of a client without a session.
fn client_requests(bounds: &Bounds) -> Vec<(Token, Command)> {
    let all = bounds.writes.iter().flat_map(|write| write.every(bounds));
    let by_each = |(token, transaction)| {
        let writers = denials::writers(bounds).into_iter();
        writers.map(move |principal| {
            let (writer, transaction) = (Writer::Client(principal), Clone::clone(&transaction));
            (token, Command::Transact { writer, transaction })
        })
    };
    all.flat_map(by_each).collect()
}

/// Every request of strangers in the name of a session, with and without a number: of one that has
/// no session, and of the clients of the other sessions.
fn stranger_requests(bounds: &Bounds, wanted: &[LockRequest], number: u64) -> Vec<(Token, Command)> {
    let others = (1..=bounds.opened).filter(|other| *other != number).chain([NO_SESSION]);
    others.flat_map(|other| forged_requests(bounds, wanted, number, proof(other))).collect()
}

/// Every request in the name of a session with a proof that is not its own, with and without a number;
/// and a keepalive that the server has joined with that of the session itself.
fn forged_requests(bounds: &Bounds, wanted: &[LockRequest], number: u64, proof: Proof) -> Vec<(Token, Command)> {
    let forged = SessionId { number, proof };
    let mut all = session_requests(bounds, wanted, forged, &Operation::ALL, None);
    let greatest = Sequence::new(MAX_NUMBER);
    let numbered = session_requests(bounds, wanted, forged, &Operation::ALL, greatest).into_iter();
    all.extend(numbered.filter(|(_, command)| !matches!(command, Command::KeepAlive { .. } | Command::Close { .. })));
    all.push((Token(0), Command::KeepAlive { sessions: vec![forged, session(number)] }));
    all
}

fn session_requests(
    bounds: &Bounds,
    wanted: &[LockRequest],
    session: SessionId,
    operations: &[Operation],
    sequence: Option<Sequence>,
) -> Vec<(Token, Command)> {
    let signs = [Command::KeepAlive { sessions: vec![session] }, Command::Close { session }];
    let mut all: Vec<(Token, Command)> = signs.map(|command| (Token(0), command)).into();
    for (index, request) in wanted.iter().enumerate() {
        for operation in operations.iter().filter(|operation| is_of(operation, index, wanted)) {
            let acquire = |request| Command::Acquire { session, sequence, request };
            let release = |claim| Command::Release { session, sequence, keys: request.keys.clone(), claim };
            match operation {
                Operation::Wait => all.push((Token(0), acquire(request.clone()))),
                Operation::Try => all.push((Token(0), acquire(without_wait(request)))),
                Operation::Withdraw => all.push((Token(0), release(Claim::Either))),
                Operation::Leave => all.push((Token(0), release(Claim::Waiting))),
                Operation::Release => {
                    let tokens = (1..=bounds.grants).map(Token);
                    all.extend(tokens.map(|token| (token, release(Claim::Held(token)))));
                }
                Operation::Proclaim => {
                    let (key, value) = (request.keys.first(), || PROCLAIMED.into());
                    let tokens = (1..=bounds.grants).map(Token);
                    all.extend(tokens.map(|token| {
                        (token, Command::Proclaim { session, sequence, key: key.clone(), token, value: value() })
                    }));
                }
                Operation::Write => unreachable!("it is no operation on a claim"),
            }
        }
    }
    for write in bounds.writes.iter().filter(|_| operations.contains(&Operation::Write)) {
        let by_it = |(token, transaction)| {
            let writer = Writer::Session { session, sequence };
            (token, Command::Transact { writer, transaction })
        };
        all.extend(write.every(bounds).into_iter().map(by_it));
    }
    all
}
