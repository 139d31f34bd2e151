//! A client's operation in two forms: as the history records it, and as the request that a node reads.

use std::time::Duration;

use palisade::core::{Query, Request, Secret, session_proof};
use palisade_client::wire::{self, Consistency, Op};
use palisade_history::Call;
use palisade_spec::lock::{Command, Opening, Owner, Sequence, Ttl};
use rand::Rng;
use rand::rngs::SmallRng;

use super::super::history_recorder;
use super::lock_spec::wire_keys;
use super::{Client, Environment, Operation, PendingOperation};
use crate::{shown, transactions};

impl Client {
    /// The operation as the history records it.
    pub(super) fn call(&self, operation: &Operation, number: Option<Sequence>) -> Call {
        let own = || {
            let number = self.session.as_ref().map_or(0, |own| own.id.number());
            shown::numbered_session(number)
        };
        let (number, ttl_ms) = (number.map(u64::from), history_recorder::milliseconds(self.ttl));
        match operation {
            Operation::Open => Call::OpenSession { ttl_ms },
            Operation::Close => Call::CloseSession { session: own() },
            Operation::Acquire { spec, wait } => spec.call(Some(own()), number, *wait, None),
            Operation::Once { spec, wait } => spec.call(None, None, *wait, Some(ttl_ms)),
            Operation::Release { keys, token, session } => {
                let (keys, session) = (history_recorder::keys(keys), shown::session(*session));
                Call::Release { keys, session, token: token.0, number }
            }
            Operation::Withdraw { keys } => {
                Call::Withdraw { keys: history_recorder::keys(keys), session: own(), number }
            }
            Operation::Read { key, consistency } => {
                Call::Read { key: history_recorder::key(key), stale: *consistency == Consistency::Stale }
            }
            Operation::Proclaim { key, token, session, value } => Call::Proclaim {
                key: history_recorder::key(key),
                session: shown::session(*session),
                token: token.0,
                value: value.as_str().into(),
                number,
            },
            Operation::Write { transaction, .. } => {
                let mut call = transaction.clone();
                if let Call::WriteRecord { number: given, .. } = &mut call {
                    *given = number;
                }
                call
            }
            Operation::ReadRecord { record, consistency } => {
                Call::ReadRecord { record: history_recorder::key(record), stale: *consistency == Consistency::Stale }
            }
            Operation::Break { key, token } => Call::Break { key: history_recorder::key(key), token: token.0 },
            Operation::SetAccess { revision, .. } => Call::SetAccess { revision: revision.0 },
        }
    }

    /// The request, and how long it may wait in a queue; `None` if the session that it needs is
    /// lost.
    pub(super) fn build_request(
        &self,
        pending: &PendingOperation,
        env: &mut Environment<'_>,
    ) -> Option<(Request, Duration)> {
        let session = self.session.as_ref().map(|session| session.id);
        let number = pending.number.map(u64::from);
        let opening = |secret: Secret, ttl: Duration| {
            let ttl = Ttl(ttl_ms(ttl));
            let (owner, principal) = (Owner::from("client"), self.principal.clone());
            Opening { proof: session_proof(secret, principal.as_str()), owner, principal, ttl }
        };
        // The secret of the session that the command opens or names.
        let mut secret = session.map(Secret::of);
        let command = match pending.operation.clone() {
            Operation::Open => {
                let secret = *secret.insert(draw(env.rng));
                Command::Open { opening: opening(secret, self.ttl) }
            }
            Operation::Close => Command::Close { session: self.identity(session?) },
            Operation::Acquire { spec, wait: longest } => {
                let wait = (pending.begun + longest).saturating_sub(env.now);
                let options = spec.options(Some(session?), wait, ttl_ms(self.ttl));
                return Some((self.translated(Op::Acquire { keys: wire_keys(&spec.keys), options, number }), wait));
            }
            Operation::Once { spec, wait } => {
                let options = spec.options(None, wait, ttl_ms(self.ttl));
                let request = self.translated(Op::Acquire { keys: wire_keys(&spec.keys), options, number: None });
                return Some((with_secret(request, draw(env.rng), self.principal.as_str()), wait));
            }
            Operation::Release { keys, token, session } => {
                let grant = wire::Release { session, token: token.0 };
                let request = self.translated(Op::Release { keys: wire_keys(&keys), grant, number });
                return Some((request, Duration::ZERO));
            }
            Operation::Withdraw { keys } => {
                let (keys, session) = (wire_keys(&keys), session?);
                return Some((self.translated(Op::Withdraw { keys, session, number }), Duration::ZERO));
            }
            Operation::Read { key, consistency } => {
                return Some((Request::Read(Query::Lock(key), consistency, self.principal.clone()), Duration::ZERO));
            }
            Operation::Proclaim { key, token, session, value } => {
                let (key, value) = (key.to_string(), value.as_str().to_owned());
                let proclamation = wire::Proclaim { session, token: token.0, value };
                return Some((self.translated(Op::Proclaim { key, proclamation, number }), Duration::ZERO));
            }
            Operation::Write { transaction, session } => {
                let transaction = wire::Transaction { session, ..transactions::on_wire(&transaction) };
                return Some((self.translated(Op::Transact { transaction, number }), Duration::ZERO));
            }
            Operation::ReadRecord { record, consistency } => {
                return Some((
                    Request::Read(Query::Record(record), consistency, self.principal.clone()),
                    Duration::ZERO,
                ));
            }
            // Operators' commands have no session, and their secrets are never used.
            Operation::Break { key, token } => {
                secret = Some(draw(env.rng));
                Command::Break { key, token, principal: self.principal.clone() }
            }
            Operation::SetAccess { principal, revision, rules } => {
                secret = Some(draw(env.rng));
                Command::SetAccess { principal, revision, rules }
            }
        };
        let secret = secret.expect("every other command has a session");
        Some((Request::Propose { command, secret, wait: Duration::ZERO }, Duration::ZERO))
    }

    /// A request as a node reads it: what clients ask for stays as they wrote it.
    pub(super) fn translated(&self, op: Op) -> Request {
        Request::from_wire(op, &self.principal).expect("the clients' requests are valid")
    }
}

/// The same request with a secret from the simulation's own randomness, for the session that it opens.
fn with_secret(mut request: Request, new: Secret, principal: &str) -> Request {
    if let Request::Propose { command: Command::AcquireOnce { opening, .. }, secret, .. } = &mut request {
        (*secret, opening.proof) = (new, session_proof(new, principal));
    }
    request
}

pub(super) fn ttl_ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

/// A secret from the simulation's own randomness.
pub(super) fn draw(rng: &mut SmallRng) -> Secret {
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&rng.random::<u64>().to_be_bytes());
    Secret::from_bytes(bytes)
}
