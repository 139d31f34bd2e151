//! The requests that may be applied to a table at any moment.
//!
//! The table alone determines the effect of a request without a number. It makes no difference when
//! the request was sent, by which client, or how often it was applied before. So every such request
//! within the bounds may be applied in every state, for each session that was ever opened. Plain
//! HTTP sends such requests; so does the server itself, for waits that timed out and for
//! connections that closed.

use palisade_spec::lock::{Claim, Command, Key, Opening, Owner, SessionId, Token, Ttl};
use palisade_spec::raft::Payload;

use super::{Bounds, Operation, State};
use crate::world::Ref;

/// A command that needs no client.
pub type Request = Ref<Payload<Command>>;

/// All requests without a number.
pub(super) struct Requests {
    /// The requests that open a session.
    openings: Vec<Request>,
    /// The requests of each session, each with the token that must have been granted before a
    /// client can know it.
    by_session: Vec<Vec<(Token, Request)>>,
    /// By the number of sessions opened so far: a keepalive of all of them, and of one that does
    /// not exist.
    joint_keepalives: Vec<Request>,
}

impl Requests {
    /// Creates the requests that the bounds allow.
    pub(super) fn new(bounds: &Bounds, keys: &[Key], keep: impl Fn(Command) -> Request) -> Requests {
        let once = |key: &Key, wait| Command::AcquireOnce { opening: opening(bounds, 0), key: key.clone(), wait };
        let opens = |start: &Start| match start {
            Start::Open => vec![Command::Open { opening: opening(bounds, 0) }],
            Start::Wait => keys.iter().map(|key| once(key, true)).collect(),
            Start::Try => keys.iter().map(|key| once(key, false)).collect(),
        };
        let together =
            |last: u64| Command::KeepAlive { sessions: (1..=last + 1).map(|n| session(bounds, n)).collect() };
        Requests {
            openings: bounds.openings.iter().flat_map(opens).map(&keep).collect(),
            by_session: (1..=bounds.opened)
                .map(|number| {
                    let all = session_requests(bounds, keys, session(bounds, number)).into_iter();
                    all.map(|(token, command)| (token, keep(command))).collect()
                })
                .collect(),
            joint_keepalives: (0..=bounds.opened).map(|last| keep(together(last))).collect(),
        }
    }

    /// The requests that may be applied in a state.
    pub(super) fn possible(&self, state: &State) -> impl Iterator<Item = Request> {
        let opened = usize::try_from(state.opened).expect("a number of sessions fits in usize");
        let granted = state.greatest;
        let single = self.by_session[..opened].iter().flatten().filter(move |(token, _)| *token <= granted);
        let together = (opened > 0).then(|| self.joint_keepalives[opened]);
        self.openings.iter().copied().chain(single.map(|(_, request)| *request)).chain(together)
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

/// The session of this number. Sessions that are opened later have another nonce.
pub(super) fn session(bounds: &Bounds, number: u64) -> SessionId {
    SessionId { number, nonce: u64::from(number > bounds.sessions) }
}

/// The opening of a client's session, or of one without a client (0).
pub(super) fn opening(bounds: &Bounds, client: u64) -> Opening {
    let owner = if client > 0 { format!("client {client}") } else { String::new() };
    Opening { nonce: u64::from(client == 0), owner: Owner::from(owner.as_str()), ttl: Ttl(bounds.ttl) }
}

fn session_requests(bounds: &Bounds, keys: &[Key], session: SessionId) -> Vec<(Token, Command)> {
    let signs = [Command::KeepAlive { sessions: vec![session] }, Command::Close { session }];
    let mut all: Vec<(Token, Command)> = signs.map(|command| (Token(0), command)).into();
    for key in keys {
        for operation in bounds.unnumbered {
            let acquire = |wait| Command::Acquire { session, sequence: None, key: key.clone(), wait };
            let release = |claim| Command::Release { session, sequence: None, key: key.clone(), claim };
            match operation {
                Operation::Wait => all.push((Token(0), acquire(true))),
                Operation::Try => all.push((Token(0), acquire(false))),
                Operation::Withdraw => all.push((Token(0), release(Claim::Either))),
                Operation::Leave => all.push((Token(0), release(Claim::Waiting))),
                Operation::Release => {
                    let tokens = (1..=bounds.grants).map(Token);
                    all.extend(tokens.map(|token| (token, release(Claim::Held(token)))));
                }
            }
        }
    }
    all
}
