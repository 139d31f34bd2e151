//! Fields of requests, validated against the limits. A failure names the field and its bounds.

use palisade_client::wire::{self, Code, Failure};
use palisade_spec::lock::{Key, Keys, Opening, Owner, Principal, Sequence, Ttl, Value};
use palisade_spec::raft::MAX_NUMBER;

use super::credential::{Secret, session_proof};
use crate::addresses::reachable_address;
use crate::limits;
use crate::member_address::MemberAddress;
use crate::storage::Incarnation;

pub(super) fn valid_key(key: &str) -> Result<Key, Failure> {
    match key.len() {
        1..=limits::KEY_BYTES => Ok(Key::from(key)),
        length => Err(invalid(format!("the key has {length} bytes; it may have 1 to {}", limits::KEY_BYTES))),
    }
}

pub(super) fn valid_keys(keys: &wire::Keys) -> Result<Keys, Failure> {
    if let Some(key) = keys.single() {
        return valid_key(key).map(Keys::from);
    }
    let valid = keys.iter().map(|key| valid_key(key)).collect::<Result<Vec<Key>, Failure>>()?;
    let count = valid.len();
    let bytes: usize = valid.iter().map(|key| key.as_str().len()).sum();
    if bytes > limits::CLAIM_KEY_BYTES {
        let most = limits::CLAIM_KEY_BYTES;
        return Err(invalid(format!("the keys have {bytes} bytes together; those of one claim may have {most}")));
    }
    Keys::new(valid).ok_or_else(|| match count {
        1..=Keys::MAX => invalid("a key occurs twice in the list; a session has one claim on a key"),
        _ => invalid(format!("the list has {count} keys; it may have 1 to {}", Keys::MAX)),
    })
}

pub(super) fn valid_value(value: &str) -> Result<Value, Failure> {
    match value.len() {
        0..=limits::VALUE_BYTES => Ok(Value::from(value)),
        length => Err(invalid(format!("the value has {length} bytes; it may have {}", limits::VALUE_BYTES))),
    }
}

pub(super) fn sequence(number: Option<u64>) -> Result<Option<Sequence>, Failure> {
    match number {
        Some(0) => Err(invalid("number is 0; a session's operations are numbered from 1")),
        Some(number) if number > MAX_NUMBER => Err(invalid(format!("number is {number}; it may be 1 to {MAX_NUMBER}"))),
        number => Ok(number.and_then(Sequence::new)),
    }
}

pub(super) fn opening(ttl_ms: u64, owner: &str, secret: Secret, principal: &Principal) -> Result<Opening, Failure> {
    let (min, max) = (limits::TTL_MIN_MS, limits::TTL_MAX_MS);
    if !(min..=max).contains(&ttl_ms) {
        return Err(invalid(format!("ttl_ms is {ttl_ms}; it may be {min} to {max}")));
    }
    if owner.len() > limits::OWNER_BYTES {
        return Err(invalid(format!("the owner has {} bytes; it may have {}", owner.len(), limits::OWNER_BYTES)));
    }
    let (proof, principal) = (session_proof(secret, principal.as_str()), principal.clone());
    Ok(Opening { proof, owner: Owner::from(owner), principal, ttl: Ttl(ttl_ms) })
}

pub(super) fn page_limit(limit: Option<u64>) -> Result<usize, Failure> {
    let limit = usize::try_from(limit.unwrap_or(100)).ok().filter(|limit| (1..=limits::PAGE).contains(limit));
    limit.ok_or_else(|| invalid(format!("limit may be 1 to {}", limits::PAGE)))
}

pub(super) fn valid_member_address(peer_addr: String, incarnation: Option<&str>) -> Result<MemberAddress, Failure> {
    let peer_addr = reachable_address(&peer_addr).map_err(|reason| invalid(format!("peer_addr {reason}")))?;
    Ok(MemberAddress { peer_addr, incarnation: valid_incarnation(incarnation)? })
}

pub(super) fn valid_incarnation(digits: Option<&str>) -> Result<Option<Incarnation>, Failure> {
    digits.map(str::parse).transpose().map_err(|_| invalid("incarnation is not 16 hexadecimal digits"))
}

pub(super) fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Code::Invalid, message)
}
