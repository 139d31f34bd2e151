//! TLS and identities: what a stranger on either port gets to hear, and what it cannot change.

mod access;
pub(crate) mod clients;
mod hold;
mod peers;
mod rolling;
mod rotation;
mod starts;
mod tokens;
