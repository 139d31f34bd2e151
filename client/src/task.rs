//! The background task: one loop that carries commands, frames and time to the engine, and its frames to the socket.
//!
//! The loop sleeps until a command, a frame or the engine's next moment. All commands that wait are taken at once, all
//! frames that they lead to are written at once. While the engine has something to do, the loop looks at the clock every
//! 200 ms besides: timers do not count the time for which the machine was suspended ([`crate::clock`]).

use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::Options;
use crate::clock::RECHECK_EVERY;
use crate::connection::{Connection, Incoming};
use crate::engine::{Command, Engine, Verdict};
use crate::route::{Hop, Route};
use crate::tls::DialError;

/// So many commands are taken before their frames are written.
const COMMANDS_AT_ONCE: usize = 256;
/// The sleep of a loop that waits for no moment.
const LONG: Duration = Duration::from_secs(3600);

type Dialing = Pin<Box<dyn Future<Output = Result<Box<Connection>, DialError>> + Send>>;

/// The way to a node.
enum Line {
    Down,
    Dialing { endpoint: String, connection: Dialing },
    Up(Box<Connection>),
}

/// What happens on a line.
enum Event {
    Dialed(String, Result<Box<Connection>, DialError>),
    Frames,
    Broken(String),
}

/// Runs until every handle and guard is gone and nothing is left to do.
pub(crate) async fn run(mut engine: Engine, mut route: Route, mut commands: mpsc::UnboundedReceiver<Command>) {
    let mut line = Line::Down;
    let mut listening = true;
    // Why a node refused this client, or was refused by it, since one has accepted it. A caller whose time runs out learns
    // that: a node that cannot be reached does not hide it.
    let mut refusal: Option<String> = None;
    let mut batch: Vec<Command> = Vec::new();
    let mut inbox: Vec<Incoming> = Vec::new();
    let mut alarm = std::pin::pin!(sleep(LONG));
    while listening || !engine.is_idle() {
        if matches!(line, Line::Down) && engine.wants_connection() {
            line = dial(&mut route, engine.options());
        }
        let wake = Instant::now() + pause(&engine);
        // An alarm that rings too early does no harm, and most moments that are waited for move on before they come.
        if wake < alarm.deadline() || alarm.is_elapsed() {
            alarm.as_mut().reset(wake);
        }
        tokio::select! {
            taken = commands.recv_many(&mut batch, COMMANDS_AT_ONCE), if listening => {
                let now = engine.clock();
                if taken == 0 {
                    listening = false;
                    engine.close(now);
                }
                batch.drain(..).for_each(|command| engine.command(now, command));
            }
            event = line_event(&mut line, &mut engine, &mut inbox) => match event {
                Event::Frames => {
                    if let Some((leader, why)) = take_in(&mut engine, &mut route, &mut inbox) {
                        hang_up(&mut line, &mut engine, why);
                        route.redirected(leader);
                    }
                }
                Event::Dialed(endpoint, Ok(connection)) => {
                    refusal = None;
                    route.forget_refusals();
                    line = Line::Up(connection);
                    engine.connected(engine.clock(), &endpoint);
                }
                Event::Dialed(endpoint, Err(DialError { why, refused })) => {
                    if refused {
                        refusal = Some(why.clone());
                    }
                    hang_up(&mut line, &mut engine, refusal.clone().unwrap_or_else(|| why.clone()));
                    route.failed();
                    if refused && route.refused(&endpoint) {
                        engine.refused(engine.clock(), why);
                    }
                }
                Event::Broken(why) => {
                    hang_up(&mut line, &mut engine, why);
                    route.failed();
                }
            },
            () = alarm.as_mut() => {}
        }
        engine.advance(engine.clock());
        if let Some(why) = engine.doubt() {
            hang_up(&mut line, &mut engine, why.to_owned());
            route.failed();
        }
    }
}

/// How long the loop may sleep if nothing happens.
fn pause(engine: &Engine) -> Duration {
    let longest = if engine.is_idle() { LONG } else { RECHECK_EVERY };
    engine.next_wake().map_or(longest, |wake| wake.saturating_duration_since(engine.clock()).min(longest))
}

fn dial(route: &mut Route, options: &Options) -> Line {
    let Hop { endpoint, pause, forwarded } = route.next();
    let (address, security, patience) = (endpoint.clone(), options.security.clone(), options.dial_timeout);
    let connection = Box::pin(async move {
        if !pause.is_zero() {
            sleep(pause).await;
        }
        Connection::dial(&address, &security, patience, forwarded).await.map(Box::new)
    });
    Line::Dialing { endpoint, connection }
}

fn hang_up(line: &mut Line, engine: &mut Engine, why: String) {
    *line = Line::Down;
    engine.disconnected(why);
}

/// Writes what the engine wants to send, and waits for something to happen on the line. Can be dropped and called anew.
async fn line_event(line: &mut Line, engine: &mut Engine, inbox: &mut Vec<Incoming>) -> Event {
    match line {
        Line::Down => pending().await,
        Line::Dialing { endpoint, connection } => {
            let dialed = connection.await;
            Event::Dialed(std::mem::take(endpoint), dialed)
        }
        Line::Up(connection) => match poll_fn(|context| connection.poll(context, engine.outbox(), inbox)).await {
            Ok(()) => Event::Frames,
            Err(why) => Event::Broken(why),
        },
    }
}

/// Hands frames to the engine; ends with the leader's address, if one is named, and a reason when the node is to be left.
fn take_in(engine: &mut Engine, route: &mut Route, inbox: &mut Vec<Incoming>) -> Option<(Option<String>, String)> {
    let now = engine.clock();
    for incoming in inbox.drain(..) {
        match engine.received(now, &incoming) {
            Verdict::Stay => {}
            Verdict::Leader => route.arrived(),
            Verdict::Members(addresses) => route.learn(addresses),
            Verdict::Leave { leader, why } => return Some((leader, why)),
        }
    }
    None
}
