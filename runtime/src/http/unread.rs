//! Bounds the memory of large answers that clients have not read.
//!
//! An answer is whole in memory before its first byte is sent, and some are large: a lock with its
//! queue, a page of locks. A client that reads slowly, or not at all until its time is over, keeps
//! the answer for as long, and it may have thousands of connections. So all large answers share a
//! [`Budget`], of which the clients at one address have a part. An answer beyond it is dropped, and
//! the client is told to try again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Uri;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use palisade_client::wire::{Code, Failure};

use super::{App, reply};
use crate::addresses::ClientAddress;
use crate::budget::{Budget, Share};
use crate::limits;

impl App {
    /// The answer, which holds its part of the memory until it is sent or dropped; a refusal if there is none left.
    pub(super) fn while_unread(&self, response: Response, uri: &Uri) -> Response {
        match self.remote {
            Some(remote) => while_unread(response, &self.unread_bytes, ClientAddress::from(remote), uri),
            None => response,
        }
    }
}

fn while_unread(response: Response, budget: &Arc<Budget>, client: ClientAddress, uri: &Uri) -> Response {
    let bytes = response.body().size_hint().lower();
    let Some(bytes) = usize::try_from(bytes).ok().filter(|&bytes| bytes >= limits::LARGE_ANSWER) else {
        return response;
    };
    let share = budget.share(client);
    match share.hold(bytes) {
        Ok(()) => response.map(|body| Body::new(Unread { body, _share: share })),
        Err(exhausted) => {
            let message = format!("{exhausted}; read the answers that were requested, and ask again");
            reply::response(Err(Failure::new(Code::Overloaded, message)), uri)
        }
    }
}

/// The body of a large answer.
struct Unread {
    body: Body,
    _share: Share,
}

impl HttpBody for Unread {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    /// Never by itself: the HTTP server drops a body that says so before it has written the last piece. It asks for
    /// another piece when that is written.
    fn is_end_stream(&self) -> bool {
        false
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::StatusCode;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::task::yield_now;

    use super::*;
    use crate::budget::UNREAD;

    /// Goal: the large answers that one client does not read, on however many connections, take no more than its part of
    /// the memory; others have theirs, and what was read or dropped is free again.
    #[tokio::test]
    async fn unread_answers_are_bounded() {
        let budget = Budget::new(&UNREAD, 1024 * 1024);
        let answer = |host: u8, bytes: usize| {
            let client = ClientAddress::of([10, 0, 0, host].into());
            let response = Response::new(Body::from(vec![b'x'; bytes]));
            while_unread(response, &budget, client, &Uri::from_static("/v1/locks"))
        };
        let held = answer(1, 100_000);
        let refused = answer(1, 100_000);
        assert_eq!((held.status(), refused.status()), (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE));
        let small = answer(1, limits::LARGE_ANSWER - 1);
        assert_eq!(small.status(), StatusCode::OK, "a small one is not counted");
        assert_eq!(answer(2, 100_000).status(), StatusCode::OK, "another client has its own part");
        let body = axum::body::to_bytes(held.into_body(), usize::MAX).await.unwrap();
        assert_eq!(body.len(), 100_000);
        assert_eq!(answer(1, 100_000).status(), StatusCode::OK, "it was read");
        assert_eq!(answer(1, 100_000).status(), StatusCode::OK, "it was dropped");
    }

    /// Goal: an answer counts until the client has read nearly all of it, and not only until the HTTP server has taken it.
    #[tokio::test]
    async fn answer_counts_until_it_is_read() {
        const BYTES: usize = 1_000_000;
        let (budget, host) = (Budget::new(&UNREAD, 8 * BYTES), ClientAddress::of([10, 0, 0, 1].into()));
        let (mut client, server) = duplex(1024);
        let of_server = Arc::clone(&budget);
        let service = service_fn(move |_| {
            let response = Response::new(Body::from(vec![b'x'; BYTES]));
            let response = while_unread(response, &of_server, host, &Uri::from_static("/v1/locks"));
            async { Ok::<_, Infallible>(response) }
        });
        tokio::spawn(http1::Builder::new().max_buf_size(16 * 1024).serve_connection(TokioIo::new(server), service));
        client.write_all(b"GET /v1/locks HTTP/1.1\r\nhost: node\r\n\r\n").await.unwrap();
        let mut read = vec![0; BYTES / 2];
        client.read_exact(&mut read).await.unwrap();
        for _ in 0..100 {
            yield_now().await;
        }
        assert!(budget.share(host).hold(1).is_err(), "half of it is unread");
        client.read_exact(&mut read).await.unwrap();
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(budget.share(host).hold(BYTES), Ok(()));
    }
}
