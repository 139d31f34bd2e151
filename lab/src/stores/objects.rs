//! An object that contains its token, written by compare-and-swap.
//!
//! An object store has no condition "the token is above the stored one". It has `If-Match: ETAG` and
//! `If-None-Match: *`: put the object only if it is still the one that was read, or if there is none.
//! So a write is a loop:
//!
//! 1. GET the object. If its token is not below the writer's, the write is refused. No put is sent.
//! 2. PUT the value and the token on condition that the object is the one that step 1 has read.
//! 3. 412 (or 404, or S3's 409 for two conditional puts at once): the object has changed. Go to 1.
//!
//! Why the loop is safe, although a pause may be between the steps: the store tests the condition and
//! replaces the object in one step. A put that is accepted has replaced exactly the object that was
//! read, and that object's token was lower. So the stored token never falls. A writer that is paused
//! between 1 and 2 is refused in 2 if another client has written meanwhile. The loop ends: a put is
//! refused only because another writer's was accepted, and each of those raises the token.
//!
//! Two details carry this argument:
//!
//! - **The token is in the content, not in the metadata.** An ETag is a hash of the content. With the
//!   token in the metadata, two writes of equal bytes have equal ETags. A stale writer's condition
//!   would hold again although a newer token is stored (the ABA problem). With the token in the
//!   content, a content comes back only if a token does, and accepted tokens only grow.
//! - **The object is never deleted.** `If-None-Match: *` accepts any token when there is no object. An
//!   application that deletes must write an object that says so, with its token.

use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::body::Bytes;
use hyper::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use hyper::{Method, Request, StatusCode};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};

use super::{Answer, Kind, Store, Value, in_time};
use crate::http::{Http, Reply};
use crate::resource::rule::Fence;
use crate::servers::objects::{ACCESS_KEY, BUCKET, REGION, SECRET_KEY};

/// How long a signature is valid: longer than a request may take.
const SIGNED_FOR: Duration = Duration::from_secs(300);

/// A client of the bucket.
#[derive(Debug)]
pub struct Objects {
    http: Http,
    bucket: Bucket,
    credentials: Credentials,
    address: String,
}

/// An object with the name of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tagged {
    /// The content.
    pub value: Value,
    /// The ETag, as the store has sent it.
    pub etag: String,
}

impl Objects {
    /// A client of the lab's bucket at `HOST:PORT`.
    ///
    /// # Errors
    /// The address is not of this form.
    pub fn new(address: &str) -> Result<Objects, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("the object store's address {address}: {error}");
        let endpoint = format!("http://{address}").parse().map_err(|error| wrong(&error))?;
        let bucket = Bucket::new(endpoint, UrlStyle::Path, BUCKET, REGION).map_err(|error| wrong(&error))?;
        // The store closes each connection after its answer.
        let http = Http::closing_connections();
        Ok(Objects { http, bucket, credentials: Credentials::new(ACCESS_KEY, SECRET_KEY), address: address.to_owned() })
    }

    /// The object with its ETag; `None` if there is none.
    ///
    /// # Errors
    /// The store could not be reached, or the object is not one of a fenced writer.
    pub async fn get(&self, key: &str) -> Result<Option<Tagged>, String> {
        let url = self.bucket.get_object(Some(&self.credentials), key).sign(SIGNED_FOR);
        let reply = self.ask(Method::GET, url.as_str(), None, Bytes::new()).await?;
        match reply.status {
            StatusCode::OK => {
                let wrong = |what: &dyn std::fmt::Display| format!("the object {key} is not a fenced value: {what}");
                let value = serde_json::from_slice(&reply.body).map_err(|error| wrong(&error))?;
                let etag = reply.headers.get(ETAG).and_then(|etag| etag.to_str().ok());
                let etag = etag.ok_or_else(|| wrong(&"the store sends no ETag"))?.to_owned();
                Ok(Some(Tagged { value, etag }))
            }
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.unclear("GET", key, &reply)),
        }
    }

    /// Puts the object if it is still the one with this ETag, or if there is none. False: it is not.
    ///
    /// # Errors
    /// The store could not be reached: whether the object was put is unknown.
    pub async fn put_if(&self, key: &str, value: &Value, etag: Option<&str>) -> Result<bool, String> {
        let condition = etag.map_or((IF_NONE_MATCH, "*"), |etag| (IF_MATCH, etag));
        let reply = self.put(key, value, Some(condition)).await?;
        match reply.status {
            StatusCode::OK => Ok(true),
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT | StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.unclear("PUT", key, &reply)),
        }
    }

    async fn swap(&self, key: &str, new: &Value) -> Result<Answer, String> {
        let mut attempts = 0;
        loop {
            let current = self.get(key).await?;
            if let Some(Tagged { value, .. }) = &current
                && value.fence >= new.fence
            {
                return Ok(Answer::Stale { seen: value.fence, attempts });
            }
            attempts += 1;
            if self.put_if(key, new, current.as_ref().map(|current| current.etag.as_str())).await? {
                return Ok(Answer::Accepted { attempts });
            }
        }
    }

    async fn overwrite(&self, key: &str, new: &Value) -> Result<Answer, String> {
        let reply = self.put(key, new, None).await?;
        match reply.status {
            StatusCode::OK => Ok(Answer::Accepted { attempts: 1 }),
            _ => Err(self.unclear("PUT", key, &reply)),
        }
    }

    async fn put(&self, key: &str, value: &Value, condition: Option<(HeaderName, &str)>) -> Result<Reply, String> {
        let url = self.bucket.put_object(Some(&self.credentials), key).sign(SIGNED_FOR);
        let body = serde_json::to_vec(value).map_err(|error| format!("the object {key}: {error}"))?;
        self.ask(Method::PUT, url.as_str(), condition, body.into()).await
    }

    async fn ask(
        &self,
        method: Method,
        url: &str,
        condition: Option<(HeaderName, &str)>,
        body: Bytes,
    ) -> Result<Reply, String> {
        let mut request = Request::builder().method(method).uri(url);
        if let Some((name, value)) = condition {
            request = request.header(name, value);
        }
        let reply = self.http.send(request, body).await;
        reply.map_err(|error| format!("the object store at {}: {error}", self.address))
    }

    fn unclear(&self, method: &str, key: &str, reply: &Reply) -> String {
        let (status, text) = (reply.status, reply.text());
        format!("the object store at {} answers {method} {key} with {status}: {}", self.address, text.trim())
    }
}

impl Store for Objects {
    fn kind(&self) -> Kind {
        Kind::Objects
    }

    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Value>, String>> {
        Box::pin(in_time("the object store", async { Ok(self.get(key).await?.map(|tagged| tagged.value)) }))
    }

    fn write<'a>(
        &'a self,
        key: &'a str,
        value: &'a str,
        token: u64,
        fence: Fence,
    ) -> BoxFuture<'a, Result<Answer, String>> {
        Box::pin(in_time("the object store", async move {
            let new = Value { fence: token, value: value.to_owned() };
            match fence {
                Fence::On => self.swap(key, &new).await,
                Fence::Off => self.overwrite(key, &new).await,
            }
        }))
    }
}
