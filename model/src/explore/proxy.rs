//! The page that a browser opens: stateright's Explorer, with two changes that stateright has no
//! setting for.
//!
//! stateright shows the name of the model's Rust type, which is the adapter's for all models, and
//! begins before the initial state, where there is nothing to see. So stateright listens at an
//! address of its own. This proxy passes every request on to it, writes the model's name into the
//! status, and lets the page begin at the first initial state.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use tiny_http::{Request, Response, Server};

/// How often the first request tries to reach stateright, which begins to listen only when it has
/// computed the model's initial states.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(20);

/// Answers requests to `listener` until the process ends. stateright's Explorer listens at
/// `explorer`.
///
/// # Errors
/// If the listener fails.
pub(super) fn serve(listener: TcpListener, explorer: SocketAddr, name: &str) -> io::Result<()> {
    let server = Server::from_listener(listener, None).map_err(io::Error::other)?;
    loop {
        let request = server.recv()?;
        let response = match ask(explorer, &request) {
            Ok((code, body)) => Response::from_data(change(request.url(), body, name)).with_status_code(code),
            Err(error) => {
                let what = format!("the Explorer of {name} does not answer ({error}); start the command again\n");
                Response::from_data(what).with_status_code(502)
            }
        };
        // A browser that has gone needs no answer.
        let _ = request.respond(response);
    }
}

/// What stateright's Explorer answers to a request: the status code and the body.
fn ask(explorer: SocketAddr, request: &Request) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = connect(explorer)?;
    write!(stream, "{} {} HTTP/1.0\r\nContent-Length: 0\r\n\r\n", request.method(), request.url())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    split(&answer).ok_or_else(|| io::Error::other("its answer is not HTTP"))
}

fn connect(explorer: SocketAddr) -> io::Result<TcpStream> {
    let mut tries = (1..TRIES).map(|_| TcpStream::connect(explorer)).inspect(|stream| {
        if stream.is_err() {
            sleep(PAUSE);
        }
    });
    tries.find(Result::is_ok).unwrap_or_else(|| TcpStream::connect(explorer))
}

/// The status code and the body of an answer that ends with its connection.
fn split(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    const END: &[u8] = b"\r\n\r\n";
    let head = answer.windows(END.len()).position(|window| window == END)?;
    let status = std::str::from_utf8(&answer[..head]).ok()?.split(' ').nth(1)?;
    Some((status.parse().ok()?, answer[head + END.len()..].to_vec()))
}

/// The body as the browser gets it.
fn change(url: &str, body: Vec<u8>, name: &str) -> Vec<u8> {
    match url {
        "/.status" => with_name(&body, name).unwrap_or(body),
        "/app.js" => String::from_utf8_lossy(&body).replace("hash || '#/steps'", "hash || '#/steps/0'").into_bytes(),
        _ => body,
    }
}

fn with_name(status: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut status: serde_json::Value = serde_json::from_slice(status).ok()?;
    *status.get_mut("model")? = name.into();
    serde_json::to_vec(&status).ok()
}
