//! `palisade proclaim`: a command under `palisade lock` or `palisade elect` replaces the value of its lock.
//!
//! The command's environment has no credential of the session: whatever prints the environment would give the lock
//! away. So the `palisade lock` that holds the lock proclaims for its command. It listens at a local socket, whose name
//! the environment has ([`VARIABLE`]), and serves processes of its own user. Its guard numbers each proclamation: it
//! takes effect once, and none undoes a later one.
//!
//! The socket's name is an abstract one of Linux: it is no file, and is gone when `palisade lock` has ended in whatever
//! way.

use std::convert::Infallible;
use std::io;
use std::os::unix::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use palisade_client::{Error, Guard};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use super::{EXIT_LOST, block_on, connect, print_error};

/// The variable with the name of the socket at which the innermost `palisade lock` listens.
pub(super) const VARIABLE: &str = "PALISADE_PROCLAIM";
/// Exit code: no `palisade lock` has started this process.
const EXIT_OUTSIDE: u8 = 64;
/// Exit codes: the other end runs as another user, or the socket cannot be used for another reason.
const EXIT_OTHER_USER: u8 = 77;
const EXIT_SOCKET: u8 = 71;
/// How long a process may take to send a value.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes that are read of a value: more than one word of a command line may have. The cluster refuses a value
/// that is too long.
const READ_BYTES: u64 = 1 << 18;
/// The pause after a connection that could not be accepted, for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Replace the value of the lock under which this command runs
///
/// For the command of a `palisade elect`, or of a `palisade lock`: what the leader says, for instance its new address.
/// `palisade show` and `palisade watch` print it. The value takes effect once, and only while the lock is held. Under
/// several `palisade lock`s it is the value of the innermost one. The exit code is 64 if the command runs under none,
/// 65 if the cluster refuses the value (more than 4,096 bytes), 69 if no leader could be reached, 71 if `palisade lock`
/// cannot be reached although it may hold the lock, 76 if the lock is lost, and 77 if the access rules deny it, or if the
/// command runs as another user than `palisade lock`.
#[derive(Debug, Args)]
pub(super) struct Proclaim {
    /// The new value, for other clients; at most 4,096 bytes
    value: String,
}

/// What `palisade lock` answers: how the proclamation ended.
#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    code: u8,
    error: Option<String>,
}

impl Proclaim {
    pub(super) fn run(self) -> ExitCode {
        let Some(name) = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty()) else {
            print_error(format!(
                "no value is replaced, because this process does not run under a lock ({VARIABLE} is not set): run \
                 `palisade proclaim` in the command of a `palisade elect` or a `palisade lock`"
            ));
            return ExitCode::from(EXIT_OUTSIDE);
        };
        match block_on(ask(&name, &self.value)) {
            Ok(Reply { code, error }) => {
                error.into_iter().for_each(print_error);
                ExitCode::from(code)
            }
            Err(error) => {
                let key = std::env::var("PALISADE_KEY").unwrap_or_default().replace('\n', ", ");
                print_error(format!(
                    "{key}: cannot reach the `palisade lock` that started this command: {error}; if it has ended, the lock is \
                     lost or released"
                ));
                ExitCode::from(match error.kind() {
                    // No process listens any more, or it has ended before its answer.
                    io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::ConnectionReset => EXIT_LOST,
                    io::ErrorKind::PermissionDenied => EXIT_OTHER_USER,
                    _ => EXIT_SOCKET,
                })
            }
        }
    }
}

/// Sends a value to the `palisade lock` that listens at this name, and waits for its answer.
async fn ask(name: &str, value: &str) -> io::Result<Reply> {
    let (name, secret) =
        name.split_once(':').ok_or_else(|| io::Error::other(format!("{VARIABLE} is no name of a socket")))?;
    let stream = std::os::unix::net::UnixStream::connect_addr(&address(name)?)?;
    stream.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(stream)?;
    check_user(&stream)?;
    stream.write_all(&[secret.as_bytes(), value.as_bytes()].concat()).await?;
    stream.shutdown().await?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await?;
    if reply.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended before it answered"));
    }
    Ok(serde_json::from_slice(&reply)?)
}

/// The socket at which `palisade lock` takes the values of its command.
pub(super) struct Proclamations {
    /// The name, and what a process sends to show that it has the variable: every process of the network namespace can
    /// list the names of sockets.
    name: String,
    secret: String,
    listener: UnixListener,
}

impl Proclamations {
    pub(super) fn listen() -> io::Result<Proclamations> {
        let name = format!("palisade-proclaim-{:032x}", rand::random::<u128>());
        let listener = std::os::unix::net::UnixListener::bind_addr(&address(&name)?)?;
        listener.set_nonblocking(true)?;
        let secret = format!("{:032x}", rand::random::<u128>());
        Ok(Proclamations { name, secret, listener: UnixListener::from_std(listener)? })
    }

    /// The value of [`VARIABLE`].
    pub(super) fn variable(&self) -> String {
        format!("{}:{}", self.name, self.secret)
    }

    /// Proclaims the values that come, one after the other.
    pub(super) async fn serve(&self, guard: &Guard) -> Infallible {
        loop {
            match self.listener.accept().await {
                // A process that has gone or sends no value needs no answer.
                Ok((stream, _)) => drop(answer(stream, &self.secret, guard).await),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

async fn answer(mut stream: UnixStream, secret: &str, guard: &Guard) -> io::Result<()> {
    check_user(&stream)?;
    let mut value = Vec::new();
    timeout(READ_TIMEOUT, (&mut stream).take(READ_BYTES).read_to_end(&mut value)).await??;
    let value = String::from_utf8(value).map_err(io::Error::other)?;
    let value = value.strip_prefix(secret).ok_or(io::ErrorKind::PermissionDenied)?.to_owned();
    let error = proclaim(guard, value).await.err();
    let code = error.as_ref().map_or(0, connect::exit_code);
    let error = error.map(|error| format!("{}: {error}", guard.keys().join(", ")));
    stream.write_all(&serde_json::to_vec(&Reply { code, error })?).await
}

/// Proclaims a value by another guard of the grant, whose hold is given back then: this guard is in use.
async fn proclaim(guard: &Guard, value: String) -> Result<(), Error> {
    guard.hold_again().await?.proclaim(value).await
}

/// Refuses a process of another user: every process of the machine can connect to an abstract name, or take it when
/// `palisade lock` has ended.
fn check_user(stream: &UnixStream) -> io::Result<()> {
    let (own, other) = (geteuid().as_raw(), stream.peer_cred()?.uid());
    if own == other {
        return Ok(());
    }
    let reason = format!("the process at the other end runs as user {other}, and this one as user {own}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

#[cfg(target_os = "linux")]
fn address(name: &str) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn address(_name: &str) -> io::Result<SocketAddr> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no abstract socket names"))
}
