//! The lock table in scripts.
//!
//! A session is written as it is printed, `1.a`: its number and its proof. An owner's name is the
//! proof in hexadecimal, so that `1.a` is the session that owner `a` opened.
//!
//! ```text
//! open OWNER TTL                  acquire SESSION KEY [wait] [seq=N]      once OWNER TTL KEY [wait]
//! close SESSION                   release SESSION KEY held=TOKEN|waiting|either [seq=N]
//! keepalive SESSION…              break KEY TOKEN
//! ```

use palisade_spec::lock::{
    Claim, Command, Event, LockTable, Opening, Outcome, Owner, Proof, Reply, Sequence, SessionId, Token, Ttl,
};

use super::machine::Scripted;

impl Scripted for LockTable {
    fn parse(text: &str) -> Result<Command, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let flag = |name: &str| words.contains(&name);
        let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let sequence = value("seq").map(number).transpose()?.map(Sequence);
        Ok(match words[..] {
            ["open", owner, ttl] => Command::Open { opening: opening(owner, ttl)? },
            ["close", id] => Command::Close { session: session(id)? },
            ["keepalive", ref ids @ ..] => {
                Command::KeepAlive { sessions: ids.iter().map(|id| session(id)).collect::<Result<_, _>>()? }
            }
            ["acquire", id, key, ..] => {
                Command::Acquire { session: session(id)?, sequence, key: key.into(), wait: flag("wait") }
            }
            ["once", owner, ttl, key, ..] => {
                Command::AcquireOnce { opening: opening(owner, ttl)?, key: key.into(), wait: flag("wait") }
            }
            ["release", id, key, ..] => {
                let claim = match value("held") {
                    Some(token) => Claim::Held(Token(number(token)?)),
                    None if flag("waiting") => Claim::Waiting,
                    None if flag("either") => Claim::Either,
                    None => return Err(format!("{text}: which claim is meant?")),
                };
                Command::Release { session: session(id)?, sequence, key: key.into(), claim }
            }
            ["break", key, token] => Command::Break { key: key.into(), token: Token(number(token)?) },
            _ => return Err(format!("{text} is not a command")),
        })
    }

    fn show_command(command: &Command) -> String {
        let wait = |wait: &bool| if *wait { " wait" } else { "" };
        let seq = |seq: &Option<Sequence>| seq.map_or(String::new(), |seq| format!(" seq={seq}"));
        match command {
            Command::Open { opening } => format!("open {} {}", opening.owner, opening.ttl),
            Command::Close { session } => format!("close {session}"),
            Command::KeepAlive { sessions } => format!("keepalive {}", join(sessions)),
            Command::Acquire { session, sequence, key, wait: w } => {
                format!("acquire {session} {key}{}{}", wait(w), seq(sequence))
            }
            Command::AcquireOnce { opening: Opening { owner, ttl, .. }, key, wait: w } => {
                format!("once {owner} {ttl} {key}{}", wait(w))
            }
            Command::Release { session, sequence, key, claim } => {
                let claim = match claim {
                    Claim::Held(token) => format!("held={token}"),
                    Claim::Waiting => "waiting".into(),
                    Claim::Either => "either".into(),
                };
                format!("release {session} {key} {claim}{}", seq(sequence))
            }
            Command::Break { key, token } => format!("break {key} {token}"),
        }
    }

    fn show_outcome(outcome: &Outcome) -> String {
        let reply = outcome.reply.as_ref().map(show_reply);
        let events = outcome.events.iter().map(show_event);
        reply.into_iter().chain(events).collect::<Vec<_>>().join("; ")
    }

    /// `k: 1.a #1 < 2.b 3.c` is a lock held with token 1, followed by its queue.
    fn show(&self) -> String {
        let locks = self.locks().iter().map(|(key, lock)| {
            let queue: Vec<SessionId> = lock.queue.iter().map(|waiter| waiter.session).collect();
            let queue = if queue.is_empty() { String::new() } else { format!(" < {}", join(&queue)) };
            format!("{key}: {} #{}{queue}", lock.holder.session, lock.holder.token)
        });
        let sessions = self.sessions().iter().map(|(id, session)| {
            let last = session.last.map_or(String::new(), |last| format!(" seq={last}"));
            format!("{id}≤{}{}{last}", session.deadline, if session.once { " once" } else { "" })
        });
        let (locks, sessions): (Vec<_>, Vec<_>) = (locks.collect(), sessions.collect());
        format!("{{{}}} sessions {{{}}} next #{}", locks.join(", "), sessions.join(", "), self.next_token())
    }
}

/// Formats a reply in one line.
fn show_reply(reply: &Reply) -> String {
    match reply {
        Reply::Opened { session } => format!("opened {session}"),
        Reply::Closed => "closed".into(),
        Reply::KeptAlive { missing } if missing.is_empty() => "kept alive".into(),
        Reply::KeptAlive { missing } => format!("kept alive, missing {}", join(missing)),
        Reply::Granted { session, token } => format!("granted {session} #{token}"),
        Reply::Queued { session, ahead } => format!("queued {session}, {ahead} ahead"),
        Reply::Held { holder, owner, token, queue } => format!("held by {owner} {holder} #{token}, {queue} wait"),
        Reply::Released => "released".into(),
        Reply::NotHolder => "not holder".into(),
        Reply::Broken { session } => format!("broken {session}"),
        Reply::Gone => "gone".into(),
        Reply::NoSession => "no session".into(),
    }
}

/// Formats an event in one line; the star distinguishes it from a reply.
fn show_event(event: &Event) -> String {
    match event {
        Event::Granted { key, session, token } => format!("*{key} to {session} #{token}"),
        Event::Released { key, session, token } => format!("*{key} from {session} #{token}"),
        Event::Broken { key, session, token } => format!("*{key} broken {session} #{token}"),
        Event::Withdrawn { key, session } => format!("*{key} withdrawn {session}"),
        Event::Expired { session, deadline } => format!("*expired {session} ≤{deadline}"),
        Event::Closed { session } => format!("*closed {session}"),
    }
}

fn join(sessions: &[SessionId]) -> String {
    sessions.iter().map(SessionId::to_string).collect::<Vec<_>>().join(" ")
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

fn proof(text: &str) -> Result<Proof, String> {
    u128::from_str_radix(text, 16).map(Proof::from).map_err(|_| format!("{text} is not hexadecimal"))
}

fn session(text: &str) -> Result<SessionId, String> {
    let (count, proven) = text.split_once('.').ok_or_else(|| format!("{text} is not a session"))?;
    Ok(SessionId { number: number(count)?, proof: proof(proven)? })
}

fn opening(owner: &str, ttl: &str) -> Result<Opening, String> {
    Ok(Opening { proof: proof(owner)?, owner: Owner::from(owner), ttl: Ttl(number(ttl)?) })
}
