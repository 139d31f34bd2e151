//! The client without its sockets: a state machine whose inputs are commands, answers and the time.
//!
//! It owns everything that must outlive a caller: claims (one per lock that is asked for or held, see `claim`), idle
//! sessions (`pool`), reads (`call`), and what is open on the connection (`link`). Each task (a claim or a call) is
//! driven after everything that may concern it: it sends what is due, and says when it wants to be driven again at the
//! latest. The loop in `crate::task` executes what the engine wants: frames in the outbox, a connection or none.

mod call;
mod claim;
mod exchange;
mod link;
mod pool;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use self::call::{AnswerSender, Call};
use self::claim::{Claim, GuardRequest, Leftover, Next};
use self::link::{Link, Part};
use self::pool::{Kind, Pool};
use crate::clock::{BootInstant, Clock};
use crate::connection::{Incoming, Outgoing};
use crate::options::Share;
use crate::wire::{Answer, Broken, Code, Keys, LeaderView, MemberView, Op, Outcome, Response, SessionId, Transaction};
use crate::{Error, Guard, Options, Wait, codec, endpoints};

/// What a holder writes under its grant.
#[derive(Debug)]
pub(crate) enum Write {
    /// Another value of the grant.
    Value(String),
    /// Changes of records, which are made only if the lock is held.
    Records(Transaction),
}

/// A command from a handle to the background task.
pub(crate) enum Command {
    /// Take a lock.
    Lock(LockRequest),
    /// The caller dropped its lock request before the answer.
    Abandon {
        /// The lock request.
        claim: u64,
    },
    /// A guard ends.
    Release {
        /// The lock request that it came from.
        claim: u64,
        /// Where the outcome goes, if the caller waits for it; dropped if the lock is lost.
        reply: Option<oneshot::Sender<Result<(), Error>>>,
    },
    /// A holder wants one more hold.
    Hold {
        /// The guard of that hold, which has none yet.
        guard: Guard,
        /// Where the guard goes; dropped if the lock is lost.
        reply: oneshot::Sender<Result<Guard, Error>>,
    },
    /// A holder writes something under its grant.
    Write {
        /// The lock request that the guard came from.
        claim: u64,
        /// What it writes.
        what: Write,
        /// Where the answer goes; dropped if the lock is lost.
        reply: AnswerSender,
    },
    /// Send a request that belongs to no session.
    Call {
        /// The request.
        op: Op,
        /// How long it may take.
        within: Duration,
        /// Where the answer goes.
        reply: AnswerSender,
    },
    /// Report the public numbers of the sessions that wait for a lock.
    WaitingSessions {
        /// The lock.
        key: String,
        /// Where the report goes.
        reply: oneshot::Sender<Vec<u64>>,
    },
    /// Give back all claims and end.
    Close {
        /// Completed when the background has given back all claims and holds that no guard has.
        reply: oneshot::Sender<()>,
    },
}

/// A call of [`crate::Client::lock`].
pub(crate) struct LockRequest {
    pub(crate) claim: u64,
    pub(crate) spec: LockSpec,
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) owner: String,
    pub(crate) reply: oneshot::Sender<Result<Guard, Error>>,
    /// For the guard, to release itself with.
    pub(crate) commands: mpsc::UnboundedSender<Command>,
}

/// No claim has so many bytes of keys, owner and value: a node accepts 2 KiB, 256 bytes and 4 KiB. Up to here, the node
/// itself says which of them is too long.
pub(crate) const LONGEST_CLAIM: usize = 32 * 1024;

/// What an acquire asks for, apart from its session.
#[derive(Debug)]
pub(crate) struct LockSpec {
    pub(crate) keys: Keys,
    pub(crate) share: Share,
    /// It does not wait where so many sessions wait already.
    pub(crate) max_queue: Option<u32>,
    pub(crate) value: Option<String>,
}

/// What an incoming frame says about the connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing new.
    Stay,
    /// This is the leader.
    Leader,
    /// The cluster has these members, as far as this node knows where they serve clients.
    Members(Vec<String>),
    /// This is not the leader, or not for long.
    Leave {
        /// The leader that the node named.
        leader: Option<String>,
        /// The reason for a caller whose time runs out.
        why: String,
    },
}

/// What is driven: a claim or a call, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Task {
    Claim(u64),
    Call(u64),
}

/// What tasks may look at while they are driven.
struct Surroundings {
    options: Options,
    /// What guards look at. The engine itself is told the time.
    clock: Clock,
    /// What went wrong last with the connection, as a sentence.
    trouble: String,
}

impl Surroundings {
    fn unreachable(&self, after: Duration) -> Error {
        Error::Unreachable { after, trouble: self.trouble.clone() }
    }
}

/// The state machine.
pub(crate) struct Engine {
    around: Surroundings,
    link: Link,
    claims: HashMap<u64, Claim>,
    calls: HashMap<u64, Call>,
    next_call: u64,
    pool: Pool,
    timers: BTreeSet<(BootInstant, Task)>,
    closing: bool,
    closers: Vec<oneshot::Sender<()>>,
}

impl Engine {
    pub(crate) fn new(options: Options, clock: Clock) -> Engine {
        let now = clock();
        Engine {
            around: Surroundings { options, clock, trouble: "no node has answered yet".to_owned() },
            link: Link::new(now),
            claims: HashMap::new(),
            calls: HashMap::new(),
            next_call: 0,
            pool: Pool::new(now),
            timers: BTreeSet::new(),
            closing: false,
            closers: Vec::new(),
        }
    }

    // What the loop reads.

    pub(crate) fn options(&self) -> &Options {
        &self.around.options
    }

    /// Reads the clock that all moments here are of.
    pub(crate) fn clock(&self) -> BootInstant {
        (self.around.clock)()
    }

    /// Whether anything needs a connection now.
    pub(crate) fn wants_connection(&self) -> bool {
        !self.calls.is_empty() || self.claims.values().any(Claim::wants_connection)
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.claims.is_empty()
    }

    /// When to call [`Engine::advance`] at the latest.
    pub(crate) fn next_wake(&self) -> Option<BootInstant> {
        let link = [self.link.probe_at(&self.around.options), self.link.members_at()];
        let link = link.into_iter().flatten().filter(|_| !self.is_idle());
        let timer = self.timers.first().map(|&(at, _)| at);
        link.chain(timer).min()
    }

    /// Why the connection should be given up, if it should.
    pub(crate) fn doubt(&self) -> Option<&'static str> {
        self.link.doubted()
    }

    /// The frames to send.
    pub(crate) fn outbox(&mut self) -> &mut VecDeque<Outgoing> {
        self.link.outbox()
    }

    // What the loop tells.

    /// Time has passed: drives whatever is due.
    pub(crate) fn advance(&mut self, now: BootInstant) {
        while let Some(&(at, task)) = self.timers.first() {
            if at > now {
                break;
            }
            self.drive(now, task);
            // A task that did not move its timer is driven again by the next event.
            self.timers.remove(&(at, task));
        }
        if !self.is_idle() {
            self.link.probe(now, &self.around.options);
            self.link.ask_for_members(now);
        }
        self.let_in(now);
        self.answer_closers();
    }

    /// There is a connection: everything that is unanswered is sent on it, what concerns guards first, for their time
    /// runs. The operations of one session stay in order, for a session has at most one under way.
    pub(crate) fn connected(&mut self, now: BootInstant, endpoint: &str) {
        self.link.connected(now);
        self.around.trouble = format!("{endpoint} accepted a connection, but has not answered this request");
        let claims = self.claims.keys().map(|&id| Task::Claim(id));
        let mut tasks: Vec<Task> = claims.chain(self.calls.keys().map(|&id| Task::Call(id))).collect();
        let guarded = |task: &Task| matches!(task, Task::Claim(id) if self.claims[id].is_guarded());
        tasks.sort_unstable_by_key(|task| (!guarded(task), *task));
        tasks.into_iter().for_each(|task| self.drive(now, task));
    }

    /// The connection is gone, or none came to be.
    pub(crate) fn disconnected(&mut self, why: String) {
        self.link.disconnected();
        self.around.trouble = why;
        self.claims.values_mut().for_each(Claim::disconnected);
        self.calls.values_mut().for_each(Call::disconnected);
    }

    /// Something came in.
    pub(crate) fn received(&mut self, now: BootInstant, incoming: &Incoming) -> Verdict {
        self.link.heard(now);
        let Incoming::Frame(frame) = incoming else { return Verdict::Stay };
        let Response { id, result } = match codec::decode(frame) {
            Ok(response) => response,
            Err(error) => {
                return Verdict::Leave { leader: None, why: format!("an answer was not understood: {error}") };
            }
        };
        if self.link.is_about_members(id) {
            return match result {
                Outcome::Ok(Answer::Status(status)) => Verdict::Members(addresses(status.members)),
                _ => Verdict::Stay,
            };
        }
        if let Outcome::Ok(Answer::Lost(broken)) = result {
            self.broken(now, &broken);
            return Verdict::Stay;
        }
        let flight = self.link.land(now, id);
        if let Outcome::Error(failure) = &result
            && let Code::NotLeader | Code::NoLeader | Code::LeadershipLost | Code::ShuttingDown = failure.error
        {
            // The other two may be said of what is done later.
            if let Code::NotLeader | Code::NoLeader = failure.error
                && let Some(Task::Call(id)) = flight.as_ref().map(|flight| flight.task)
                && let Some(call) = self.calls.get_mut(&id)
            {
                call.turned_away(&mut self.link);
            }
            let leader = failure.leader.clone().and_then(|LeaderView { client_addr, .. }| client_addr);
            let leader = leader.filter(|leader| endpoints::check(leader).is_ok());
            return Verdict::Leave { leader, why: failure.message.clone() };
        }
        let Some(flight) = flight else { return Verdict::Stay };
        match flight.task {
            Task::Claim(id) => {
                if let Some(claim) = self.claims.get_mut(&id) {
                    match flight.part {
                        Part::Step => claim.answered(now, flight.sent, result, &mut self.link, &self.around),
                        Part::KeepAlive => claim.kept_alive(now, flight.sent, result, &mut self.link),
                    }
                }
            }
            Task::Call(id) => {
                if let Some(call) = self.calls.get_mut(&id) {
                    call.answered(result, &mut self.link);
                    forget_timer(&mut self.timers, flight.task, &mut call.wake);
                    self.calls.remove(&id);
                }
            }
        }
        self.drive(now, flight.task);
        self.let_in(now);
        Verdict::Leader
    }

    /// An operator has broken a grant, which may be one of this client's.
    fn broken(&mut self, now: BootInstant, broken: &Broken) {
        let claims = self.claims.iter_mut().filter(|(_, claim)| claim.has(broken));
        let lost: Vec<u64> = claims.map(|(&id, claim)| (id, claim.lose(now, &mut self.link)).0).collect();
        lost.into_iter().for_each(|id| self.drive(now, Task::Claim(id)));
    }

    /// A handle wants something.
    pub(crate) fn command(&mut self, now: BootInstant, command: Command) {
        match command {
            Command::Lock(request) if self.closing => {
                let _ = request.reply.send(Err(Error::Closed));
            }
            Command::Lock(request) => {
                let kind = Kind { ttl_ms: millis(request.ttl), owner: request.owner };
                let session = self.pool.take(now, &kind);
                let id = request.claim;
                let acquirer = claim::Acquirer { reply: request.reply, commands: request.commands };
                let claim = Claim::new(now, id, request.spec, kind, request.wait, acquirer, session, &self.around);
                self.claims.insert(id, claim);
                self.drive(now, Task::Claim(id));
            }
            Command::Abandon { claim: id } => {
                if let Some(claim) = self.claims.get_mut(&id) {
                    claim.abandon(now, &mut self.link, &self.around);
                    self.drive(now, Task::Claim(id));
                }
            }
            Command::Release { claim: id, reply } => match self.claims.get_mut(&id) {
                Some(claim) => {
                    claim.release(now, reply, &mut self.link, &self.around);
                    self.drive(now, Task::Claim(id));
                }
                None => {
                    let _ = reply.map(|reply| reply.send(Err(Error::Lost)));
                }
            },
            Command::Hold { reply, .. } if self.closing => {
                let _ = reply.send(Err(Error::Closed));
            }
            Command::Hold { guard, reply } => {
                let id = guard.claim;
                self.guard_request(now, id, GuardRequest::Hold { guard, reply: Some(reply) });
            }
            Command::Write { claim: id, what, reply } => {
                self.guard_request(now, id, GuardRequest::Write { what, reply: Some(reply) });
            }
            Command::Call { reply, .. } if self.closing => {
                let _ = reply.send(Err(Error::Closed));
            }
            Command::Call { op, within, reply } => self.call(now, op, Some(reply), now + within),
            Command::WaitingSessions { key, reply } => {
                let sessions = self.claims.values().filter_map(|claim| claim.session_waiting_for(&key)).collect();
                let _ = reply.send(sessions);
            }
            Command::Close { reply } => {
                self.closers.push(reply);
                self.close(now);
            }
        }
        self.let_in(now);
        self.answer_closers();
    }

    /// Passes a guard's request to its claim. If the claim is gone, so is the lock, and dropping the reply says so.
    fn guard_request(&mut self, now: BootInstant, id: u64, request: GuardRequest) {
        if let Some(claim) = self.claims.get_mut(&id) {
            claim.enqueue(now, request, &mut self.link, &self.around);
            self.drive(now, Task::Claim(id));
        }
    }

    /// No handle is left, or the client is closed: nothing new begins, callers that wait get an error, and idle
    /// sessions end.
    pub(crate) fn close(&mut self, now: BootInstant) {
        self.closing = true;
        self.fail_calls(now, &Error::Closed);
        let tasks: Vec<u64> = self.claims.keys().copied().collect();
        for id in tasks {
            if let Some(claim) = self.claims.get_mut(&id) {
                claim.close(now, &mut self.link, &self.around);
                self.drive(now, Task::Claim(id));
            }
        }
        for session in self.pool.drain() {
            self.close_session(now, session);
        }
        self.answer_closers();
    }

    /// Every node refuses this client, or is refused by it: requests outside claims fail at once. Claims go on until
    /// their time is over: a guard's certificate or token may be replaced just now.
    pub(crate) fn refused(&mut self, now: BootInstant, trouble: String) {
        self.fail_calls(now, &Error::Unauthenticated { trouble });
    }

    fn fail_calls(&mut self, now: BootInstant, error: &Error) {
        let calls: Vec<u64> = self.calls.iter().filter(|(_, call)| call.reply.is_some()).map(|(&id, _)| id).collect();
        for id in calls {
            if let Some(call) = self.calls.get_mut(&id) {
                call.fail(now, error.clone());
                self.drive(now, Task::Call(id));
            }
        }
    }

    fn call(&mut self, now: BootInstant, op: Op, reply: Option<AnswerSender>, fail_at: BootInstant) {
        let id = self.next_call;
        self.next_call += 1;
        self.calls.insert(id, Call::new(op, reply, now, fail_at));
        self.drive(now, Task::Call(id));
    }

    /// Ends a session, for tidiness: without a connection it is left to expire.
    fn close_session(&mut self, now: BootInstant, session: SessionId) {
        if self.link.is_up() {
            self.call(now, Op::CloseSession { session }, None, now + self.around.options.attempt_timeout);
        }
    }

    fn drive(&mut self, now: BootInstant, task: Task) {
        match task {
            Task::Claim(id) => {
                let Some(claim) = self.claims.get_mut(&id) else { return };
                match claim.drive(now, &mut self.link, &self.around) {
                    Next::Wake(at) => set_timer(&mut self.timers, task, &mut claim.wake, at),
                    Next::Ended(leftover) => {
                        forget_timer(&mut self.timers, task, &mut claim.wake);
                        if let Some(claim) = self.claims.remove(&id) {
                            self.tidy(now, claim.into_kind(), leftover);
                        }
                    }
                }
            }
            Task::Call(id) => {
                let Some(call) = self.calls.get_mut(&id) else { return };
                match call.drive(now, task, &mut self.link, &self.around) {
                    Some(at) => set_timer(&mut self.timers, task, &mut call.wake, Some(at)),
                    None => {
                        forget_timer(&mut self.timers, task, &mut call.wake);
                        self.calls.remove(&id);
                    }
                }
            }
        }
    }

    /// Sends the requests that wait for the window, as far as there is room.
    fn let_in(&mut self, now: BootInstant) {
        while let Some(task) = self.link.next_in_line() {
            self.drive(now, task);
        }
    }

    fn tidy(&mut self, now: BootInstant, kind: Kind, leftover: Leftover) {
        match leftover {
            Leftover::Nothing => {}
            Leftover::Reusable(session) if self.closing => self.close_session(now, session.id),
            Leftover::Reusable(session) => self.pool.put(now, kind, session),
            Leftover::Unclear(session) => self.close_session(now, session),
        }
    }

    fn answer_closers(&mut self) {
        if !self.closers.is_empty() && self.calls.is_empty() && self.claims.values().all(Claim::is_settled) {
            for closer in self.closers.drain(..) {
                let _ = closer.send(());
            }
        }
    }
}

fn set_timer(
    timers: &mut BTreeSet<(BootInstant, Task)>,
    task: Task,
    wake: &mut Option<BootInstant>,
    at: Option<BootInstant>,
) {
    if *wake != at {
        forget_timer(timers, task, wake);
        *wake = at;
    }
    if let Some(at) = at {
        timers.insert((at, task));
    }
}

fn forget_timer(timers: &mut BTreeSet<(BootInstant, Task)>, task: Task, wake: &mut Option<BootInstant>) {
    if let Some(at) = wake.take() {
        timers.remove(&(at, task));
    }
}

/// Where members serve clients.
fn addresses(members: Vec<MemberView>) -> Vec<String> {
    let known = members.into_iter().filter_map(|member| member.client_addr);
    known.filter(|address| endpoints::check(address).is_ok()).collect()
}

/// Whole milliseconds, at least the duration.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
