//! The engine without a network and with a clock of its own.

use futures_util::FutureExt;

use super::*;
use crate::clock::fake;
use crate::wire::{self, Acquired, Condition, Failure, RecordChange, Request, SessionLease, UNASKED};

mod calls;
mod holds;
mod suspends;
mod waits;
mod writes;

const TTL: Duration = Duration::from_secs(30);

fn session(number: u64) -> SessionId {
    SessionId::new(number, [7; 10]).expect("it is small")
}

/// An engine with a connection, one guard that it has handed out, and what the server is asked.
struct Fixture {
    engine: Engine,
    commands: mpsc::UnboundedSender<Command>,
    inbox: mpsc::UnboundedReceiver<Command>,
    guard: Guard,
}

impl Fixture {
    fn with_guard(ttl: Duration) -> Fixture {
        let mut engine = Engine::new(Options::default(), fake::clock);
        let (commands, inbox) = mpsc::unbounded_channel();
        let (reply, mut answer) = oneshot::channel();
        let (spec, owner) = (LockSpec::exclusive("key"), String::new());
        let request = LockRequest { claim: 1, spec, ttl, wait: Wait::No, owner, reply, commands: commands.clone() };
        engine.connected(fake::clock(), "node");
        engine.command(fake::clock(), Command::Lock(request));
        let (session, ttl_ms) = (session(7), millis(ttl));
        answer_all(&mut engine, |op| match op {
            Op::OpenSession(_) => Some(Answer::Session(SessionLease { session, ttl_ms })),
            _ => None,
        });
        answer_all(&mut engine, |op| match op {
            Op::Acquire { keys, .. } => {
                Some(Answer::Acquired(Acquired { keys, token: 1, session, ttl_ms, signed: Vec::new() }))
            }
            _ => None,
        });
        let guard = answer.try_recv().expect("it was answered").expect("it is granted");
        assert!(guard.is_valid());
        Fixture { engine, commands, inbox, guard }
    }

    /// What the engine does when its loop runs again, and the keep-alives that it sends then.
    fn advance(&mut self) -> Vec<u64> {
        self.engine.advance(fake::clock());
        let requests = requests(&mut self.engine).into_iter();
        requests.filter(|request| matches!(request.op, Op::KeepAlive { .. })).map(|request| request.id).collect()
    }

    fn proclaim(&mut self, value: &str) -> oneshot::Receiver<Result<Answer, Error>> {
        self.write(Write::Value(value.into()))
    }

    fn write(&mut self, what: Write) -> oneshot::Receiver<Result<Answer, Error>> {
        let (reply, answer) = oneshot::channel();
        self.engine.command(fake::clock(), Command::Write { claim: 1, what, reply });
        answer
    }

    /// Asks for one more hold, as [`Guard::hold_again`] does.
    fn hold_again(&mut self) -> oneshot::Receiver<Result<Guard, Error>> {
        drop(self.guard.hold_again().now_or_never());
        let Ok(Command::Hold { guard, .. }) = self.inbox.try_recv() else { panic!("it asks for a hold") };
        let (reply, answer) = oneshot::channel();
        self.engine.command(fake::clock(), Command::Hold { guard, reply });
        answer
    }

    /// A guard that has one more hold.
    fn another_guard(&mut self) -> Guard {
        let mut answer = self.hold_again();
        let asked = self.asked();
        receive(&mut self.engine, asked.id, Outcome::Ok(acquired(1)));
        answer.try_recv().expect("it was answered").expect("it is granted")
    }

    /// Passes on what guards have said that were dropped.
    fn drops(&mut self) {
        while let Ok(command) = self.inbox.try_recv() {
            self.engine.command(fake::clock(), command);
        }
    }

    /// The only request that is sent, apart from keep-alives and questions about the cluster.
    fn asked(&mut self) -> Request {
        self.engine.advance(fake::clock());
        let mut asked = requests(&mut self.engine);
        asked.retain(|request| !matches!(request.op, Op::KeepAlive { .. } | Op::Status));
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked.pop().expect("there is one")
    }

    /// Asks for another lock, in a session of its own.
    fn lock(&mut self, key: &str, wait: Wait) -> oneshot::Receiver<Result<Guard, Error>> {
        let (reply, answer) = oneshot::channel();
        let (spec, owner, commands) = (LockSpec::exclusive(key), "another".to_owned(), self.commands.clone());
        let request = LockRequest { claim: 2, spec, ttl: TTL, wait, owner, reply, commands };
        self.engine.command(fake::clock(), Command::Lock(request));
        answer
    }

    /// Asks for something that concerns no claim.
    fn call(&mut self, op: &Op) -> oneshot::Receiver<Result<Answer, Error>> {
        let (reply, answer) = oneshot::channel();
        let call = Command::Call { op: op.clone(), within: Options::default().request_timeout, reply };
        self.engine.command(fake::clock(), call);
        answer
    }

    /// The requests with this operation that are sent now.
    fn sent(&mut self, op: &Op) -> Vec<u64> {
        self.engine.advance(fake::clock());
        let sent = requests(&mut self.engine).into_iter().filter(|request| request.op == *op);
        sent.map(|request| request.id).collect()
    }

    fn keep_alive(&mut self, id: u64) {
        let session = self.guard.session();
        let lease = SessionLease { session, ttl_ms: millis(TTL) };
        receive(&mut self.engine, id, Outcome::Ok(Answer::Session(lease)));
    }
}

fn acquired(token: u64) -> Answer {
    let (keys, session) = ("key".into(), session(7));
    Answer::Acquired(Acquired { keys, token, session, ttl_ms: millis(TTL), signed: Vec::new() })
}

fn requests(engine: &mut Engine) -> Vec<Request> {
    let frames = engine.outbox().drain(..).filter_map(|outgoing| match outgoing {
        Outgoing::Frame(frame) => Some(frame),
        Outgoing::Text(_) | Outgoing::Ping => None,
    });
    frames.map(|frame| codec::decode(&frame).expect("a request")).collect()
}

fn receive(engine: &mut Engine, id: u64, result: Outcome) {
    let mut frame = Vec::new();
    codec::encode_into(&Response { id, result }, &mut frame);
    engine.received(fake::clock(), &Incoming::Frame(frame.into()));
}

fn answer_all(engine: &mut Engine, answer: impl Fn(Op) -> Option<Answer>) {
    for Request { id, op } in requests(engine) {
        let answer = answer(op).expect("an answer");
        receive(engine, id, Outcome::Ok(answer));
    }
}

impl LockSpec {
    fn exclusive(key: &str) -> LockSpec {
        LockSpec { keys: key.into(), share: Share::default(), max_queue: None, value: None }
    }
}
