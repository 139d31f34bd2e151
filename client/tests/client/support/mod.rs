//! A simulated cluster in one process: what a client can see of Palisade, with injected faults.
//!
//! `table` is the replicated state, shared by all nodes; a change of leader keeps it. This file has
//! the nodes: their sockets, the leader, the clients that wait for an answer, and the faults. It
//! records every request that arrives, so that a test can check what the client did.

mod table;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use palisade_client::codec::{decode, encode_into};
use palisade_client::wire::{
    self, Acquired, Answer, Code, DiskView, Failure, Keys, LeaderView, LockPage, Op, Outcome, Request, Response,
    SessionId, SessionLease, StatusView,
};
use palisade_client::{Client, Options};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};
use tokio_tungstenite::tungstenite::Message;

pub(crate) use self::table::{Found, Table};

/// The cluster's faults.
#[derive(Default)]
pub(crate) struct Faults {
    /// Every request is handled twice, and answered twice.
    pub(crate) repeat: bool,
    /// Every n-th answer is lost; 0: none.
    pub(crate) lose_every: u64,
    /// This many answers to granted acquires are lost.
    pub(crate) lose_grants: u32,
    /// This many answers to releases are lost.
    pub(crate) lose_releases: u32,
    /// Nodes execute every request, and hold the answers until [`Cluster::let_go`].
    pub(crate) hold: bool,
    /// The same for keep-alives alone.
    pub(crate) hold_keepalives: bool,
    /// Nodes neither read nor write, although their sockets are open.
    pub(crate) frozen: bool,
    /// Requests are not answered, but the WebSocket lives.
    pub(crate) mute: bool,
    /// Followers do not name the leader.
    pub(crate) nameless: bool,
    /// Nodes refuse the next acquires with these codes, before they execute them.
    pub(crate) refuse_acquires: Vec<Code>,
    /// Nodes open no session and grant no lock: the disk is full, or the client sends too many requests.
    pub(crate) refuse_all: Option<Code>,
    /// Nodes refuse the next releases and withdrawals with these codes, before they execute them.
    pub(crate) refuse_releases: Vec<Code>,
    /// Nodes refuse to list locks.
    pub(crate) refuse_lists: Option<Code>,
    /// Nodes are overloaded and refuse every keep-alive.
    pub(crate) refuse_keepalives: bool,
}

/// The state of the cluster.
pub(crate) struct State {
    pub(crate) leader: Option<usize>,
    pub(crate) table: Table,
    pub(crate) faults: Faults,
    /// Every operation that arrived, and at which node.
    pub(crate) seen: Vec<(usize, Op)>,
    pub(crate) connections: u64,
    /// Number of holders and waiters that lists have shown.
    pub(crate) listed: usize,
    /// The held answers.
    pub(crate) held: Vec<(u64, Response)>,
    /// Number of the table's changes that waiters have been told of.
    settled: u64,
    answers: u64,
    endpoints: Vec<String>,
    lines: HashMap<u64, Line>,
    waiting: Vec<Waiting>,
}

struct Line {
    node: usize,
    answers: mpsc::UnboundedSender<Option<Response>>,
    task: Option<AbortHandle>,
}

struct Waiting {
    line: u64,
    id: u64,
    key: String,
    session: SessionId,
    until: Option<Instant>,
}

/// The nodes.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) endpoints: Vec<String>,
    state: Arc<Mutex<State>>,
}

/// Options with short timeouts, so that tests are short.
pub(crate) fn options() -> Options {
    Options {
        request_timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(5),
        attempt_timeout: Duration::from_millis(150),
        dial_timeout: Duration::from_millis(300),
        ask_again: Duration::from_millis(200),
        probe_after: Duration::from_millis(300),
        ..Options::default()
    }
}

impl Cluster {
    /// Starts nodes; the first one leads.
    pub(crate) async fn start(nodes: usize) -> Cluster {
        let mut listeners = Vec::new();
        for _ in 0..nodes {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let endpoints: Vec<String> =
            listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
        let state = State {
            leader: Some(0),
            table: Table::default(),
            faults: Faults::default(),
            seen: Vec::new(),
            connections: 0,
            listed: 0,
            held: Vec::new(),
            settled: 0,
            answers: 0,
            endpoints: endpoints.clone(),
            lines: HashMap::new(),
            waiting: Vec::new(),
        };
        let cluster = Cluster { endpoints, state: Arc::new(Mutex::new(state)) };
        for (node, listener) in listeners.into_iter().enumerate() {
            tokio::spawn(cluster.clone().accept(node, listener));
        }
        tokio::spawn(cluster.clone().keep_time());
        cluster
    }

    /// A client with short timeouts.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.endpoints, options()).await.unwrap()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Makes another node the leader, or none: the old leader answers its waiters accordingly and
    /// disconnects them.
    pub(crate) fn elect(&self, leader: Option<usize>) {
        let mut state = self.state();
        let Some(old) = std::mem::replace(&mut state.leader, leader) else { return };
        let failure = Failure::new(Code::LeadershipLost, "the leader lost leadership");
        for Waiting { line, id, .. } in std::mem::take(&mut state.waiting) {
            state.answer(line, id, Err(failure.clone()));
        }
        state.lines.values().filter(|line| line.node == old).for_each(|line| {
            let _ = line.answers.send(None);
        });
    }

    /// Cuts every connection. The leader withdraws the waiters of each, as a real one does.
    pub(crate) fn cut(&self) {
        let mut state = self.state();
        let lines: Vec<u64> = state.lines.keys().copied().collect();
        for line in lines {
            if let Some(task) = state.lines.get(&line).and_then(|line| line.task.clone()) {
                task.abort();
            }
            state.hung_up(line);
        }
    }

    /// Sends the held answers.
    pub(crate) fn let_go(&self) {
        let mut state = self.state();
        (state.faults.hold, state.faults.hold_keepalives) = (false, false);
        for (line, response) in std::mem::take(&mut state.held) {
            if let Some(line) = state.lines.get(&line) {
                let _ = line.answers.send(Some(response));
            }
        }
    }

    /// The operations that have arrived so far and that `pick` selects.
    pub(crate) fn seen<T>(&self, pick: impl FnMut(&Op) -> Option<T>) -> Vec<T> {
        let mut pick = pick;
        self.state().seen.iter().filter_map(|(_, op)| pick(op)).collect()
    }

    /// Waits until `condition` holds.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let begun = Instant::now();
        while !condition(&self.state()) {
            assert!(begun.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn accept(self, node: usize, listener: TcpListener) {
        while let Ok((socket, _)) = listener.accept().await {
            socket.set_nodelay(true).unwrap();
            let line = {
                let mut state = self.state();
                state.connections += 1;
                state.connections
            };
            let (answers, outbox) = mpsc::unbounded_channel();
            self.state().lines.insert(line, Line { node, answers, task: None });
            let task = tokio::spawn(self.clone().serve(node, line, socket, outbox)).abort_handle();
            if let Some(line) = self.state().lines.get_mut(&line) {
                line.task = Some(task);
            }
        }
    }

    async fn serve(
        self,
        node: usize,
        line: u64,
        socket: TcpStream,
        mut outbox: mpsc::UnboundedReceiver<Option<Response>>,
    ) {
        self.thawed().await;
        let Ok(mut socket) = tokio_tungstenite::accept_async(socket).await else { return };
        // The form of the last request.
        let mut text = false;
        loop {
            tokio::select! {
                answer = outbox.recv() => {
                    let Some(Some(response)) = answer else { break };
                    if socket.send(encoded(&response, text)).await.is_err() {
                        break;
                    }
                }
                message = socket.next() => match message {
                    Some(Ok(Message::Binary(frame))) => {
                        let request: Request = decode(&frame).expect("the client speaks the protocol");
                        text = false;
                        self.state().receive(node, line, request);
                    }
                    Some(Ok(Message::Text(json))) => {
                        let request: Request = serde_json::from_str(&json).expect("the client speaks the protocol");
                        text = true;
                        self.state().receive(node, line, request);
                    }
                    Some(Ok(_)) => {}
                    _ => break,
                },
            }
            self.thawed().await;
        }
        // Answers given before the end are still sent.
        while let Ok(Some(response)) = outbox.try_recv() {
            let _ = socket.send(encoded(&response, text)).await;
        }
        let _ = socket.close(None).await;
        self.state().hung_up(line);
    }

    async fn thawed(&self) {
        while self.state().faults.frozen {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends waits and sessions that are due.
    async fn keep_time(self) {
        loop {
            sleep(Duration::from_millis(5)).await;
            let mut state = self.state();
            let now = Instant::now();
            let (over, on): (Vec<_>, _) =
                std::mem::take(&mut state.waiting).into_iter().partition(|w| w.until.is_some_and(|until| until <= now));
            state.waiting = on;
            for Waiting { line, id, key, session, .. } in over {
                if state.table.holds(&key, session) {
                    state.settle_one(line, id, &key, session);
                } else {
                    state.table.withdraw(&key, session);
                    state.answer(line, id, Err(Failure::new(Code::Timeout, "the wait ended without a grant")));
                }
            }
            state.settle();
        }
    }
}

impl State {
    fn receive(&mut self, node: usize, line: u64, request: Request) {
        self.seen.push((node, request.op.clone()));
        let stale = matches!(request.op, Op::Status);
        if self.leader != Some(node) && !stale {
            let mut failure = match self.leader {
                Some(_) => Failure::new(Code::NotLeader, "another node leads"),
                None => Failure::new(Code::NoLeader, "no leader is known"),
            };
            if !self.faults.nameless {
                failure.leader = self.leader.map(|leader| LeaderView {
                    id: u16::try_from(leader).unwrap(),
                    client_addr: Some(self.endpoints[leader].clone()),
                });
            }
            self.answer(line, request.id, Err(failure));
            if let Some(line) = self.lines.get(&line) {
                let _ = line.answers.send(None);
            }
            return;
        }
        if self.faults.repeat {
            self.handle(node, line, request.clone());
        }
        self.handle(node, line, request);
    }

    fn handle(&mut self, node: usize, line: u64, Request { id, op }: Request) {
        let now = Instant::now();
        self.table.expire(now);
        let refusals = match op {
            Op::Acquire { .. } => Some(&mut self.faults.refuse_acquires),
            Op::Release { .. } | Op::Withdraw { .. } => Some(&mut self.faults.refuse_releases),
            _ => None,
        };
        if let Some(code) = self.faults.refuse_all
            && matches!(op, Op::OpenSession(_) | Op::Acquire { .. })
        {
            return self.answer(line, id, Err(Failure::new(code, "refused for the moment")));
        }
        if let (Some(code), Op::ListLocks(_)) = (self.faults.refuse_lists, &op) {
            return self.answer(line, id, Err(Failure::new(code, "refused for the moment")));
        }
        let overloaded = self.faults.refuse_keepalives && matches!(op, Op::KeepAlive { .. });
        if let Some(code) = refusals.and_then(Vec::pop).or(overloaded.then_some(Code::Overloaded)) {
            return self.answer(line, id, Err(Failure::new(code, "refused by the test")));
        }
        let no_session = || Failure::new(Code::NoSession, "there is no such session");
        let result = match op {
            Op::OpenSession(open) => {
                let session = self.table.open(now, open.ttl_ms);
                Ok(Answer::Session(SessionLease { session, ttl_ms: open.ttl_ms }))
            }
            Op::KeepAlive { session } => match self.table.renew(now, session) {
                Some(ttl_ms) => Ok(Answer::Session(SessionLease { session, ttl_ms })),
                None => Err(no_session()),
            },
            Op::CloseSession { session } => {
                self.table.close(session);
                Ok(Answer::SessionClosed)
            }
            Op::Acquire { keys, options, number } => {
                let key = single(&keys);
                let session = options.session.expect("the client opens its sessions itself");
                let wait = options.wait_ms > 0;
                match self.table.acquire(now, &key, session, number.unwrap(), wait, options.reentrant) {
                    Found::Granted { token, ttl_ms } => {
                        Ok(Answer::Acquired(Acquired { keys, token, session, ttl_ms, signed: Vec::new() }))
                    }
                    Found::Queued => {
                        let until = now.checked_add(Duration::from_millis(options.wait_ms));
                        // A repetition replaces the request before it.
                        self.waiting.retain(|w| (w.line, w.session, &w.key) != (line, session, &key));
                        return self.waiting.push(Waiting { line, id, key, session, until });
                    }
                    Found::Refused(failure) => Err(failure),
                }
            }
            Op::Release { keys, grant, number } => {
                let (key, wire::Release { session, token }) = (single(&keys), grant);
                let left = match self.table.begin(session, number.unwrap()) {
                    None => Err(no_session()),
                    Some(false) => Ok(self.table.holds_of(&key, session, token).unwrap_or(0)),
                    Some(true) => self
                        .table
                        .release(now, &key, session, token)
                        .ok_or_else(|| Failure::new(Code::NotHolder, "the session does not hold the lock")),
                };
                left.map(|holds| if holds == 0 { Answer::Released } else { Answer::StillHeld { holds } })
            }
            Op::Withdraw { keys, session, number } => match self.table.begin(session, number.unwrap()) {
                None => Err(no_session()),
                Some(false) => Ok(Answer::Withdrawn),
                Some(true) => {
                    self.table.withdraw_or_release(now, &single(&keys), session);
                    Ok(Answer::Withdrawn)
                }
            },
            Op::ShowLock { key, .. } => Ok(Answer::Lock(self.table.show(&key))),
            Op::ListLocks(query) => {
                let locks = self.table.list(&query.prefix);
                self.listed += locks.iter().map(|lock| 1 + lock.queue.len()).sum::<usize>();
                Ok(Answer::Locks(LockPage { locks, next_after: None }))
            }
            Op::Status => Ok(Answer::Status(self.status(node).into())),
            Op::ShowSession { .. }
            | Op::ChangeMembers(_)
            | Op::Transfer(_)
            | Op::Break { .. }
            | Op::ShowAccess
            | Op::SetAccess(_)
            | Op::TestAccess(_)
            | Op::Watch(_)
            | Op::Unwatch { .. }
            | Op::Proclaim { .. }
            | Op::ShowRecord { .. }
            | Op::ListRecords(_)
            | Op::Transact { .. } => Err(Failure::new(Code::Invalid, "these tests never ask for this")),
        };
        self.answer(line, id, result);
        self.settle();
    }

    /// Answers the waiters whose claims have changed, if the table has changed.
    fn settle(&mut self) {
        if std::mem::replace(&mut self.settled, self.table.changes) == self.table.changes {
            return;
        }
        for Waiting { line, id, key, session, until } in std::mem::take(&mut self.waiting) {
            if self.table.holds(&key, session) {
                self.settle_one(line, id, &key, session);
            } else if !self.table.lives(session) {
                self.answer(line, id, Err(Failure::new(Code::NoSession, "there is no such session")));
            } else if !self.table.queues(&key, session) {
                self.answer(line, id, Err(Failure::new(Code::Withdrawn, "the claim was dropped")));
            } else {
                self.waiting.push(Waiting { line, id, key, session, until });
            }
        }
    }

    fn settle_one(&mut self, line: u64, id: u64, key: &str, session: SessionId) {
        let (token, ttl_ms) = self.table.grant_of(key);
        self.answer(
            line,
            id,
            Ok(Answer::Acquired(Acquired { keys: key.into(), token, session, ttl_ms, signed: Vec::new() })),
        );
    }

    fn answer(&mut self, line: u64, id: u64, result: Result<Answer, Failure>) {
        let result = match result {
            Ok(answer) => Outcome::Ok(answer),
            Err(failure) => Outcome::Error(failure),
        };
        self.answers += 1;
        let Faults { lose_every, lose_grants, lose_releases, mute, hold, hold_keepalives, .. } = &mut self.faults;
        if *mute || *lose_every > 0 && self.answers.is_multiple_of(*lose_every) {
            return;
        }
        if *lose_grants > 0 && matches!(result, Outcome::Ok(Answer::Acquired(_))) {
            *lose_grants -= 1;
            return;
        }
        if *lose_releases > 0 && matches!(result, Outcome::Ok(Answer::Released)) {
            *lose_releases -= 1;
            return;
        }
        if *hold || *hold_keepalives && matches!(result, Outcome::Ok(Answer::Session(_))) {
            return self.held.push((line, Response { id, result }));
        }
        if let Some(line) = self.lines.get(&line) {
            let _ = line.answers.send(Some(Response { id, result }));
        }
    }

    fn hung_up(&mut self, line: u64) {
        let Some(Line { node, .. }) = self.lines.remove(&line) else { return };
        let (gone, on): (Vec<_>, _) = std::mem::take(&mut self.waiting).into_iter().partition(|w| w.line == line);
        self.waiting = on;
        if self.leader == Some(node) {
            for Waiting { key, session, .. } in gone {
                self.table.withdraw(&key, session);
            }
        }
    }

    fn status(&self, node: usize) -> StatusView {
        StatusView {
            cluster: String::new(),
            node: u16::try_from(node).unwrap(),
            generation: 0,
            role: if self.leader == Some(node) { "leader".into() } else { "follower".into() },
            term: 1,
            leader: None,
            commit: 0,
            applied: 0,
            cluster_time_ms: 0,
            sessions: 0,
            locks: 0,
            members: Vec::new(),
            snapshot: None,
            disk: DiskView::default(),
            cluster_name: String::new(),
            waiting_for: Vec::new(),
            version: String::new(),
        }
    }
}

/// The key of a claim: these tests ask for one at a time.
fn single(keys: &Keys) -> String {
    keys.single().expect("one key").to_owned()
}

/// A response in the form of its request.
fn encoded(response: &Response, text: bool) -> Message {
    if text {
        return Message::Text(serde_json::to_string(response).expect("every response has a JSON form").into());
    }
    let mut frame = Vec::new();
    encode_into(response, &mut frame);
    Message::Binary(frame.into())
}
