//! HTTP over TLS by hand: one request, one connection.

use std::io;
use std::time::Duration;

use palisade_client::Security;
use palisade_client::tls::{Side, Stream, explain};
use palisade_client::wire::StatusView;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::description::{self, Request};
use super::http::{self, Response};

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a future to its end, on a runtime of its own.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// The node's own view of the cluster, if it answers.
pub fn status(address: &str, security: &Security) -> Option<StatusView> {
    block_on(security.status(address, Duration::from_secs(5))).ok()
}

/// `GET path`.
pub fn get(address: &str, security: &Security, path: &str) -> io::Result<Response> {
    send(address, security, "GET", path, "")
}

/// `POST path` with a body.
pub fn post(address: &str, security: &Security, path: &str, body: &str) -> io::Result<Response> {
    send(address, security, "POST", path, body)
}

/// `GET path` of this node itself. Redirects are not followed.
pub fn get_unforwarded(address: &str, security: &Security, path: &str) -> io::Result<Response> {
    send_with(address, security, "GET", path, "X-Forward: never\r\n", "")
}

/// Any method. A follower forwards the request to the leader. An error of TLS is its sentence.
pub fn send(address: &str, security: &Security, method: &str, path: &str, body: &str) -> io::Result<Response> {
    send_with(address, security, method, path, "", body)
}

/// Any method, with more headers.
pub fn send_with(
    address: &str,
    security: &Security,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<Response> {
    let token = security.token().map_err(io::Error::other)?;
    let token = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let request = http::request(method, path, &(token + headers), body);
    let response = http::whole(request.as_bytes(), &exchange(address, security, request.as_bytes())?)?;
    description::check(Request::parse(request.as_bytes()), &response);
    Ok(response)
}

/// Connects, sends bytes, and reads until the other side ends the connection.
pub fn exchange(address: &str, security: &Security, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let talk = async {
        let stream = security.dial(address).await.map_err(io::Error::other)?;
        let answered = converse(stream, bytes).await;
        answered.map_err(|error| explain(&error, Side::Server).map_or(error, io::Error::other))
    };
    block_on(async { timeout(PATIENCE, talk).await }).map_err(io::Error::other)?
}

async fn converse(mut stream: Stream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    // A side that refuses may end the connection at any point.
    let sent = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    let sent = sent.await;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer).await {
        Ok(_) => {}
        // The connection was not ended by TLS: what came before counts.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !answer.is_empty() => {}
        Err(error) => return Err(error),
    }
    if answer.is_empty() {
        sent?;
    }
    Ok(answer)
}
