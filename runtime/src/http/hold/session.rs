//! The session of one connection, from the claim to the end: renewals after answers, the grant, values, and the
//! release.
//!
//! Each kind of request to the core has at most one under way. The loop waits for all of them, for the client and
//! for the timers at once, and changes the connection's state in one place, so a grant, a renewal, a release and
//! the end of the connection come in one order.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use palisade_client::wire::{
    Acquire, Acquired, Answer, Code, Failure, Keys, Op, Proclaim, Release, SessionId, SessionLease,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use super::checks::Checks;
use super::frames::{ClientFrame, Refusal, ServerFrame};
use super::link::{End, Link};
use super::registry::{Entry, Signal};
use super::{interrupts, unexpected};
use crate::core::{Request, session_id};
use crate::http::App;
use crate::limits;

/// How often a connection looks whether this node still leads: also one whose checks are hours apart.
const LEADER_PAUSE: Duration = Duration::from_secs(5);
/// Minimum pause between two looks at a session that should have ended.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// A session and its time-to-live.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    session: SessionId,
    ttl_ms: u64,
}

impl Lease {
    pub(super) fn of(session: SessionId, ttl_ms: u64) -> Lease {
        Lease { session, ttl_ms }
    }

    pub(super) fn view(self) -> SessionLease {
        SessionLease { session: self.session, ttl_ms: self.ttl_ms }
    }

    fn ttl(self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }
}

type UnderWay = Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send>>;

/// A request to the core that may be under way.
#[derive(Default)]
struct Pending(Option<UnderWay>);

impl Pending {
    fn start(&mut self, request: impl Future<Output = Result<Answer, Failure>> + Send + 'static) {
        self.0 = Some(Box::pin(request));
    }

    fn is_idle(&self) -> bool {
        self.0.is_none()
    }

    /// Waits for the answer; for ever if no request is under way. A call that is cut short loses nothing.
    async fn answer(&mut self) -> Result<Answer, Failure> {
        let Some(request) = &mut self.0 else { return pending().await };
        let answer = request.await;
        self.0 = None;
        answer
    }
}

/// A connection that has a session.
pub(super) struct Hold {
    app: App,
    keys: Keys,
    lease: Lease,
    /// Whether this connection has opened the session.
    opened: bool,
    /// The token of the grant, once the lock is held.
    token: Option<u64>,
    registered: Option<(Entry, UnboundedReceiver<Signal>)>,
    /// Frames that are sent before the next one is awaited.
    queued: Vec<ServerFrame>,
    checks: Checks,
    check: Interval,
    leader: Interval,
    /// When the session has ended, unless it is renewed: an estimate by this node's clock.
    ends: Instant,
    acquire: Pending,
    renewal: Pending,
    /// The check whose answer the renewal follows.
    renewing: u64,
    /// Whether the session still holds the lock, when its end is due.
    look: Pending,
    proclaim: Pending,
    /// The values that are not proclaimed yet, in order, with their numbers: the first is under way.
    values: VecDeque<(u64, String)>,
}

impl Hold {
    /// A connection that is the latest one of a session, which was opened or renewed just now.
    pub(super) fn new(app: &App, keys: Keys, lease: Lease, opened: bool) -> Hold {
        let mut hold = Hold { opened, ..Hold::unregistered(app, keys, lease) };
        hold.register();
        hold
    }

    /// The same for one whose session has an older connection as yet.
    pub(super) fn unregistered(app: &App, keys: Keys, lease: Lease) -> Hold {
        let (now, every) = (Instant::now(), lease.ttl() / 3);
        let [check, leader] = [every, LEADER_PAUSE].map(|every| {
            let mut timer = interval_at(now + every, every);
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer
        });
        Hold {
            app: app.clone(),
            keys,
            lease,
            opened: false,
            token: None,
            registered: None,
            queued: Vec::new(),
            checks: Checks::default(),
            check,
            leader,
            ends: now + lease.ttl(),
            acquire: Pending::default(),
            renewal: Pending::default(),
            renewing: 0,
            look: Pending::default(),
            proclaim: Pending::default(),
            values: VecDeque::new(),
        }
    }

    /// Takes the session over: an older connection of it is interrupted.
    pub(super) fn register(&mut self) {
        self.registered = Some(self.app.holds.enter(self.lease.session.number()));
    }

    /// Queues a frame: it is sent before the next one is awaited.
    pub(super) fn queue(&mut self, frame: ServerFrame) {
        self.queued.push(frame);
    }

    /// The client holds the lock with this token, as far as it knows.
    pub(super) fn holds(&mut self, token: u64) {
        self.token = Some(token);
    }

    pub(super) fn granted(&mut self, acquired: Acquired) {
        self.holds(acquired.token);
        self.queue(ServerFrame::Granted(acquired));
    }

    /// Acquires the lock for the session. When this returns, the core has the request.
    pub(super) async fn wait(&mut self, options: Acquire) -> Result<(), End> {
        let options = Acquire { session: Some(self.lease.session), ..options };
        let acquire = self.app.submit_op(Op::Acquire { keys: self.keys.clone(), options, number: None }).await;
        let acquire = acquire.map_err(|failure| self.app.ended(failure, false))?;
        let app = self.app.clone();
        self.acquire.start(async move { acquire.answer(&app).await });
        Ok(())
    }

    /// Serves the connection until it ends.
    pub(super) async fn run(&mut self, link: &mut Link) -> End {
        loop {
            if let Err(end) = self.step(link).await {
                return end;
            }
        }
    }

    /// Sends the queued frames.
    async fn flush(&mut self, link: &mut Link) -> Result<(), End> {
        for frame in std::mem::take(&mut self.queued) {
            link.send_frame(&frame).await?;
        }
        Ok(())
    }

    /// Tells the client the credential of its new session. Closes the session, with its grant, if the client has ended
    /// the connection or given up while the session was opened, or cannot be told: no client knows the credential then,
    /// so none could end the session before its TTL is over.
    pub(super) async fn hand_over(&mut self, link: &mut Link) -> Result<(), End> {
        let received = match link.receive().now_or_never() {
            Some(received) => received,
            None => match link.send_frame(&ServerFrame::Waiting(self.lease.view())).await {
                Ok(()) => return Ok(()),
                Err(end) => Err(end),
            },
        };
        let closed = self.release().await;
        Err(match received {
            Ok(ClientFrame::Release {}) => closed,
            Ok(_) => End::invalid("only a `release` may be sent before `waiting` has come"),
            Err(end) => end.of_closed_session(),
        })
    }

    async fn step(&mut self, link: &mut Link) -> Result<(), End> {
        self.flush(link).await?;
        let signals = self.registered.as_mut().map(|(_, signals)| signals).expect("it was registered before it runs");
        let looks = self.token.is_some() && self.renewal.is_idle() && self.look.is_idle();
        // In this order: a grant was answered before it was broken, and after a takeover nothing is renewed.
        tokio::select! {
            biased;
            answer = self.acquire.answer() => self.acquired(answer).await,
            signal = signals.recv() => self.signalled(signal),
            answer = self.renewal.answer() => self.renewed(answer),
            answer = self.proclaim.answer() => self.proclaimed(answer, link).await,
            answer = self.look.answer() => self.looked(answer),
            _ = self.check.tick() => self.check(),
            _ = self.leader.tick() => self.still_leads(),
            () = sleep_until(self.ends), if looks => self.look(),
            frame = link.receive() => self.received(frame?).await,
        }
    }

    async fn acquired(&mut self, answer: Result<Answer, Failure>) -> Result<(), End> {
        match answer {
            Ok(Answer::Acquired(acquired)) => {
                self.granted(acquired);
                Ok(())
            }
            other => {
                let failure = unexpected(other);
                let (entry, _) = self.registered.as_ref().expect("it was registered before it runs");
                refused(&self.app, entry, self.lease.session, self.opened, &failure).await;
                Err(self.app.ended(failure, false))
            }
        }
    }

    fn signalled(&self, signal: Option<Signal>) -> Result<(), End> {
        match signal {
            Some(Signal::Broken(token)) if self.token == Some(token) => {
                let message = format!("an operator broke the grant of {} with token {token}", self.keys);
                Err(End::lost(Failure::new(Code::NotHolder, message)))
            }
            Some(Signal::Broken(_)) => Ok(()),
            Some(Signal::Stopping) => {
                let message = "this node is stopping; resume the session at another node";
                Err(self.app.interrupted(Failure::new(Code::ShuttingDown, message)))
            }
            None => {
                let message = "another connection has resumed the session, and holds the lock from now on";
                Err(self.app.interrupted(Failure::new(Code::TakenOver, message)))
            }
        }
    }

    /// Only the leader can renew the session.
    fn still_leads(&self) -> Result<(), End> {
        self.app.leads().map_err(|elsewhere| self.app.interrupted(elsewhere))
    }

    /// Asks whether the client's process is there.
    fn check(&mut self) -> Result<(), End> {
        self.still_leads()?;
        let n = self.checks.next();
        self.queue(ServerFrame::Check { n });
        Ok(())
    }

    /// Renews the session if the client has answered a check since the last renewal began.
    fn renew(&mut self) {
        if self.renewal.is_idle()
            && let Some(check) = self.checks.take()
        {
            self.renewing = check;
            self.renewal.start(self.keep_alive());
        }
    }

    /// A renewal. The answer says whether the session still has the grant.
    fn keep_alive(&self) -> impl Future<Output = Result<Answer, Failure>> + Send + use<> {
        let (app, session) = (self.app.clone(), self.lease.session);
        let request = match self.token {
            Some(token) => Request::renew_grant(session, &self.keys, token, &app.principal),
            None => app.validate(Op::KeepAlive { session }),
        };
        async move {
            // Renewals are counted, and never refused.
            let _ = app.within_rate(true);
            app.send_request(request?).await
        }
    }

    fn renewed(&mut self, answer: Result<Answer, Failure>) -> Result<(), End> {
        match answer {
            Ok(Answer::Session(renewed)) => {
                self.ends = Instant::now() + self.lease.ttl();
                self.queue(ServerFrame::Renewed { n: self.renewing, ttl_ms: renewed.ttl_ms });
            }
            // The next check is soon, and a new connection would only add to the load.
            Err(Failure { error: Code::Overloaded, .. }) => {}
            other => return Err(self.app.ended(unexpected(other), self.token.is_some())),
        }
        self.renew();
        Ok(())
    }

    /// The session should have ended: looks whether it has.
    fn look(&mut self) -> Result<(), End> {
        let read = Request::read_grant(self.lease.session, &self.keys, &self.app.principal).map_err(End::refused)?;
        let app = self.app.clone();
        self.look.start(async move { app.send_request(read).await });
        Ok(())
    }

    fn looked(&mut self, answer: Result<Answer, Failure>) -> Result<(), End> {
        match answer {
            Ok(Answer::Acquired(acquired)) => {
                self.is_own(&acquired)?;
                self.ends = self.ends.max(Instant::now() + LOOK_PAUSE.max(self.lease.ttl() / 10));
                Ok(())
            }
            other => Err(self.app.ended(unexpected(other), true)),
        }
    }

    /// Checks that this grant is the one that the client knows of: a session may release its lock, and acquire it again.
    pub(super) fn is_own(&self, acquired: &Acquired) -> Result<(), End> {
        match self.token {
            Some(token) if token != acquired.token => {
                let message = format!("the session holds the lock with token {}, not {token}", acquired.token);
                Err(End::lost(Failure::new(Code::NotHolder, message)))
            }
            _ => Ok(()),
        }
    }

    async fn received(&mut self, frame: ClientFrame) -> Result<(), End> {
        match frame {
            ClientFrame::Here(check) => {
                let asked = self.checks.answer(check);
                asked.map_err(|_| End::invalid("`here` answers no check, or one that was answered before"))?;
                self.renew();
                Ok(())
            }
            ClientFrame::Value { n, value } => {
                self.value(n, value);
                Ok(())
            }
            ClientFrame::Release {} => Err(self.release().await),
            ClientFrame::Acquire(_) | ClientFrame::Resume(_) => {
                Err(End::invalid("a connection holds one lock: open another one for the next lock"))
            }
        }
    }

    fn value(&mut self, n: u64, value: String) {
        let refusal = if self.token.is_none() {
            Some(Failure::new(Code::NotHolder, "the lock is not granted yet: send the value with the `acquire`"))
        } else if self.values.len() >= limits::OPEN_VALUES {
            let message = format!("{} values are not answered yet: wait for `proclaimed`", self.values.len());
            Some(Failure::new(Code::Overloaded, message))
        } else {
            None
        };
        if let Some(failure) = refusal {
            self.queue(ServerFrame::Error(Refusal { n: Some(n), failure }));
            return;
        }
        self.values.push_back((n, value));
        self.proclaim();
    }

    /// Proclaims the first value. The next one follows its answer: so they take effect in their order.
    fn proclaim(&mut self) {
        if let (true, Some((_, value)), Some(token)) = (self.proclaim.is_idle(), self.values.front(), self.token) {
            let proclamation = Proclaim { session: self.lease.session, token, value: value.clone() };
            let key = self.keys.as_slice()[0].clone();
            let app = self.app.clone();
            self.proclaim.start(async move {
                app.within_rate(false).map_err(|(failure, _)| failure)?;
                app.request(Op::Proclaim { key, proclamation, number: None }).await
            });
        }
    }

    async fn proclaimed(&mut self, answer: Result<Answer, Failure>, link: &mut Link) -> Result<(), End> {
        let Some((n, _)) = self.values.pop_front() else { unreachable!("the first value was under way") };
        match answer {
            Ok(Answer::Proclaimed) => self.queue(ServerFrame::Proclaimed { n }),
            other => {
                let failure = unexpected(other);
                link.send_frame(&ServerFrame::Error(Refusal { n: Some(n), failure: failure.clone() })).await?;
                // A busy node may take the next one.
                let ends = interrupts(failure.error) && failure.error != Code::Overloaded;
                if ends || matches!(failure.error, Code::NotHolder | Code::NoSession) {
                    return Err(self.app.ended(failure, true));
                }
            }
        }
        self.proclaim();
        Ok(())
    }

    /// Releases the lock, if it is held, and closes the session. Both are sent at once, and in this order: the release
    /// shows whether the client has held the lock until now.
    async fn release(&mut self) -> End {
        let session = self.lease.session;
        // Releases are counted, and never refused.
        let _ = self.app.within_rate(true);
        let released = match self.token {
            Some(token) => {
                let op = Op::Release { keys: self.keys.clone(), grant: Release { session, token }, number: None };
                Some(self.app.submit_op(op).await)
            }
            None => None,
        };
        let closed = self.app.submit_op(Op::CloseSession { session }).await;
        // The position in the queue ends with the session: no withdrawal is to come before.
        let released = match released {
            Some(Ok(released)) => released.answer(&self.app).await,
            Some(Err(failure)) => Err(failure),
            None => Ok(Answer::Released),
        };
        let closed = match closed {
            Ok(closed) => closed.answer(&self.app).await,
            Err(failure) => Err(failure),
        };
        self.acquire = Pending::default();
        match released.and(closed) {
            Ok(_) => End::Last(Box::new(ServerFrame::Released {})),
            Err(failure) => self.app.ended(failure, true),
        }
    }

    /// The connection has ended. A wait stays in its queue as long as its session lives, for a connection that resumes
    /// it, unless the credential of its client ends.
    pub(super) fn leave(self, mut credential_ended: impl Future<Output = String> + Send + Unpin + 'static) {
        if self.acquire.is_idle() {
            return;
        }
        let (Some(room), Some((entry, mut signals))) = (self.app.holds.room_for_deserted(), self.registered) else {
            return;
        };
        let (app, session, opened, mut acquire) = (self.app, self.lease.session, self.opened, self.acquire);
        tokio::spawn(async move {
            let answer = loop {
                tokio::select! {
                    biased;
                    answer = acquire.answer() => break answer,
                    signal = signals.recv() => match signal {
                        Some(Signal::Broken(_)) => {}
                        Some(Signal::Stopping) | None => return,
                    },
                    // The core withdraws the wait.
                    _ = &mut credential_ended => return,
                }
            };
            if let Err(failure) = answer {
                refused(&app, &entry, session, opened, &failure).await;
            }
            drop((entry, room));
        });
    }
}

/// The claim of a session was refused, so the session is of no use any more. It is left alone where this node does not
/// know what has become of the claim, where the client has named a session with another claim, and where another
/// connection goes on with it.
async fn refused(app: &App, entry: &Entry, session: SessionId, opened: bool, failure: &Failure) {
    if interrupts(failure.error) || (!opened && failure.error == Code::Invalid) {
        return;
    }
    let Ok(close) = app.validate(Op::CloseSession { session }) else { return };
    let turn = app.turn().await;
    let id = session_id(session, app.principal.as_str());
    if let Some(Ok(closed)) = entry.close_unless_resumed(id, || app.submit_now(close, turn, None)) {
        let _ = closed.answer(app).await;
    }
}
