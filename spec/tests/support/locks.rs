//! The lock table in scripts.
//!
//! A session is written as it is printed, `1.a`: its number and its proof. An owner's name is the
//! proof in hexadecimal, so that `1.a` is the session that owner `a` opened.
//!
//! ```text
//! open OWNER TTL [as=PRINCIPAL]   acquire SESSION KEY [wait] [seq=N]
//! close SESSION                   once OWNER TTL KEY [wait] [as=PRINCIPAL]
//! keepalive SESSION…              release SESSION KEY held=TOKEN|waiting|either [seq=N]
//!                                 break KEY TOKEN [as=PRINCIPAL]
//! access as=PRINCIPAL at=REVISION off|[role/ROLE=MEMBER/…]… [SUBJECT@PREFIX=RIGHTS]…
//! ```
//!
//! A subject of an access rule is `all`, `role/ROLE`, or a principal; its rights are letters, `r`ead,
//! `a`cquire, `b`reak and `A`dmin, or `none`.

use std::sync::Arc;

use palisade_spec::lock::{
    Access, Claim, Command, Event, LockTable, Opening, Outcome, Owner, Prefix, Principal, Proof, Reply, Revision,
    Right, Rights, Role, RoleMembers, Rule, Rules, Sequence, SessionId, Subject, Token, Ttl,
};

use super::machine::Scripted;

impl Scripted for LockTable {
    fn parse(text: &str) -> Result<Command, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let flag = |name: &str| words.contains(&name);
        let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let sequence = value("seq").map(number).transpose()?.map(Sequence);
        let principal = Principal::from(value("as").unwrap_or_default());
        let opening = |owner, ttl| Ok::<_, String>(Opening { principal: principal.clone(), ..opening(owner, ttl)? });
        Ok(match words[..] {
            ["open", owner, ttl, ..] => Command::Open { opening: opening(owner, ttl)? },
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
            ["break", key, token, ..] => {
                Command::Break { key: key.into(), token: Token(number(token)?), principal: principal.clone() }
            }
            ["access", _, _, ref rest @ ..] => {
                let revision = value("at").map_or(Err(format!("{text}: at which revision?")), number)?;
                let rules = if *rest == ["off"] { None } else { Some(Arc::new(rules(rest)?)) };
                Command::SetAccess { principal: principal.clone(), revision: Revision(revision), rules }
            }
            _ => return Err(format!("{text} is not a command")),
        })
    }

    fn show_command(command: &Command) -> String {
        let wait = |wait: &bool| if *wait { " wait" } else { "" };
        let seq = |seq: &Option<Sequence>| seq.map_or(String::new(), |seq| format!(" seq={seq}"));
        match command {
            Command::Open { opening } => format!("open {} {}{}", opening.owner, opening.ttl, of(&opening.principal)),
            Command::Close { session } => format!("close {session}"),
            Command::KeepAlive { sessions } => format!("keepalive {}", join(sessions)),
            Command::Acquire { session, sequence, key, wait: w } => {
                format!("acquire {session} {key}{}{}", wait(w), seq(sequence))
            }
            Command::AcquireOnce { opening: Opening { owner, principal, ttl, .. }, key, wait: w } => {
                format!("once {owner} {ttl} {key}{}{}", wait(w), of(principal))
            }
            Command::Release { session, sequence, key, claim } => {
                let claim = match claim {
                    Claim::Held(token) => format!("held={token}"),
                    Claim::Waiting => "waiting".into(),
                    Claim::Either => "either".into(),
                };
                format!("release {session} {key} {claim}{}", seq(sequence))
            }
            Command::Break { key, token, principal } => format!("break {key} {token}{}", of(principal)),
            Command::SetAccess { principal, revision, rules } => {
                format!("access{} at={revision} {}", of(principal), show_rules(rules.as_deref()))
            }
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
            let once = if session.once { " once" } else { "" };
            format!("{id}≤{}{once}{last}{}", session.deadline, of(&session.principal))
        });
        let (locks, sessions): (Vec<_>, Vec<_>) = (locks.collect(), sessions.collect());
        let access = if *self.access() == Access::default() {
            String::new()
        } else {
            format!(" access {} {}", self.access().revision(), show_rules(self.access().rules().map(|rules| &**rules)))
        };
        format!("{{{}}} sessions {{{}}} next #{}{access}", locks.join(", "), sessions.join(", "), self.next_token())
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
        Reply::Broken { session, principal } => format!("broken {session}{}", of(principal)),
        Reply::Gone => "gone".into(),
        Reply::NoSession => "no session".into(),
        Reply::Denied => "denied".into(),
        Reply::AccessSet { revision } => format!("access rules have revision {revision}"),
        Reply::AccessChanged { revision } => format!("access rules have revision {revision} already"),
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
        Event::Denied { key, session, .. } => format!("*{key} denied {session}"),
    }
}

fn of(principal: &Principal) -> String {
    if principal.is_none() { String::new() } else { format!(" as={principal}") }
}

const LETTERS: [(char, Right); 4] =
    [('r', Right::Read), ('a', Right::Acquire), ('b', Right::Break), ('A', Right::Admin)];

fn rules(words: &[&str]) -> Result<Rules, String> {
    let (mut roles, mut rules) = (Vec::new(), Vec::new());
    for word in words {
        if let Some((subject, rest)) = word.split_once('@') {
            let (prefix, letters) = rest.split_once('=').ok_or_else(|| format!("{word} gives no rights"))?;
            let right = |letter| LETTERS.iter().find(|(known, _)| *known == letter).map(|(_, right)| *right);
            let letters = if letters == "none" { "" } else { letters };
            let rights = letters.chars().map(|letter| right(letter).ok_or_else(|| format!("{letter} is no right")));
            let rights = Rights::of(rights.collect::<Result<Vec<_>, _>>()?);
            let subject = match (subject, subject.strip_prefix("role/")) {
                ("all", _) => Subject::Everyone,
                (_, Some(role)) => Subject::Role(Role::from(role)),
                (name, None) => Subject::Principal(Principal::from(name)),
            };
            rules.push(Rule { prefix: Prefix::from(prefix), subject, rights });
        } else {
            let role = word.strip_prefix("role/").and_then(|role| role.split_once('='));
            let (role, members) = role.ok_or_else(|| format!("{word} is neither a rule nor a role"))?;
            roles.push(RoleMembers {
                role: Role::from(role),
                members: members.split('/').map(Principal::from).collect(),
            });
        }
    }
    Ok(Rules::new(roles, rules))
}

fn show_rules(rules: Option<&Rules>) -> String {
    let Some(rules) = rules else { return "off".into() };
    if rules.rules().is_empty() {
        return "nothing".into();
    }
    let role = |listed: &RoleMembers| {
        let members: Vec<String> = listed.members.iter().map(Principal::to_string).collect();
        format!("role/{}={}", listed.role, members.join("/"))
    };
    let rule = |rule: &Rule| {
        let subject = match &rule.subject {
            Subject::Everyone => "all".to_owned(),
            Subject::Role(role) => format!("role/{role}"),
            Subject::Principal(name) => name.to_string(),
        };
        let given = LETTERS.iter().filter(|(_, right)| rule.rights.iter().any(|given| given == *right));
        let letters: String = given.map(|(letter, _)| *letter).collect();
        format!("{subject}@{}={}", rule.prefix, if letters.is_empty() { "none" } else { &letters })
    };
    rules.roles().iter().map(role).chain(rules.rules().iter().map(rule)).collect::<Vec<_>>().join(" ")
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
    let principal = Principal::default();
    Ok(Opening { proof: proof(owner)?, owner: Owner::from(owner), principal, ttl: Ttl(number(ttl)?) })
}
