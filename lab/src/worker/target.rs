//! The target of a worker's writes: the lab's resource, or a store that checks the token itself.

use std::sync::Arc;

use crate::resource::client::{Answer, Client, Token};
use crate::resource::log::Op;
use crate::resource::rule::Fence;
use crate::stores::{self, Store};

/// What a worker writes to.
#[derive(Debug)]
pub enum Target {
    /// The lab's resource.
    Resource(Box<Client>),
    /// A store; whether its writes have the condition on the token.
    Store(Arc<dyn Store>, Fence),
}

impl Target {
    /// A key's value; empty if no write to it was accepted.
    ///
    /// # Errors
    /// The target could not be reached or has answered with an error.
    pub async fn read(&self, key: &str) -> Result<String, String> {
        let value = match self {
            Target::Resource(resource) => resource.read(key).await?.map(|value| value.value),
            Target::Store(store, _) => store.read(key).await?.map(|value| value.value),
        };
        Ok(value.unwrap_or_default())
    }

    /// Writes a key's value with the token. A store takes whole values only.
    ///
    /// # Errors
    /// The target could not be reached or has answered with an error: whether the write was done is unknown.
    pub async fn write(&self, key: &str, op: Op, token: Token<'_>, body: &str) -> Result<Answer, String> {
        match (self, op) {
            (Target::Resource(resource), _) => resource.write(key, op, token, body).await,
            (Target::Store(..), Op::Append) => Err("a store does not append to a value".to_owned()),
            (Target::Store(store, fence), Op::Put) => match store.write(key, body, token.number, *fence).await? {
                // The write has replaced the stored token, whatever it was.
                stores::Answer::Accepted { .. } => Ok(Answer::Accepted { max_fence: token.number }),
                stores::Answer::Stale { seen, .. } => Ok(Answer::Stale { seen }),
            },
        }
    }
}
