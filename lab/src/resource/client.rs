//! A client of the resource, as the workers and the experiments use it.

use std::time::Duration;

use hyper::{Method, Request, StatusCode};
use serde::Deserialize;

use super::api::{CLIENT, SIGNED_TOKEN, TOKEN};
use super::log::Op;
use crate::http::Http;
use crate::text::path_segment;

/// How long the resource may take to answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client of one resource.
#[derive(Debug, Clone)]
pub struct Client {
    http: Http,
    url: String,
    /// The name in the resource's history.
    name: String,
}

/// A fencing token, as a client shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    /// The number.
    pub number: u64,
    /// The same with the cluster's signature, if the cluster signs its grants.
    pub signed: Option<&'a str>,
}

impl From<u64> for Token<'_> {
    fn from(number: u64) -> Self {
        Token { number, signed: None }
    }
}

/// What the resource said about a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was accepted.
    Accepted {
        /// The highest token now.
        max_fence: u64,
    },
    /// It was refused: the token is stale.
    Stale {
        /// The highest token seen.
        seen: u64,
    },
    /// It was refused: the resource requires signatures, and the token has none that it trusts.
    Untrusted {
        /// What the resource said.
        error: String,
    },
}

/// A key's value.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Value {
    /// The value.
    pub value: String,
    /// The highest fencing token.
    pub max_fence: u64,
}

#[derive(Deserialize)]
struct Written {
    max_fence: u64,
}

#[derive(Deserialize)]
struct Refused {
    seen: u64,
}

#[derive(Deserialize)]
struct Untrusted {
    error: String,
}

impl Client {
    /// A client of the resource at `http://HOST:PORT`.
    ///
    /// # Errors
    /// The URL is not of this form.
    pub fn new(url: &str, name: &str) -> Result<Client, String> {
        let url = url.trim_end_matches('/');
        let host = url.strip_prefix("http://").filter(|host| !host.is_empty() && !host.contains('/'));
        host.ok_or_else(|| format!("the resource's URL is {url}; it must be http://HOST:PORT"))?;
        Ok(Client { http: Http::keeping_connections(), url: url.to_owned(), name: name.to_owned() })
    }

    /// Writes a key's value.
    ///
    /// # Errors
    /// The resource could not be reached or has answered with an error: whether the write was done
    /// is unknown.
    pub async fn write<'a>(
        &self,
        key: &str,
        op: Op,
        token: impl Into<Token<'a>>,
        body: &str,
    ) -> Result<Answer, String> {
        let (method, path) = match op {
            Op::Put => (Method::PUT, format!("/r/{}", path_segment(key))),
            Op::Append => (Method::POST, format!("/r/{}/append", path_segment(key))),
        };
        let (status, text) = self.ask(method, &path, Some(token.into()), body).await?;
        let unclear = |error: serde_json::Error| format!("{}{path} answered {status} with {text}: {error}", self.url);
        match status {
            StatusCode::OK => {
                let Written { max_fence } = serde_json::from_str(&text).map_err(unclear)?;
                Ok(Answer::Accepted { max_fence })
            }
            StatusCode::CONFLICT => {
                let Refused { seen } = serde_json::from_str(&text).map_err(unclear)?;
                Ok(Answer::Stale { seen })
            }
            StatusCode::FORBIDDEN => {
                let Untrusted { error } = serde_json::from_str(&text).map_err(unclear)?;
                Ok(Answer::Untrusted { error })
            }
            _ => Err(format!("{}{path} answered {status}: {text}", self.url)),
        }
    }

    /// A key's value; `None` if no write to it was accepted.
    ///
    /// # Errors
    /// The resource could not be reached or has answered with an error.
    pub async fn read(&self, key: &str) -> Result<Option<Value>, String> {
        let path = format!("/r/{}", path_segment(key));
        let (status, text) = self.ask(Method::GET, &path, None, "").await?;
        match status {
            StatusCode::OK => serde_json::from_str(&text).map(Some).map_err(|error| format!("{}: {error}", self.url)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(format!("{}{path} answered {status}: {text}", self.url)),
        }
    }

    /// A counter of the resource's metrics.
    ///
    /// # Errors
    /// The resource could not be reached, or has no such counter.
    pub async fn counter(&self, name: &str) -> Result<u64, String> {
        let (_, text) = self.ask(Method::GET, "/metrics", None, "").await?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.and_then(|value| value.trim().parse().ok());
        value.ok_or_else(|| format!("{}/metrics has no counter {name}", self.url))
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        token: Option<Token<'_>>,
        body: &str,
    ) -> Result<(StatusCode, String), String> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if let Some(token) = token {
            request = request.header(TOKEN, token.number).header(CLIENT, &self.name);
            if let Some(signed) = token.signed {
                request = request.header(SIGNED_TOKEN, signed);
            }
        }
        let reply = tokio::time::timeout(TIMEOUT, self.http.send(request, body.to_owned())).await;
        let reply = reply.map_err(|_| format!("the resource {} has not answered for {TIMEOUT:?}", self.url))?;
        let reply = reply.map_err(|error| format!("{}: {error}", self.url))?;
        Ok((reply.status, reply.text()))
    }
}
