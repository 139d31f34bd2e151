//! The adapter of this client for the scenarios that every client must pass (docs/clients.md): it reads a command a line
//! from its input, does it with the client's public interface, and writes an answer or an event a line. Its end releases
//! nothing, so a test can let a client end without a farewell.
//!
//! `adapter --endpoints HOST:PORT,HOST:PORT [--ca FILE [--cert FILE --cert-key FILE | --token-file FILE]]`

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade_client::wire::Keys;
use palisade_client::{Client, Error, Guard, LockOptions, Options, Security, parse_endpoints};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::sync::{Notify, OnceCell};

/// A line of the input.
#[derive(Deserialize)]
struct Request {
    id: u64,
    #[serde(flatten)]
    command: Command,
}

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
enum Command {
    Acquire(Box<AcquireCommand>),
    State { name: String },
    Release { name: String },
    Cancel { name: String },
    Value { name: String, value: String },
    Quit,
}

/// What a lock is asked for with. `name` is what later commands call it.
#[derive(Deserialize)]
struct AcquireCommand {
    name: String,
    #[serde(rename = "key", alias = "keys")]
    keys: Keys,
    ttl_ms: u64,
    #[serde(default)]
    wait_ms: u64,
    #[serde(default)]
    owner: String,
    mode: Option<String>,
    permits: Option<u32>,
    of: Option<u32>,
    max_queue: Option<u32>,
    value: Option<String>,
}

impl AcquireCommand {
    fn options(self) -> Result<LockOptions, Refusal> {
        let mut options = LockOptions::default().ttl(Duration::from_millis(self.ttl_ms)).owner(self.owner);
        if self.wait_ms > 0 {
            options = options.wait(Duration::from_millis(self.wait_ms));
        }
        options = match (self.mode.as_deref(), self.permits, self.of) {
            (None | Some("exclusive"), None, None) => options,
            (Some("shared"), None, None) => options.shared(),
            (None, Some(permits), Some(of)) => options.permits(permits, of),
            other => return Err(invalid(format!("no claim has these mode, permits and of: {other:?}"))),
        };
        if let Some(sessions) = self.max_queue {
            options = options.max_queue(sessions);
        }
        if let Some(value) = self.value {
            options = options.value(value);
        }
        Ok(options)
    }
}

/// Why a command failed: a code and a sentence.
type Refusal = (String, String);

fn invalid(message: String) -> Refusal {
    ("invalid".to_owned(), message)
}

fn refusal(error: &Error) -> Refusal {
    let code = match error {
        Error::Held { .. } => "held",
        Error::TimedOut { .. } => "timeout",
        Error::Unreachable { .. } => "unreachable",
        Error::Lost => "lost",
        Error::Unauthenticated { .. } => "unauthenticated",
        Error::Refused(failure) => {
            let code = serde_json::to_value(failure.error).ok();
            let code = code.as_ref().and_then(Value::as_str).unwrap_or("refused");
            return (code.to_owned(), failure.message.clone());
        }
        _ => "invalid",
    };
    (code.to_owned(), error.to_string())
}

/// A claim that was made under a name: waiting, held or ended.
#[derive(Default)]
struct Claim {
    /// Told when the wait is to be given up.
    cancel: Notify,
    /// The grant, until it is released. Behind a lock that a change of the value holds across its request.
    guard: tokio::sync::Mutex<Option<Guard>>,
    token: OnceCell<u64>,
}

struct Adapter {
    endpoints: Vec<String>,
    options: Options,
    /// Connected when it is first needed, so that a cluster out of reach is the answer to a command.
    client: OnceCell<Client>,
    claims: Mutex<HashMap<String, Arc<Claim>>>,
}

impl Adapter {
    fn new(mut arguments: impl Iterator<Item = String>) -> Result<Adapter, String> {
        let mut given = HashMap::new();
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or(format!("{flag} has no value"))?;
            given.insert(flag, value);
        }
        let endpoints = given.remove("--endpoints").ok_or("--endpoints HOST:PORT,HOST:PORT is missing")?;
        let mut security = given.remove("--ca").map_or_else(Security::plain, Security::tls);
        if let (Some(cert), Some(key)) = (given.remove("--cert"), given.remove("--cert-key")) {
            security = security.with_certificate(cert, key);
        }
        if let Some(file) = given.remove("--token-file") {
            security = security.with_token_file(file);
        }
        if let Some(unknown) = given.keys().next() {
            return Err(format!("{unknown} is no option of this adapter"));
        }
        let endpoints = parse_endpoints(&endpoints).map_err(|error| error.to_string())?;
        let options = Options { security, ..Options::default() };
        Ok(Adapter { endpoints, options, client: OnceCell::new(), claims: Mutex::default() })
    }

    fn claim(&self, name: &str) -> Result<Arc<Claim>, Refusal> {
        self.claims.lock().get(name).cloned().ok_or_else(|| invalid(format!("no claim has the name {name}")))
    }

    async fn acquire(&self, command: AcquireCommand) -> Result<Value, Refusal> {
        let (name, keys, options) = (command.name.clone(), command.keys.clone(), command.options()?);
        let claim = Arc::new(Claim::default());
        self.claims.lock().insert(name.clone(), Arc::clone(&claim));
        let granted = async {
            let connected = self.client.get_or_try_init(|| Client::connect(&self.endpoints, self.options.clone()));
            connected.await?.lock(keys, options).await
        };
        let guard = tokio::select! {
            granted = granted => granted.map_err(|error| refusal(&error))?,
            () = claim.cancel.notified() => return Err(("cancelled".to_owned(), "the wait was given up".to_owned())),
        };
        let (token, lost, at_us) = (guard.token(), guard.lost(), now_us());
        let _ = claim.token.set(token);
        *claim.guard.lock().await = Some(guard);
        tokio::spawn(async move {
            lost.await;
            say(&json!({"event": "lost", "name": name, "error": "lost", "at_us": now_us()}));
        });
        Ok(json!({"token": token, "at_us": at_us}))
    }

    async fn state(&self, name: &str) -> Result<Value, Refusal> {
        let claim = self.claim(name)?;
        let remaining = claim.guard.lock().await.as_ref().map_or(Duration::ZERO, Guard::remaining);
        Ok(json!({"valid": !remaining.is_zero(), "token": claim.token.get(), "remaining_ms": millis(remaining)}))
    }

    async fn release(&self, name: &str) -> Result<Value, Refusal> {
        let claim = self.claim(name)?;
        let guard = claim.guard.lock().await.take().ok_or_else(|| invalid(format!("{name} holds no lock")))?;
        guard.release().await.map_err(|error| refusal(&error))?;
        Ok(json!({"at_us": now_us()}))
    }

    async fn replace_value(&self, name: &str, value: String) -> Result<Value, Refusal> {
        let claim = self.claim(name)?;
        let mut guard = claim.guard.lock().await;
        let guard = guard.as_mut().ok_or_else(|| invalid(format!("{name} holds no lock")))?;
        guard.proclaim(value).await.map_err(|error| refusal(&error))?;
        Ok(json!({}))
    }

    /// Does a command; `None` if it is the last one.
    async fn execute(&self, command: Command) -> Option<Result<Value, Refusal>> {
        Some(match command {
            Command::Acquire(command) => self.acquire(*command).await,
            Command::State { name } => self.state(&name).await,
            Command::Release { name } => self.release(&name).await,
            Command::Cancel { name } => self.claim(&name).map(|claim| {
                claim.cancel.notify_one();
                json!({})
            }),
            Command::Value { name, value } => self.replace_value(&name, value).await,
            Command::Quit => return None,
        })
    }
}

/// Writes a line; standard output is flushed at its end.
fn say(line: &Value) {
    println!("{line}");
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The system's time, in microseconds since 1970: processes of one machine compare it.
#[expect(clippy::disallowed_methods, reason = "the moments of different clients are compared; nothing is timed by it")]
fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Does the commands of the input, each in a task of its own, until the input ends or says `quit`.
async fn serve(adapter: Arc<Adapter>) {
    let mut lines = BufReader::new(stdin()).lines();
    let quit = Arc::new(Notify::new());
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line,
            () = quit.notified() => return,
        };
        let Ok(Some(line)) = line else { return };
        let request: Request = match serde_json::from_str(&line) {
            Ok(request) => request,
            Err(error) => {
                eprintln!("not a command: {line}: {error}");
                return;
            }
        };
        let (adapter, quit) = (Arc::clone(&adapter), Arc::clone(&quit));
        tokio::spawn(async move {
            match adapter.execute(request.command).await {
                Some(Ok(ok)) => say(&with_time(json!({"id": request.id, "ok": ok}))),
                Some(Err((error, message))) => {
                    say(&json!({"id": request.id, "error": error, "message": message, "at_us": now_us()}));
                }
                None => quit.notify_one(),
            }
        });
    }
}

/// Moves the moment of an outcome to its place in the answer.
fn with_time(mut answer: Value) -> Value {
    if let Some(at_us) = answer["ok"].as_object_mut().and_then(|ok| ok.remove("at_us")) {
        answer["at_us"] = at_us;
    }
    answer
}

fn main() -> ExitCode {
    let adapter = match Adapter::new(std::env::args().skip(1)) {
        Ok(adapter) => Arc::new(adapter),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no threads for the adapter: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(serve(Arc::clone(&adapter)));
    // A guard or a wait that is dropped is released; here the process ends and leaves them to their time-to-live.
    std::mem::forget((runtime, adapter));
    ExitCode::SUCCESS
}
