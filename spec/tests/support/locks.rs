//! The lock table in scripts.
//!
//! A session is written as it is printed, `1.a`: its number and its proof. An owner's name is the
//! proof in hexadecimal, so that `1.a` is the session that owner `a` opened.
//!
//! ```text
//! open OWNER TTL [as=PRINCIPAL]   acquire SESSION KEYS [wait] [MODE] [seq=N]
//! close SESSION                   once OWNER TTL KEYS [wait] [MODE] [as=PRINCIPAL]
//! keepalive SESSION…              release SESSION KEYS held=TOKEN|waiting|either [seq=N]
//!                                 break KEY TOKEN [as=PRINCIPAL]
//! write [SESSION] [put=RECORD/TEXT] [append=RECORD/TEXT] [delete=RECORD] [held=LOCK/TOKEN] [if=RECORD/VERSION]
//!     [limit=BYTES] [seq=N] [as=PRINCIPAL]
//! access as=PRINCIPAL at=REVISION off|[role/ROLE=MEMBER/…]… [SUBJECT@PREFIX=RIGHTS]…
//! ```
//!
//! KEYS is one key, or several with a slash between them: `k/l`. MODE is `shared`, or for a semaphore
//! `permits=2/5`; `wait` may have a bound, as in `wait=3`, and `reentrant` adds a hold.
//!
//! A transaction may have each of its parts several times, in any order. Version 0 is that of a record that
//! does not exist; the text `x.70000` is 70,000 times `x`. Without a session, a client writes.
//!
//! A subject of an access rule is `all`, `role/ROLE`, or a principal; its rights are letters, `r`ead,
//! `a`cquire, `b`reak, `w`rite and `A`dmin, or `none`.

use std::sync::Arc;

use palisade_spec::lock::{
    Access, Bytes, Change, Claim, Command, Condition, Event, Holder, Key, Keys, LockRequest, LockTable, Mode, Opening,
    Outcome, Owner, Prefix, Principal, Proof, Record, Reply, Revision, Right, Rights, Role, RoleMembers, Rule, Rules,
    Sequence, SessionId, Subject, Token, Transaction, Ttl, Value, Version, Waiter, Writer,
};

use super::machine::Scripted;

impl Scripted for LockTable {
    fn parse(text: &str) -> Result<Command, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let flag = |name: &str| words.contains(&name);
        let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let sequence = value("seq").map(number).transpose()?.and_then(Sequence::new);
        let principal = Principal::from(value("as").unwrap_or_default());
        let request = |keys: &str| {
            let mode = match value("permits").map(|text| text.split_once('/')) {
                _ if flag("shared") => Mode::SHARED,
                None => Mode::EXCLUSIVE,
                Some(permits) => {
                    let (permits, of) = permits.ok_or_else(|| format!("{text}: permits of how many?"))?;
                    let [permits, of] = [permits, of].map(|text| text.parse().unwrap_or_default());
                    Mode::semaphore(permits, of).ok_or_else(|| format!("{text}: no such number of permits"))?
                }
            };
            let max_queue = match value("wait") {
                Some(bound) => bound.parse().map_err(|_| format!("{bound} is not a number"))?,
                None if flag("wait") => LockRequest::ANY_QUEUE,
                None => 0,
            };
            let (reentrant, value) = (flag("reentrant"), value("value").map(Value::from));
            Ok::<_, String>(LockRequest { keys: keys_of(keys)?, mode, max_queue, reentrant, value })
        };
        let opening = |owner, ttl| Ok::<_, String>(Opening { principal: principal.clone(), ..opening(owner, ttl)? });
        Ok(match words[..] {
            ["open", owner, ttl, ..] => Command::Open { opening: opening(owner, ttl)? },
            ["close", id] => Command::Close { session: session(id)? },
            ["keepalive", ref ids @ ..] => {
                Command::KeepAlive { sessions: ids.iter().map(|id| session(id)).collect::<Result<_, _>>()? }
            }
            ["acquire", id, keys, ..] => Command::Acquire { session: session(id)?, sequence, request: request(keys)? },
            ["once", owner, ttl, keys, ..] => {
                Command::AcquireOnce { opening: opening(owner, ttl)?, request: request(keys)? }
            }
            ["release", id, keys, ..] => {
                let claim = match value("held") {
                    Some(token) => Claim::Held(Token(number(token)?)),
                    None if flag("waiting") => Claim::Waiting,
                    None if flag("either") => Claim::Either,
                    None => return Err(format!("{text}: which claim is meant?")),
                };
                Command::Release { session: session(id)?, sequence, keys: keys_of(keys)?, claim }
            }
            ["proclaim", id, key, value, ..] => {
                let token = Token(words.iter().find_map(|word| word.strip_prefix("held=")).map_or(Ok(0), number)?);
                Command::Proclaim { session: session(id)?, sequence, key: key.into(), token, value: value.into() }
            }
            ["break", key, token, ..] => {
                Command::Break { key: key.into(), token: Token(number(token)?), principal: principal.clone() }
            }
            ["access", _, _, ref rest @ ..] => {
                let revision = value("at").map_or(Err(format!("{text}: at which revision?")), number)?;
                let rules = if *rest == ["off"] { None } else { Some(Arc::new(rules(rest)?)) };
                Command::SetAccess { principal: principal.clone(), revision: Revision(revision), rules }
            }
            ["write", ref rest @ ..] => {
                let (id, rest) = match rest {
                    [id, rest @ ..] if session(id).is_ok() => (Some(session(id)?), rest),
                    rest => (None, rest),
                };
                let writer = match id {
                    Some(session) => Writer::Session { session, sequence },
                    None => Writer::Client(principal.clone()),
                };
                Command::Transact { writer, transaction: transaction(rest)? }
            }
            _ => return Err(format!("{text} is not a command")),
        })
    }

    fn show_command(command: &Command) -> String {
        let seq = |seq: &Option<Sequence>| seq.map_or(String::new(), |seq| format!(" seq={seq}"));
        match command {
            Command::Open { opening } => format!("open {} {}{}", opening.owner, opening.ttl, of(&opening.principal)),
            Command::Close { session } => format!("close {session}"),
            Command::KeepAlive { sessions } => format!("keepalive {}", join(sessions)),
            Command::Acquire { session, sequence, request } => {
                format!("acquire {session} {}{}", show_request(request), seq(sequence))
            }
            Command::AcquireOnce { opening: Opening { owner, principal, ttl, .. }, request } => {
                format!("once {owner} {ttl} {}{}", show_request(request), of(principal))
            }
            Command::Release { session, sequence, keys, claim } => {
                let claim = match claim {
                    Claim::Held(token) => format!("held={token}"),
                    Claim::Waiting => "waiting".into(),
                    Claim::Either => "either".into(),
                };
                format!("release {session} {keys} {claim}{}", seq(sequence))
            }
            Command::Proclaim { session, sequence, key, token, value } => {
                format!("proclaim {session} {key} {value} held={token}{}", seq(sequence))
            }
            Command::Break { key, token, principal } => format!("break {key} {token}{}", of(principal)),
            Command::SetAccess { principal, revision, rules } => {
                format!("access{} at={revision} {}", of(principal), show_rules(rules.as_deref()))
            }
            Command::Transact { writer, transaction } => {
                let writer = match writer {
                    Writer::Client(principal) => of(principal),
                    Writer::Session { session, sequence } => format!(" {session}{}", seq(sequence)),
                };
                format!("write{writer}{}", show_transaction(transaction))
            }
        }
    }

    fn show_outcome(outcome: &Outcome) -> String {
        let reply = outcome.reply.as_ref().map(show_reply);
        let events = outcome.events.iter().map(show_event);
        reply.into_iter().chain(events).collect::<Vec<_>>().join("; ")
    }

    /// `k: 1.a #1 < 2.b 3.c` is a lock held with token 1, followed by its queue. Claims in other modes than
    /// exclusive, on several keys, with several holds or with a value say so in brackets.
    fn show(&self) -> String {
        let locks = self.locks().iter().map(|(key, lock)| {
            let holders = lock.holders.iter().map(|holder| {
                let Holder { session, token, mode, holds, .. } = holder;
                format!(" {session} #{token}{}", show_claim(*mode, &holder.keys(key), *holds, holder.value()))
            });
            let waiters = lock.queue.iter().map(|waiter| {
                let Waiter { session, mode, .. } = waiter;
                format!(" {session}{}", show_claim(*mode, &waiter.keys(key), 1, waiter.value()))
            });
            let (holders, waiters) = (holders.collect::<String>(), waiters.collect::<String>());
            let queue = if waiters.is_empty() { String::new() } else { format!(" <{waiters}") };
            format!("{key}:{holders}{queue}")
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
        let records: Vec<String> = self.records().iter().map(|(key, record)| show_record(key, record)).collect();
        let store = if self.next_version() == Version(1) {
            String::new()
        } else {
            format!(" records {{{}}} {} bytes next @{}", records.join(", "), self.stored_bytes(), self.next_version())
        };
        let (locks, sessions) = (locks.join(", "), sessions.join(", "));
        format!("{{{locks}}} sessions {{{sessions}}} next #{}{store}{access}", self.next_token())
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
        Reply::Held { holder, owner, token: Some(token), queue, .. } => {
            format!("held by {owner} {holder} #{token}, {queue} wait")
        }
        Reply::Held { key, holder, owner, token: None, queue } => {
            format!("{owner} {holder} is the next for {key}, {queue} wait")
        }
        Reply::OtherSize { key, mode } => format!("{key} has a claim that is {mode}"),
        Reply::OtherClaim { key } => format!("another claim on {key}"),
        Reply::StillHeld { holds } => format!("still held, {holds} left"),
        Reply::Proclaimed => "proclaimed".into(),
        Reply::Released => "released".into(),
        Reply::NotHolder => "not holder".into(),
        Reply::Broken { session, principal } => format!("broken {session}{}", of(principal)),
        Reply::Gone => "gone".into(),
        Reply::NoSession => "no session".into(),
        Reply::Denied => "denied".into(),
        Reply::AccessSet { revision } => format!("access rules have revision {revision}"),
        Reply::AccessChanged { revision } => format!("access rules have revision {revision} already"),
        Reply::Written { version } => format!("written @{version}"),
        Reply::NotHeld { lock, token, seen } => {
            let seen = seen.map_or("none".into(), |seen| format!("#{seen}"));
            format!("{lock} is not held with #{token}, seen {seen}")
        }
        Reply::OtherVersion { record, version: Some(version) } => format!("{record} has version {version}"),
        Reply::OtherVersion { record, version: None } => format!("there is no {record}"),
        Reply::Fenced { record, fence } => format!("{record} is fenced by #{fence}"),
        Reply::RecordTooLarge { record, length } => format!("{record} would have {length} bytes"),
        Reply::StoreFull { bytes, limit } => format!("the store would have {bytes} bytes of {limit}"),
    }
}

/// Formats an event in one line; the star distinguishes it from a reply.
fn show_event(event: &Event) -> String {
    match event {
        Event::Granted { key, session, token, mode: Mode::EXCLUSIVE, .. } => format!("*{key} to {session} #{token}"),
        Event::Granted { key, session, token, mode, .. } => format!("*{key} to {session} #{token} ({mode})"),
        Event::Proclaimed { key, session, token, value } => format!("*{key} has the value {value} {session} #{token}"),
        Event::Released { key, session, token } => format!("*{key} from {session} #{token}"),
        Event::Broken { key, session, token } => format!("*{key} broken {session} #{token}"),
        Event::Withdrawn { key, session } => format!("*{key} withdrawn {session}"),
        Event::Expired { session, deadline } => format!("*expired {session} ≤{deadline}"),
        Event::Closed { session } => format!("*closed {session}"),
        Event::Denied { key, session, .. } => format!("*{key} denied {session}"),
        Event::Put { key, version, fence } => {
            format!("*{key} put @{version}{}", fence.map_or(String::new(), |fence| format!(" under #{fence}")))
        }
        Event::Deleted { key, version } => format!("*{key} deleted @{version}"),
        Event::Queued { key, session, ahead, .. } => format!("*{key} queued {session}, {ahead} ahead"),
        Event::Overdue { key, session } => format!("*{key} overdue {session}"),
    }
}

/// Formats the keys of a request, and what it says beside them.
fn show_request(LockRequest { keys, mode, max_queue, reentrant, value }: &LockRequest) -> String {
    let mode = match (*mode, mode.as_semaphore()) {
        (_, Some((permits, of))) => format!(" permits={permits}/{of}"),
        (Mode::SHARED, _) => " shared".into(),
        _ => String::new(),
    };
    let wait = match *max_queue {
        0 => String::new(),
        LockRequest::ANY_QUEUE => " wait".into(),
        bound => format!(" wait={bound}"),
    };
    let value = value.as_ref().map(|value| format!(" value={value}")).unwrap_or_default();
    format!("{keys}{wait}{mode}{}{value}", if *reentrant { " reentrant" } else { "" })
}

/// What a claim has beside its session, if that is not what most have.
fn show_claim(mode: Mode, keys: &Keys, holds: u32, value: Option<&Value>) -> String {
    let mode = (mode != Mode::EXCLUSIVE).then(|| mode.to_string());
    let keys = (keys.count() > 1).then(|| keys.to_string());
    let holds = (holds > 1).then(|| format!("{holds} holds"));
    let value = value.map(|value| format!("value {value}"));
    let said: Vec<String> = [mode, keys, holds, value].into_iter().flatten().collect();
    if said.is_empty() { String::new() } else { format!(" ({})", said.join(", ")) }
}

fn keys_of(text: &str) -> Result<Keys, String> {
    Keys::new(text.split('/').map(Key::from).collect()).ok_or_else(|| format!("{text}: a key occurs twice"))
}

fn of(principal: &Principal) -> String {
    if principal.is_none() { String::new() } else { format!(" as={principal}") }
}

/// The changes and the conditions of a transaction.
fn transaction(words: &[&str]) -> Result<Transaction, String> {
    let mut transaction = Transaction { limit: u64::MAX, ..Transaction::default() };
    let of_record = |text: &str| {
        let (record, rest) = text.split_once('/').ok_or_else(|| format!("{text} has no slash"))?;
        Ok::<_, String>((Key::from(record), rest.to_string()))
    };
    for word in words {
        let (name, text) = word.split_once('=').ok_or_else(|| format!("{word} is no part of a transaction"))?;
        match name {
            "put" => {
                let (record, text) = of_record(text)?;
                transaction.changes.push(Change::Put { record, bytes: content(&text)? });
            }
            "append" => {
                let (record, text) = of_record(text)?;
                transaction.changes.push(Change::Append { record, bytes: content(&text)? });
            }
            "delete" => transaction.changes.push(Change::Delete { record: text.into() }),
            "held" => {
                let (lock, token) = of_record(text)?;
                transaction.conditions.push(Condition::Held { lock, token: Token(number(&token)?) });
            }
            "if" => {
                let (record, version) = of_record(text)?;
                let version = Some(Version(number(&version)?)).filter(|version| version.0 > 0);
                transaction.conditions.push(Condition::Version { record, version });
            }
            "limit" => transaction.limit = number(text)?,
            "seq" | "as" => {}
            _ => return Err(format!("{word} is no part of a transaction")),
        }
    }
    Ok(transaction)
}

/// The content that a script writes.
fn content(text: &str) -> Result<Bytes, String> {
    Ok(match text.split_once('.') {
        Some((text, times)) => {
            Bytes::from(text.repeat(times.parse().map_err(|_| format!("{times} is not a number"))?).as_str())
        }
        None => Bytes::from(text),
    })
}

fn show_transaction(Transaction { conditions, changes, limit }: &Transaction) -> String {
    let change = |change: &Change| match change {
        Change::Put { record, bytes } => format!(" put={record}/{}", show_bytes(bytes)),
        Change::Append { record, bytes } => format!(" append={record}/{}", show_bytes(bytes)),
        Change::Delete { record } => format!(" delete={record}"),
    };
    let condition = |condition: &Condition| match condition {
        Condition::Held { lock, token } => format!(" held={lock}/{token}"),
        Condition::Version { record, version } => format!(" if={record}/{}", version.map_or(0, |version| version.0)),
    };
    let limit = if *limit == u64::MAX { String::new() } else { format!(" limit={limit}") };
    changes.iter().map(change).chain(conditions.iter().map(condition)).chain([limit]).collect()
}

/// `r=text @3 under #1 by 2.b seq=4`: the content, the version, the fence, and the numbered operation.
fn show_record(key: &Key, Record { bytes, version, fence, written }: &Record) -> String {
    let fence = fence.map_or(String::new(), |fence| format!(" under #{fence}"));
    let written = written.map_or(String::new(), |(session, sequence)| format!(" by {session} seq={sequence}"));
    format!("{key}={} @{version}{fence}{written}", show_bytes(bytes))
}

/// The content as text; a long one as its length.
fn show_bytes(bytes: &Bytes) -> String {
    match bytes.len() {
        0..100 => bytes.as_slice().escape_ascii().to_string(),
        length => format!("{length} bytes"),
    }
}

const LETTERS: [(char, Right); 5] =
    [('r', Right::Read), ('a', Right::Acquire), ('b', Right::Break), ('w', Right::Write), ('A', Right::Admin)];

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
