//! Client requests, after validation against the limits.

use std::time::Duration;

use palisade_client::wire::{
    AddMember, Code, Consistency, Failure, ListLocks, MemberChange, Op, ReplaceMember, Transfer,
};
use palisade_spec::lock::{Claim, Command, Key, Opening, Owner, Proof, Sequence, SessionId, Token, Ttl};
use palisade_spec::raft::{Change, MAX_NUMBER, NodeId};

use super::credential::{Secret, session_id, session_proof};
use crate::addresses::reachable_address;
use crate::limits;
use crate::member_address::MemberAddress;
use crate::storage::Incarnation;

/// A client's request; its fields are valid.
#[derive(Clone, Debug)]
pub enum Request {
    /// Propose a command.
    Propose {
        /// The command.
        command: Command,
        /// The secret of its session. The answer may give it to the client.
        secret: Secret,
        /// Maximum wait of an acquire; zero unless the command says that it waits.
        wait: Duration,
    },
    /// Renew a session's deadline. Not a command yet: one command renews many sessions.
    KeepAlive {
        /// The session.
        session: SessionId,
        /// Its secret.
        secret: Secret,
    },
    /// Read the table.
    Read(Query, Consistency),
    /// Change the cluster's members. A promotion or removal names the member by its number alone.
    Change(Change),
    /// Transfer leadership, to the voter with this number if one is named.
    Transfer(Option<NodeId>),
}

/// A query of the lock table.
#[derive(Clone, Debug)]
pub enum Query {
    /// One session.
    Session(SessionId),
    /// One lock.
    Lock(Key),
    /// A page of locks.
    Locks {
        /// Only keys with this prefix.
        prefix: String,
        /// Only keys after this one.
        after: Option<Key>,
        /// Maximum number of locks.
        limit: usize,
    },
}

impl Request {
    /// Validates an operation of `principal`, to whom every session that it opens or names belongs.
    /// `Op::Status` is not a request to the core.
    ///
    /// # Errors
    /// [`Code::Invalid`] with a message that names the field and its bounds.
    pub fn from_wire(op: Op, principal: &str) -> Result<Request, Failure> {
        let session_id = |credential| session_id(credential, principal);
        Ok(match op {
            Op::OpenSession(open) => {
                let secret = Secret::draw();
                let opening = opening(open.ttl_ms, &open.owner, session_proof(secret, principal))?;
                at_once(Command::Open { opening }, secret)
            }
            Op::KeepAlive { session } => {
                Request::KeepAlive { session: session_id(session), secret: Secret::of(session) }
            }
            Op::CloseSession { session } => {
                at_once(Command::Close { session: session_id(session) }, Secret::of(session))
            }
            Op::ShowSession { session } => {
                Request::Read(Query::Session(session_id(session)), Consistency::Linearizable)
            }
            Op::Acquire { key, options, number } => {
                let wait_ms = options.wait_ms;
                if wait_ms > limits::WAIT_MAX_MS {
                    return Err(invalid(format!("wait_ms is {wait_ms}; it may be 0 to {}", limits::WAIT_MAX_MS)));
                }
                let (key, wait) = (valid_key(&key)?, wait_ms > 0);
                let secret = options.session.map_or_else(Secret::draw, Secret::of);
                let command = match options.session {
                    Some(session) => {
                        Command::Acquire { session: session_id(session), sequence: sequence(number)?, key, wait }
                    }
                    None if number.is_some() => {
                        return Err(invalid("an operation has a number only within a session; give `session` too"));
                    }
                    None => {
                        let opening = opening(options.ttl_ms, &options.owner, session_proof(secret, principal))?;
                        Command::AcquireOnce { opening, key, wait }
                    }
                };
                Request::Propose { command, secret, wait: Duration::from_millis(wait_ms) }
            }
            Op::Release { key, grant, number } => {
                let command = release(session_id(grant.session), number, &key, Claim::Held(Token(grant.token)))?;
                at_once(command, Secret::of(grant.session))
            }
            Op::Withdraw { key, session, number } => {
                at_once(release(session_id(session), number, &key, Claim::Either)?, Secret::of(session))
            }
            Op::Break { key, order } => {
                if order.reason.is_empty() || order.reason.len() > limits::REASON_BYTES {
                    let length = order.reason.len();
                    let message = format!("the reason has {length} bytes; it may have 1 to {}", limits::REASON_BYTES);
                    return Err(invalid(message));
                }
                // No session, and so no secret.
                at_once(Command::Break { key: valid_key(&key)?, token: Token(order.token) }, Secret::draw())
            }
            Op::ShowLock { key, consistency } => Request::Read(Query::Lock(valid_key(&key)?), consistency),
            Op::ListLocks(list) => {
                let consistency = list.consistency;
                Request::Read(page(list)?, consistency)
            }
            Op::ChangeMembers(change) => Request::Change(match change {
                MemberChange::Add(AddMember { id, peer_addr, incarnation }) => {
                    let member = valid_member_address(peer_addr, incarnation.as_deref())?;
                    Change::Add { id: NodeId::new(id, 0), address: member.address() }
                }
                MemberChange::Promote { id } => Change::Promote(NodeId::new(id, 0)),
                MemberChange::Remove { id } => Change::Remove(NodeId::new(id, 0)),
                // `Peers::recognise_lost` has already checked the lost data directory.
                MemberChange::Replace(ReplaceMember { id, generation, peer_addr, incarnation, .. }) => {
                    let lost = NodeId::new(id, generation);
                    let by = lost.next_generation().ok_or_else(|| invalid("no generation comes after that"))?;
                    let member = match peer_addr {
                        Some(peer_addr) => valid_member_address(peer_addr, Some(&incarnation))?,
                        None => MemberAddress {
                            peer_addr: String::new(),
                            incarnation: valid_incarnation(Some(&incarnation))?,
                        },
                    };
                    Change::Replace { lost, by, address: member.address() }
                }
            }),
            Op::Transfer(Transfer { to }) => Request::Transfer(to.map(|to| NodeId::new(to, 0))),
            Op::Status => return Err(invalid("status is the node's own; request GET /v1/status")),
        })
    }
}

/// A request that does not wait.
fn at_once(command: Command, secret: Secret) -> Request {
    Request::Propose { command, secret, wait: Duration::ZERO }
}

fn release(session: SessionId, number: Option<u64>, key: &str, claim: Claim) -> Result<Command, Failure> {
    Ok(Command::Release { session, sequence: sequence(number)?, key: valid_key(key)?, claim })
}

fn page(list: ListLocks) -> Result<Query, Failure> {
    let limit = list.limit.unwrap_or(100);
    let limit = usize::try_from(limit).ok().filter(|limit| (1..=limits::PAGE).contains(limit));
    let limit = limit.ok_or_else(|| invalid(format!("limit may be 1 to {}", limits::PAGE)))?;
    Ok(Query::Locks { prefix: list.prefix, after: list.after.map(|key| Key::from(key.as_str())), limit })
}

fn valid_key(key: &str) -> Result<Key, Failure> {
    match key.len() {
        1..=limits::KEY_BYTES => Ok(Key::from(key)),
        length => Err(invalid(format!("the key has {length} bytes; it may have 1 to {}", limits::KEY_BYTES))),
    }
}

fn valid_member_address(peer_addr: String, incarnation: Option<&str>) -> Result<MemberAddress, Failure> {
    let peer_addr = reachable_address(&peer_addr).map_err(|reason| invalid(format!("peer_addr {reason}")))?;
    Ok(MemberAddress { peer_addr, incarnation: valid_incarnation(incarnation)? })
}

fn valid_incarnation(digits: Option<&str>) -> Result<Option<Incarnation>, Failure> {
    digits.map(str::parse).transpose().map_err(|_| invalid("incarnation is not 16 hexadecimal digits"))
}

fn sequence(number: Option<u64>) -> Result<Option<Sequence>, Failure> {
    match number {
        Some(0) => Err(invalid("number is 0; a session's operations are numbered from 1")),
        Some(number) if number > MAX_NUMBER => Err(invalid(format!("number is {number}; it may be 1 to {MAX_NUMBER}"))),
        number => Ok(number.map(Sequence)),
    }
}

fn opening(ttl_ms: u64, owner: &str, proof: Proof) -> Result<Opening, Failure> {
    let (min, max) = (limits::TTL_MIN_MS, limits::TTL_MAX_MS);
    if !(min..=max).contains(&ttl_ms) {
        return Err(invalid(format!("ttl_ms is {ttl_ms}; it may be {min} to {max}")));
    }
    if owner.len() > limits::OWNER_BYTES {
        return Err(invalid(format!("the owner has {} bytes; it may have {}", owner.len(), limits::OWNER_BYTES)));
    }
    Ok(Opening { proof, owner: Owner::from(owner), ttl: Ttl(ttl_ms) })
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Code::Invalid, message)
}
