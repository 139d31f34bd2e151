//! Client requests, after validation against the limits.

use std::time::Duration;

use palisade_client::wire::{
    self, AccessRules, AddMember, Code, Consistency, Failure, ListLocks, ListRecords, MemberChange, Op, ReplaceMember,
    TestAccess, Transfer,
};
use palisade_spec::lock::{Claim, Command, Key, LockRequest, Mode, Principal, Revision, SessionId, Token};
use palisade_spec::raft::{Change, MAX_NUMBER, NodeId};

use super::credential::{Secret, session_id};
use super::query::Query;
use super::validate::{
    invalid, opening, page_limit, sequence, valid_incarnation, valid_key, valid_keys, valid_member_address, valid_value,
};
use super::{access, transactions};
use crate::limits;
use crate::member_address::MemberAddress;

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
        /// The grant that the session must still have afterwards: one of its keys, and its token.
        grant: Option<(Key, Token)>,
    },
    /// Read the table, for this principal.
    Read(Query, Consistency, Principal),
    /// Change the cluster's members, for this principal. A promotion or removal names the member by its
    /// number alone.
    Change(Change, Principal),
    /// Transfer leadership, to the voter with this number if one is named, for this principal.
    Transfer(Option<NodeId>, Principal),
}

impl Request {
    /// Reads the grant by which a session of `principal` holds exactly these keys.
    ///
    /// # Errors
    /// [`Code::Invalid`] with a message that names the keys' bounds.
    pub fn read_grant(session: wire::SessionId, keys: &wire::Keys, principal: &Principal) -> Result<Request, Failure> {
        let (id, secret) = (session_id(session, principal.as_str()), Secret::of(session));
        let query = Query::Grant { session: id, secret, keys: valid_keys(keys)? };
        Ok(Request::Read(query, Consistency::Linearizable, principal.clone()))
    }

    /// Renews a session of `principal`, which holds exactly these keys with this token.
    ///
    /// # Errors
    /// [`Code::Invalid`] with a message that names the keys' bounds.
    pub fn renew_grant(
        session: wire::SessionId,
        keys: &wire::Keys,
        token: u64,
        principal: &Principal,
    ) -> Result<Request, Failure> {
        let (id, secret) = (session_id(session, principal.as_str()), Secret::of(session));
        let grant = Some((valid_keys(keys)?.first().clone(), Token(token)));
        Ok(Request::KeepAlive { session: id, secret, grant })
    }

    /// Validates an operation of `principal`, which owns every session that it opens or names.
    /// `Op::Status` is not a request to the core.
    ///
    /// # Errors
    /// [`Code::Invalid`] with a message that names the field and its bounds.
    pub fn from_wire(op: Op, principal: &Principal) -> Result<Request, Failure> {
        let session_id = |credential| session_id(credential, principal.as_str());
        let opening = |ttl_ms, owner: &str, secret| opening(ttl_ms, owner, secret, principal);
        Ok(match op {
            Op::OpenSession(open) => {
                let secret = Secret::draw();
                let opening = opening(open.ttl_ms, &open.owner, secret)?;
                at_once(Command::Open { opening }, secret)
            }
            Op::KeepAlive { session } => {
                Request::KeepAlive { session: session_id(session), secret: Secret::of(session), grant: None }
            }
            Op::CloseSession { session } => {
                at_once(Command::Close { session: session_id(session) }, Secret::of(session))
            }
            Op::ShowSession { session } => {
                Request::Read(Query::Session(session_id(session)), Consistency::Linearizable, principal.clone())
            }
            Op::Acquire { keys, options, number } => {
                let wait_ms = options.wait_ms;
                if wait_ms > limits::WAIT_MAX_MS {
                    return Err(invalid(format!("wait_ms is {wait_ms}; it may be 0 to {}", limits::WAIT_MAX_MS)));
                }
                let request = lock_request(&keys, &options)?;
                let secret = options.session.map_or_else(Secret::draw, Secret::of);
                let command = match options.session {
                    Some(session) => {
                        Command::Acquire { session: session_id(session), sequence: sequence(number)?, request }
                    }
                    None if number.is_some() => {
                        return Err(invalid("an operation has a number only within a session; give `session` too"));
                    }
                    None => {
                        let opening = opening(options.ttl_ms, &options.owner, secret)?;
                        Command::AcquireOnce { opening, request }
                    }
                };
                Request::Propose { command, secret, wait: Duration::from_millis(wait_ms) }
            }
            Op::Release { keys, grant, number } => {
                let command = release(session_id(grant.session), number, &keys, Claim::Held(Token(grant.token)))?;
                at_once(command, Secret::of(grant.session))
            }
            Op::Withdraw { keys, session, number } => {
                at_once(release(session_id(session), number, &keys, Claim::Either)?, Secret::of(session))
            }
            Op::Proclaim { key, proclamation: wire::Proclaim { session, token, value }, number } => {
                let (key, value) = (valid_key(&key)?, valid_value(&value)?);
                let (id, sequence, token) = (session_id(session), sequence(number)?, Token(token));
                at_once(Command::Proclaim { session: id, sequence, key, token, value }, Secret::of(session))
            }
            Op::Break { key, order } => {
                if order.reason.is_empty() || order.reason.len() > limits::REASON_BYTES {
                    let length = order.reason.len();
                    let message = format!("the reason has {length} bytes; it may have 1 to {}", limits::REASON_BYTES);
                    return Err(invalid(message));
                }
                // No session, and so no secret.
                let (key, token, principal) = (valid_key(&key)?, Token(order.token), principal.clone());
                at_once(Command::Break { key, token, principal }, Secret::draw())
            }
            Op::ShowLock { key, consistency } => {
                Request::Read(Query::Lock(valid_key(&key)?), consistency, principal.clone())
            }
            Op::ListLocks(list) => {
                let consistency = list.consistency;
                Request::Read(page(list)?, consistency, principal.clone())
            }
            Op::ShowRecord { key, consistency } => {
                Request::Read(Query::Record(valid_key(&key)?), consistency, principal.clone())
            }
            Op::ListRecords(ListRecords { prefix, limit, after, consistency }) => {
                let (after, limit) = (after.map(|key| Key::from(key.as_str())), page_limit(limit)?);
                Request::Read(Query::Records { prefix, after, limit }, consistency, principal.clone())
            }
            Op::Transact { transaction, number } => {
                let (command, secret) = transactions::command(transaction, number, principal)?;
                at_once(command, secret)
            }
            Op::ChangeMembers(change) => Request::Change(member_change(change)?, principal.clone()),
            Op::Transfer(Transfer { to }) => Request::Transfer(to.map(|to| NodeId::new(to, 0)), principal.clone()),
            Op::ShowAccess => Request::Read(Query::Access, Consistency::Linearizable, principal.clone()),
            Op::SetAccess(document) => at_once(set_access(&document, principal)?, Secret::draw()),
            Op::TestAccess(TestAccess { principal: about, right, key }) => {
                // The right to administer is about no key.
                if right != wire::Right::Admin {
                    valid_key(&key)?;
                }
                let query =
                    Query::Permits { principal: Principal::from(about.as_str()), right: access::right(right), key };
                Request::Read(query, Consistency::Linearizable, principal.clone())
            }
            Op::Status => return Err(invalid("status is the node's own; request GET /v1/status")),
            Op::Watch(_) | Op::Unwatch { .. } => {
                return Err(invalid("a watch is the node's own; request GET /v1/watch"));
            }
        })
    }
}

fn member_change(change: MemberChange) -> Result<Change, Failure> {
    Ok(match change {
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
                None => MemberAddress { peer_addr: String::new(), incarnation: valid_incarnation(Some(&incarnation))? },
            };
            Change::Replace { lost, by, address: member.address() }
        }
    })
}

/// A change of the access rules. Without TLS no client has a name, and rules would apply to no client.
fn set_access(document: &AccessRules, principal: &Principal) -> Result<Command, Failure> {
    if principal.is_none() {
        let message = "access control is about the names of clients, and this request has none: start all nodes with \
                       TLS, and use the certificate of an administrator (docs/access.md)";
        return Err(Failure::new(Code::Denied, message));
    }
    if document.revision > MAX_NUMBER {
        return Err(invalid(format!("revision is {}; it may be 0 to {MAX_NUMBER}", document.revision)));
    }
    let (rules, revision) = (access::parse_rules(document)?, Revision(document.revision));
    Ok(Command::SetAccess { principal: principal.clone(), revision, rules })
}

/// A request that does not wait.
fn at_once(command: Command, secret: Secret) -> Request {
    Request::Propose { command, secret, wait: Duration::ZERO }
}

fn release(session: SessionId, number: Option<u64>, keys: &wire::Keys, claim: Claim) -> Result<Command, Failure> {
    Ok(Command::Release { session, sequence: sequence(number)?, keys: valid_keys(keys)?, claim })
}

fn lock_request(keys: &wire::Keys, options: &wire::Acquire) -> Result<LockRequest, Failure> {
    let wire::Acquire { wait_ms, permits, of, reentrant, max_queue, .. } = *options;
    let mode = match (options.mode, permits, of) {
        (wire::Mode::Exclusive, None, None) => Mode::EXCLUSIVE,
        (wire::Mode::Shared, None, None) => Mode::SHARED,
        (wire::Mode::Exclusive | wire::Mode::Semaphore, Some(permits), Some(of)) => Mode::semaphore(permits, of)
            .ok_or_else(|| {
                let most = Mode::MAX_PERMITS;
                invalid(format!("permits is {permits} of {of}; of may be 1 to {most}, and permits 1 to as many as of"))
            })?,
        (wire::Mode::Shared, ..) => {
            return Err(invalid("mode is shared, and permits or of is given: a request has a mode or permits"));
        }
        (wire::Mode::Exclusive | wire::Mode::Semaphore, ..) => {
            return Err(invalid("a semaphore's request has both permits (how many it takes) and of (all there are)"));
        }
    };
    // A request that does not wait joins no queue, however short.
    let max_queue = if wait_ms == 0 { 0 } else { max_queue.unwrap_or(u32::MAX) };
    let value = options.value.as_deref().map(valid_value).transpose()?;
    Ok(LockRequest { keys: valid_keys(keys)?, mode, max_queue, reentrant, value })
}

fn page(list: ListLocks) -> Result<Query, Failure> {
    let limit = page_limit(list.limit)?;
    Ok(Query::Locks { prefix: list.prefix, after: list.after.map(|key| Key::from(key.as_str())), limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a question about a right at a key names the key. It was answered about the empty key, which no lock has.
    #[test]
    fn question_about_a_right_names_a_key_unless_it_is_to_administer() {
        let ask = |right, key: &str| {
            let test = TestAccess { principal: "worker".into(), right, key: key.into() };
            Request::from_wire(Op::TestAccess(test), &Principal::default()).map(drop).map_err(|failure| failure.error)
        };
        for right in [wire::Right::Read, wire::Right::Acquire, wire::Right::Write, wire::Right::Break] {
            assert_eq!((ask(right, "k"), ask(right, "")), (Ok(()), Err(Code::Invalid)), "{right:?}");
            assert_eq!(ask(right, &"k".repeat(limits::KEY_BYTES + 1)), Err(Code::Invalid));
        }
        assert_eq!(ask(wire::Right::Admin, ""), Ok(()));
    }
}
