//! The adapter of this client for the scenarios that every client must pass (docs/clients.md): it reads a command a line
//! from its input, does it with the client's public interface, and writes an answer or an event a line. Its end releases
//! nothing, so a test can let a client end without a farewell.
//!
//! `adapter --endpoints HOST:PORT,HOST:PORT [--ca FILE [--cert FILE --cert-key FILE | --token-file FILE]]`

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade_client::wire::{
    Code, Condition, Consistency, Content, EventId, Failure, Keys, ListLocks, RecordChange, Transaction, Watch, Watched,
};
use palisade_client::{Client, Error, Guard, LockOptions, Options, Security, Watcher, parse_endpoints};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::sync::{Notify, OnceCell};
use tokio::task::JoinHandle;

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
    Put(WriteCommand),
    Append(WriteCommand),
    Delete(WriteCommand),
    Transact { conditions: Vec<Condition>, changes: Vec<RecordChange> },
    Get { key: String },
    Show { key: String },
    List { prefix: String, limit: u64 },
    Watch(WatchCommand),
    Unwatch { name: String },
    Quit,
}

/// The record to change, and on what conditions: `under` is the name of a claim.
#[derive(Deserialize)]
struct WriteCommand {
    key: String,
    #[serde(default)]
    value: String,
    under: Option<String>,
    if_version: Option<u64>,
}

/// What to watch. `name` is what its events and `unwatch` call it.
#[derive(Deserialize)]
struct WatchCommand {
    name: String,
    key: Option<String>,
    prefix: Option<String>,
    after: Option<EventId>,
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

/// Why a command failed: a code, a sentence, and what else the server says.
type Refusal = Value;

fn refused(code: &str, message: impl Into<String>) -> Refusal {
    json!({"error": code, "message": message.into()})
}

fn invalid(message: String) -> Refusal {
    refused("invalid", message)
}

fn refusal(error: &Error) -> Refusal {
    let code = match error {
        Error::Held { .. } => "held",
        Error::TimedOut { .. } => "timeout",
        Error::Unreachable { .. } => "unreachable",
        Error::Lost => "lost",
        Error::Unauthenticated { .. } => "unauthenticated",
        Error::Refused(failure) => return json!(failure),
        _ => "invalid",
    };
    refused(code, error.to_string())
}

/// The same of a write that may have reached a node.
fn refusal_of_write(error: &Error) -> Refusal {
    match error {
        Error::UnknownOutcome { .. } | Error::Refused(Failure { error: Code::Gone, .. }) => {
            refused("unknown", error.to_string())
        }
        _ => refusal(error),
    }
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
    watches: Mutex<HashMap<String, JoinHandle<()>>>,
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
        Ok(Adapter { endpoints, options, client: OnceCell::new(), claims: Mutex::default(), watches: Mutex::default() })
    }

    async fn client(&self) -> Result<&Client, Error> {
        self.client.get_or_try_init(|| Client::connect(&self.endpoints, self.options.clone())).await
    }

    fn claim(&self, name: &str) -> Result<Arc<Claim>, Refusal> {
        self.claims.lock().get(name).cloned().ok_or_else(|| invalid(format!("no claim has the name {name}")))
    }

    async fn acquire(&self, command: AcquireCommand) -> Result<Value, Refusal> {
        let (name, keys, options) = (command.name.clone(), command.keys.clone(), command.options()?);
        let claim = Arc::new(Claim::default());
        self.claims.lock().insert(name.clone(), Arc::clone(&claim));
        let granted = async { self.client().await?.lock(keys, options).await };
        let guard = tokio::select! {
            granted = granted => granted.map_err(|error| refusal(&error))?,
            () = claim.cancel.notified() => return Err(refused("cancelled", "the wait was given up")),
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

    async fn write(
        &self,
        command: WriteCommand,
        change: fn(String, Content) -> RecordChange,
    ) -> Result<Value, Refusal> {
        let WriteCommand { key, value, under, if_version } = command;
        let conditions = if_version.map(|version| Condition::Version { key: key.clone(), version });
        let changes = vec![change(key, value.as_str().into())];
        let transaction = Transaction { session: None, conditions: conditions.into_iter().collect(), changes };
        let Some(name) = under else { return self.transact(transaction).await };
        let claim = self.claim(&name)?;
        let mut guard = claim.guard.lock().await;
        let guard = guard.as_mut().ok_or_else(|| invalid(format!("{name} holds no lock")))?;
        written(guard.transact(transaction).await)
    }

    async fn transact(&self, transaction: Transaction) -> Result<Value, Refusal> {
        let client = self.client().await.map_err(|error| refusal(&error))?;
        written(client.transact(transaction).await)
    }

    async fn get(&self, key: String) -> Result<Value, Error> {
        match self.client().await?.record(key, Consistency::default()).await? {
            Some(record) => Ok(json!(record)),
            None => Err(Failure::new(Code::NoRecord, "there is no such record").into()),
        }
    }

    async fn show(&self, key: String) -> Result<Value, Error> {
        Ok(json!(self.client().await?.show_lock(key, Consistency::default()).await?))
    }

    async fn list(&self, prefix: String, limit: u64) -> Result<Value, Error> {
        let mut query = ListLocks { prefix, limit: Some(limit), ..ListLocks::default() };
        let mut locks = Vec::new();
        loop {
            let page = self.client().await?.list_locks(query.clone()).await?;
            locks.extend(page.locks);
            query.after = page.next_after;
            if query.after.is_none() {
                return Ok(json!({"locks": locks}));
            }
        }
    }

    async fn watch(&self, command: WatchCommand) -> Result<Value, Error> {
        let WatchCommand { name, key, prefix, after } = command;
        let watcher = self.client().await?.watch(Watch { key, prefix, after });
        self.watches.lock().insert(name.clone(), tokio::spawn(tell(name, watcher)));
        Ok(json!({}))
    }

    async fn unwatch(&self, name: &str) -> Result<Value, Refusal> {
        let watch = self.watches.lock().remove(name);
        let watch = watch.ok_or_else(|| invalid(format!("no watch has the name {name}")))?;
        watch.abort();
        let _ = watch.await;
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
            Command::Put(command) => self.write(command, |key, value| RecordChange::Put { key, value }).await,
            Command::Append(command) => self.write(command, |key, value| RecordChange::Append { key, value }).await,
            Command::Delete(command) => self.write(command, |key, _| RecordChange::Delete { key }).await,
            Command::Transact { conditions, changes } => {
                self.transact(Transaction { session: None, conditions, changes }).await
            }
            Command::Get { key } => self.get(key).await.map_err(|error| refusal(&error)),
            Command::Show { key } => self.show(key).await.map_err(|error| refusal(&error)),
            Command::List { prefix, limit } => self.list(prefix, limit).await.map_err(|error| refusal(&error)),
            Command::Watch(command) => self.watch(command).await.map_err(|error| refusal(&error)),
            Command::Unwatch { name } => self.unwatch(&name).await,
            Command::Quit => return None,
        })
    }
}

fn written(result: Result<u64, Error>) -> Result<Value, Refusal> {
    result.map(|version| json!({"version": version})).map_err(|error| refusal_of_write(&error))
}

/// Writes what a watch tells, until it fails.
async fn tell(name: String, mut watcher: Watcher) {
    loop {
        let (event, mut line) = match watcher.next().await {
            Ok(Watched::Listing(listing)) => {
                let locks: Vec<_> = listing.locks.iter().map(|lock| &lock.key).collect();
                let records: Vec<_> = listing.records.iter().map(|record| &record.key).collect();
                let (revision, complete) = (listing.revision, listing.complete);
                let keys = json!({"revision": revision, "complete": complete, "locks": locks, "records": records});
                ("listed", keys)
            }
            Ok(Watched::Event(event)) => {
                let mut changed = json!(event);
                changed["change"] = changed["event"].take();
                ("changed", changed)
            }
            Ok(Watched::Compacted { floor }) => ("compacted", json!({"floor": floor})),
            Err(error) => ("unwatched", refusal(&error)),
        };
        line["event"] = event.into();
        line["name"] = name.as_str().into();
        say(&line);
        if event == "unwatched" {
            return;
        }
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
                Some(Err(mut refusal)) => {
                    refusal["id"] = request.id.into();
                    refusal["at_us"] = now_us().into();
                    say(&refusal);
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
