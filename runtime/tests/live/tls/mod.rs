//! TLS and identities: what a stranger on either port gets to hear, and what it cannot change.

mod access;
pub(crate) mod clients;
mod full_port;
mod hold;
mod peers;
mod redirects;
mod rolling;
mod rotation;
mod sessions;
mod starts;
mod tokens;
