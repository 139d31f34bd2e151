//! Text, JSON, labels and drawings for the lock table, its clients and their operations.

use palisade_spec::lock::{
    self, Bytes, Change, Claim, Command, Condition, Holder, Key, Keys, Lock, LockRequest, LockTable, Mode, Opening,
    Principal, Proof, Record, Rule, Rules, Sequence, SessionId, Subject, Token, Transaction, Version, Waiter, Writer,
};
use palisade_spec::raft::Payload;
use serde_json::{Value, json};
use stateright::Model;

use super::requests::proof;
use super::{Action, Locks, Operation, PROCLAIMED, State, without_wait};
use crate::diagram::{Diagram, Fate, Tone};
use crate::state_table::{Field, StateTable};
use crate::world::Notation;

/// A session's number; with the proof unless that is the session's own: its number here, and 0 in
/// other layers.
fn session(id: SessionId) -> String {
    let is_own = [proof(id.number), Proof::default()].contains(&id.proof);
    if is_own { format!("s{}", id.number) } else { format!("s{id}") }
}

fn numbered(sequence: Option<Sequence>) -> String {
    sequence.map_or(String::new(), |sequence| format!("#{sequence}"))
}

impl Notation for LockTable {
    fn command(command: &Command) -> String {
        let waits = |wait: bool| if wait { "" } else { "?" };
        match command {
            Command::Open { opening: Opening { ttl, .. } } => format!("open(ttl {ttl})"),
            Command::Close { session: id } => format!("close({})", session(*id)),
            Command::KeepAlive { sessions } => {
                format!("keepalive({})", sessions.iter().copied().map(session).collect::<Vec<_>>().join(" "))
            }
            Command::Acquire { session: id, sequence, request } => {
                format!("acquire{}({} {}{})", waits(request.waits()), asked(request), session(*id), numbered(*sequence))
            }
            Command::AcquireOnce { request, .. } => {
                format!("acquire{}({} by a new session)", waits(request.waits()), asked(request))
            }
            Command::Release { session: id, sequence, keys, claim } => {
                let claim = match claim {
                    Claim::Held(token) if token.0 == u64::MAX => "an unknown token".to_string(),
                    Claim::Held(token) => format!("token {token}"),
                    Claim::Waiting => "waiting".to_string(),
                    Claim::Either => "any claim".to_string(),
                };
                format!("release({keys} {}{} {claim})", session(*id), numbered(*sequence))
            }
            Command::Proclaim { session: id, sequence, key, token, value } => {
                let token = if token.0 == u64::MAX { "an unknown token".to_string() } else { format!("token {token}") };
                format!("proclaim({value} at {key} {}{} {token})", session(*id), numbered(*sequence))
            }
            Command::Break { key, token, principal } => format!("break({key} token {token}{})", by(principal)),
            Command::SetAccess { principal, revision, rules } => {
                format!("access({}{} at revision {revision})", rule_list(rules.as_deref()), by(principal))
            }
            Command::Transact { writer, transaction } => {
                let writer = match writer {
                    Writer::Client(principal) => by(principal),
                    Writer::Session { session: id, sequence } => format!(" {}{}", session(*id), numbered(*sequence)),
                };
                format!("write({}{writer})", transaction_text(transaction))
            }
        }
    }

    fn content(&self) -> Vec<Field> {
        let lock = |key: &Key, lock: &Lock| {
            let holder = |holder: &Holder| {
                let claim = kind(key, holder.mode, &holder.keys(key), holder.holds, holder.value());
                format!("{}{claim} token {}", session(holder.session), holder.token)
            };
            let waiter = |waiter: &Waiter| {
                format!("{}{}", session(waiter.session), kind(key, waiter.mode, &waiter.keys(key), 1, waiter.value()))
            };
            let holders = lock.holders.iter().map(holder).collect::<Vec<_>>().join(" and ");
            let waiters = lock.queue.iter().map(waiter).collect::<Vec<_>>().join(" ");
            let queue = if waiters.is_empty() { String::new() } else { format!(", then {waiters}") };
            format!("{}{queue}", or_free(holders))
        };
        let locks = self.locks().iter().map(|(key, held)| format!("{key}: {}", lock(key, held)));
        let until = self.deadlines().keys().map(|(deadline, id)| format!("{} until {deadline}", session(*id)));
        let locks = locks.collect::<Vec<_>>().join("; ");
        let rules = self.access().is_enabled().then(|| rule_list(self.access().rules().map(|rules| &**rules)));
        let access = rules.map(|rules| ("access rules", rules));
        let records = self.records().iter().map(|(key, record)| show_record(key, record)).collect::<Vec<_>>();
        let records = has_store(self).then(|| ("records", records.join("; ")));
        [("locks", locks), ("sessions", until.collect::<Vec<_>>().join(", "))]
            .into_iter()
            .chain(access)
            .chain(records)
            .collect()
    }

    /// Writes maps as lists, because a session's identity cannot be a key in JSON.
    fn data(&self) -> Value {
        let sessions = self.sessions().iter().map(|(id, session)| json!({ "id": id, "session": session }));
        let locks = self.locks().iter().map(|(key, lock)| json!({ "key": key, "lock": lock }));
        let mut data = json!({
            "next_token": self.next_token(),
            "sessions": sessions.collect::<Vec<_>>(),
            "locks": locks.collect::<Vec<_>>(),
        });
        if has_store(self) {
            let records = self.records().iter().map(|(key, record)| json!({ "key": key, "record": record }));
            data["records"] = records.collect::<Vec<_>>().into();
            data["next_version"] = json!(self.next_version());
        }
        data
    }
}

/// The table and its clients, as a table of fields.
pub(super) fn table(state: &State) -> StateTable {
    let mut rows = StateTable::default();
    let table = &*state.table;
    rows.items(
        "locks",
        table.locks().iter().map(|(key, lock)| {
            let waiter = |waiter: &Waiter| {
                let claim = kind(key, waiter.mode, &waiter.keys(key), 1, waiter.value());
                format!("{}{}{claim}", session(waiter.session), numbered(waiter.sequence))
            };
            let holder = |holder: &Holder| {
                let claim = kind(key, holder.mode, &holder.keys(key), holder.holds, holder.value());
                format!("{}{}{claim}, token {}", session(holder.session), numbered(holder.sequence), holder.token)
            };
            let waiters = lock.queue.iter().map(waiter).collect::<Vec<_>>().join(" ");
            let queue = if waiters.is_empty() { String::new() } else { format!(", {waiters} waiting") };
            let holders = lock.holders.iter().map(holder).collect::<Vec<_>>().join(" and ");
            format!("{key} held by {}{queue}", or_free(holders))
        }),
    );
    if has_store(table) {
        rows.items("records", table.records().iter().map(|(key, record)| show_record(key, record)));
        rows.fields("next version", [("", table.next_version().to_string())]);
    }
    for (id, known) in table.sessions().iter() {
        let last = numbered(known.last);
        let once = if known.once { "its lock" } else { "" };
        let fields = [("until", known.deadline.to_string()), ("did", last), ("opened for", once.to_string())];
        rows.fields(session(*id), fields);
    }
    for (number, client) in state.clients.iter().enumerate() {
        let sent = client.sent.iter().map(|sent| request_text(sent));
        let known = client.granted.iter().flatten().map(|token| format!("token {token}")).collect::<Vec<_>>();
        let fields = [("knows", known.join(", ")), ("sent", sent.collect::<Vec<_>>().join(", "))];
        rows.fields(format!("client {}", number + 1), fields);
    }
    rows.fields("cluster time", [("", state.now.to_string())]);
    rows.fields("greatest token", [("", state.greatest.to_string())]);
    if table.access().revision().0 > 0 {
        let rules = rule_list(table.access().rules().map(|rules| &**rules));
        rows.fields("access rules", [("", rules), ("revision", table.access().revision().to_string())]);
    }
    let violation = state.violation.map_or(String::new(), |violation| violation.to_string());
    rows.fields("VIOLATED", [("", violation)]);
    rows
}

/// Whether transactions were done.
fn has_store(table: &LockTable) -> bool {
    table.next_version() > Version(1)
}

/// A record in one line: `r = xy, version 3, fence 1, by s2#4`.
fn show_record(key: &Key, Record { bytes, version, fence, written }: &Record) -> String {
    let fence = fence.map_or(String::new(), |fence| format!(", fence {fence}"));
    let written =
        written.map_or(String::new(), |(id, sequence)| format!(", by {}{}", session(id), numbered(Some(sequence))));
    format!("{key} = {}, version {version}{fence}{written}", text(bytes))
}

/// The content of a record; of a long one, its length.
fn text(bytes: &Bytes) -> String {
    match bytes.len() {
        0..=20 => format!("\"{}\"", bytes.as_slice().escape_ascii()),
        length => format!("{length} bytes"),
    }
}

fn or_free(holders: String) -> String {
    if holders.is_empty() { "no session".to_string() } else { holders }
}

/// What is special about a claim on a key: nothing, if it is an exclusive one on this key alone with one hold
/// and no value.
fn kind(key: &Key, mode: Mode, keys: &Keys, holds: u32, value: Option<&lock::Value>) -> String {
    let mode = (mode != Mode::EXCLUSIVE).then(|| mode.to_string());
    let others = keys.iter().filter(|other| *other != key).map(|other| format!("with {other}"));
    let holds = (holds != 1).then(|| format!("{holds} holds"));
    let value = value.map(|value| format!("value {value}"));
    let special: Vec<String> = mode.into_iter().chain(others).chain(holds).chain(value).collect();
    if special.is_empty() { String::new() } else { format!(" ({})", special.join(", ")) }
}

/// The keys of a request, and what is special about it.
fn asked(request: &LockRequest) -> String {
    let LockRequest { keys, mode, max_queue, reentrant, value } = request;
    let mode = if *mode == Mode::EXCLUSIVE { String::new() } else { format!(" ({mode})") };
    let again = if *reentrant { " once more" } else { "" };
    let queue = match *max_queue {
        0 | LockRequest::ANY_QUEUE => String::new(),
        most => format!(" in a queue of {most}"),
    };
    let value = value.as_ref().map(|value| format!(" with value {value}")).unwrap_or_default();
    format!("{keys}{mode}{again}{queue}{value}")
}

fn by(principal: &Principal) -> String {
    if principal.is_none() { String::new() } else { format!(" {principal}") }
}

/// The changes and conditions of a transaction in one line: `r = x, if k is held with token 1`.
fn transaction_text(Transaction { conditions, changes, limit }: &Transaction) -> String {
    let change = |change: &Change| match change {
        Change::Put { record, bytes } => format!("{record} = {}", text(bytes)),
        Change::Append { record, bytes } => format!("{record} = {record} + {}", text(bytes)),
        Change::Delete { record } => format!("no {record}"),
    };
    let condition = |condition: &Condition| match condition {
        Condition::Held { lock, token } if token.0 == u64::MAX => {
            format!("if {lock} is held with a token that it knows")
        }
        Condition::Held { lock, token } => format!("if {lock} is held with token {token}"),
        Condition::Version { record, version: Some(version) } => format!("if {record} has version {version}"),
        Condition::Version { record, version: None } => format!("if there is no {record}"),
    };
    let limit = (*limit < u64::MAX).then(|| format!("in a store of {limit} bytes"));
    let parts: Vec<String> = changes.iter().map(change).chain(conditions.iter().map(condition)).chain(limit).collect();
    parts.join(", ")
}

/// The rules in one line: `everyone may acquire *, bob may nothing k*`.
fn rule_list(rules: Option<&Rules>) -> String {
    let Some(rules) = rules else { return "none, all is permitted".to_string() };
    let rule = |rule: &Rule| {
        let rights: Vec<String> = rule.rights.iter().map(|right| format!("{right:?}").to_lowercase()).collect();
        let rights = if rights.is_empty() { "nothing".to_string() } else { rights.join("+") };
        let subject = match &rule.subject {
            Subject::Everyone => "everyone".to_string(),
            Subject::Role(role) => format!("role {role}"),
            Subject::Principal(name) => name.to_string(),
        };
        format!("{subject} may {rights} {}*", rule.prefix)
    };
    if rules.rules().is_empty() {
        return "nothing is permitted".to_string();
    }
    rules.rules().iter().map(rule).collect::<Vec<_>>().join(", ")
}

fn request_text(payload: &Payload<Command>) -> String {
    match payload {
        Payload::Noop => "noop".to_string(),
        Payload::Members(_) => "members".to_string(),
        Payload::Command(command) => LockTable::command(command),
    }
}

fn operation(operation: Operation, key: &str) -> String {
    match operation {
        Operation::Wait => format!("acquire {key}, and wait for it"),
        Operation::Try => format!("acquire {key} if it is free"),
        Operation::Release => format!("release {key}"),
        Operation::Withdraw => format!("drop its claim on {key}"),
        Operation::Leave => format!("leave the queue of {key}"),
        Operation::Proclaim => format!("proclaim {PROCLAIMED} as the holder of {key}"),
        Operation::Write => format!("write {key}"),
    }
}

/// The sentence for a request that no client of the model numbers.
fn request_sentence(command: &Command) -> String {
    let sessions = |ids: &[SessionId]| ids.iter().copied().map(session).collect::<Vec<_>>().join(", ");
    let under = |sequence: &Option<Sequence>| match sequence {
        None => "without a number".to_string(),
        Some(number) => format!("with number {number}"),
    };
    let acquire = |request: &LockRequest| match request.waits() {
        true => operation(Operation::Wait, &asked(request)),
        false => operation(Operation::Try, &asked(request)),
    };
    match command {
        Command::Open { .. } => "a session is opened".to_string(),
        Command::Close { session: id } => format!("session {} is closed", session(*id)),
        Command::KeepAlive { sessions: ids } => format!("a keepalive of {} is applied", sessions(ids)),
        Command::Acquire { session: id, sequence, request } => {
            format!("a request of {} {} is applied: {}", session(*id), under(sequence), acquire(request))
        }
        Command::AcquireOnce { request, .. } => {
            format!("a request without a session is applied: {}", acquire(request))
        }
        Command::Release { session: id, sequence, keys, claim } => {
            let claim = match claim {
                Claim::Held(token) => format!("release {keys}, held with token {token}"),
                Claim::Waiting => operation(Operation::Leave, &keys.to_string()),
                Claim::Either => operation(Operation::Withdraw, &keys.to_string()),
            };
            format!("a request of {} {} is applied: {claim}", session(*id), under(sequence))
        }
        Command::Proclaim { session: id, sequence, key, token, value } => {
            let said = format!("proclaim {value} as the holder of {key} with token {token}");
            format!("a request of {} {} is applied: {said}", session(*id), under(sequence))
        }
        Command::Break { key, token, principal } => {
            format!("an operator{} breaks the lock on {key}, held with token {token}", by(principal))
        }
        Command::SetAccess { principal, revision, rules } => {
            let rules = rule_list(rules.as_deref());
            format!("an operator{} who has read revision {revision} sets the access rules: {rules}", by(principal))
        }
        Command::Transact { writer, transaction } => {
            let writer = match writer {
                Writer::Client(principal) => format!("a client{} without a session", by(principal)),
                Writer::Session { session: id, sequence } => format!("{} {}", session(*id), under(sequence)),
            };
            format!("a request of {writer} is applied: write {}", transaction_text(transaction))
        }
    }
}

impl Locks {
    /// The sentence for an action without its context.
    pub(super) fn describe(&self, action: &Action) -> String {
        match action {
            Action::Send(client, what, claim) => {
                format!("client {} sends a request: {}", client + 1, self.operation(*what, *claim))
            }
            Action::Apply(client, operation) => {
                format!("operation {} of client {} is applied", operation + 1, client + 1)
            }
            Action::Ask(request) => match &**request {
                Payload::Command(command) => request_sentence(command),
                Payload::Noop | Payload::Members(_) => request_text(request),
            },
            Action::Tick => "time passes".to_string(),
            Action::Noop => "an idle leader's no-op is applied".to_string(),
        }
    }

    fn operation(&self, what: Operation, claim: usize) -> String {
        if what == Operation::Write {
            let write = &self.bounds.writes[claim];
            let unknown = vec![Token(u64::MAX); write.held.len()];
            return operation(what, &transaction_text(&write.with(&unknown, write.first_version())));
        }
        let wanted = &self.wanted[claim];
        match what {
            Operation::Wait => operation(what, &asked(wanted)),
            Operation::Try => operation(what, &asked(&without_wait(wanted))),
            Operation::Release | Operation::Withdraw | Operation::Leave | Operation::Proclaim => {
                operation(what, &wanted.keys.to_string())
            }
            Operation::Write => unreachable!("it is no operation on a claim"),
        }
    }

    /// The sentence for an action in the state in which it is taken.
    pub(super) fn describe_in(&self, last: &State, action: &Action) -> String {
        let applied = |payload: &Payload<Command>| format!("{} is applied", request_text(payload));
        match action {
            Action::Apply(client, operation) => applied(&last.clients[*client].sent[*operation]),
            other => self.describe(other),
        }
    }

    /// An action as JSON: the applied entry and its stamp.
    pub(super) fn event_json(&self, last: &State, action: &Action) -> Value {
        let next = self.next_state(last, action.clone());
        let sent = next.as_ref().map_or(last, |next| next);
        let table = &*sent.table;
        let apply = |payload: &Payload<Command>| json!({ "kind": "apply", "stamp": last.now, "payload": payload, "table": table });
        match action {
            Action::Send(client, ..) => {
                let command = sent.clients[*client].sent.last().map(|sent| &**sent);
                json!({ "kind": "send", "client": client + 1, "payload": command })
            }
            Action::Apply(client, operation) => apply(&last.clients[*client].sent[*operation]),
            Action::Ask(request) => apply(request),
            Action::Tick => json!({ "kind": "tick", "milliseconds": 1 }),
            Action::Noop => apply(&Payload::Noop),
        }
    }

    /// Draws a path: the lock table on the left, a lifeline for each initial session, and one for
    /// all later sessions.
    pub(super) fn draw(&self, way: &[(State, Option<Action>)]) -> Option<Diagram> {
        way.first()?;
        let sessions = usize::try_from(self.bounds.sessions).expect("a number of sessions fits in usize");
        let who = if self.bounds.operations > 0 { "client" } else { "session" };
        let names = (1..=sessions).map(|number| format!("{who} {number}"));
        let others = (!self.bounds.openings.is_empty()).then(|| "later sessions".to_string());
        let mut diagram = Diagram::new(std::iter::once("lock table".to_string()).chain(names).chain(others));
        // The rows in which each client sent its requests.
        let mut sent = vec![Vec::new(); sessions];
        for (number, steps) in way.windows(2).enumerate() {
            let [(last, Some(action)), (next, _)] = steps else { continue };
            let row = diagram.row((number + 1).to_string());
            let text = self.describe_in(last, action);
            match action {
                Action::Send(client, what, claim) => {
                    sent[*client].push(row);
                    diagram.note((client + 1, row), self.operation(*what, *claim), Tone::Plain);
                }
                Action::Apply(client, operation) => {
                    let from = (client + 1, sent[*client][*operation]);
                    let label = label(&last.clients[*client].sent[*operation]);
                    diagram.detailed_arrow(from, (0, row), label, text, Fate::Arrives);
                }
                Action::Ask(request) => match requester(request) {
                    Some(number) => {
                        let from =
                            (usize::try_from(number).map_or(sessions + 1, |number| number.min(sessions + 1)), row);
                        diagram.detailed_arrow(from, (0, row), label(request), text, Fate::Arrives);
                    }
                    None => diagram.note((0, row), text, Tone::Plain),
                },
                Action::Tick => diagram.line(row, format!("cluster time {}", next.now), Tone::Plain),
                Action::Noop => diagram.note((0, row), "noop", Tone::Plain),
            }
            notes(&mut diagram, row, last, next);
        }
        Some(diagram)
    }
}

fn label(payload: &Payload<Command>) -> &'static str {
    match payload {
        Payload::Command(Command::Acquire { request, .. } | Command::AcquireOnce { request, .. }) => {
            if request.waits() { "acquire" } else { "acquire, no wait" }
        }
        Payload::Command(Command::Release { claim: Claim::Held(_), .. }) => "release",
        Payload::Command(Command::Release { claim: Claim::Waiting, .. }) => "leave the queue",
        Payload::Command(Command::Release { claim: Claim::Either, .. }) => "withdraw",
        Payload::Command(Command::Proclaim { .. }) => "proclaim",
        Payload::Command(Command::Break { .. }) => "break",
        Payload::Command(Command::SetAccess { .. }) => "set access rules",
        Payload::Command(Command::Transact { .. }) => "write",
        Payload::Command(Command::Open { .. }) => "open",
        Payload::Command(Command::Close { .. }) => "close",
        Payload::Command(Command::KeepAlive { .. }) => "keepalive",
        Payload::Noop => "noop",
        Payload::Members(_) => "members",
    }
}

/// The number of the session that sends the request; `u64::MAX` for a session that does not exist
/// yet. A stranger proves another session than the one that it names.
fn requester(payload: &Payload<Command>) -> Option<u64> {
    match payload {
        Payload::Command(
            Command::Close { session }
            | Command::Acquire { session, .. }
            | Command::Release { session, .. }
            | Command::Proclaim { session, .. }
            | Command::Transact { writer: Writer::Session { session, .. }, .. },
        ) if session.proof != proof(session.number) => None,
        Payload::Command(
            Command::Open { .. } | Command::AcquireOnce { .. } | Command::Transact { writer: Writer::Client(_), .. },
        ) => Some(u64::MAX),
        Payload::Command(
            Command::Close { session }
            | Command::Acquire { session, .. }
            | Command::Release { session, .. }
            | Command::Proclaim { session, .. }
            | Command::Transact { writer: Writer::Session { session, .. }, .. },
        ) => Some(session.number),
        Payload::Command(Command::KeepAlive { sessions }) => match sessions[..] {
            [session] if session.proof == proof(session.number) => Some(session.number),
            _ => None,
        },
        Payload::Command(Command::Break { .. } | Command::SetAccess { .. }) | Payload::Noop | Payload::Members(_) => {
            None
        }
    }
}

/// Notes the effects of a step: new grants, waiters, ended sessions, and the violation.
fn notes(diagram: &mut Diagram, row: usize, last: &State, next: &State) {
    for (key, lock) in next.table.locks().iter() {
        let held = |token| last.table.lock(key).is_some_and(|was| was.holder_with(token).is_some());
        for holder in lock.holders.iter().filter(|holder| !held(holder.token)) {
            let text = format!("{key}: token {} to {}", holder.token, session(holder.session));
            diagram.note((0, row), text, Tone::Good);
        }
    }
    for (key, lock) in next.table.locks().iter() {
        let waited = |id| last.table.lock(key).is_some_and(|was| was.queue_position(id).is_some());
        for waiter in lock.queue.iter().filter(|waiter| !waited(waiter.session)) {
            diagram.note((0, row), format!("{} waits for {key}", session(waiter.session)), Tone::Plain);
        }
    }
    for (key, record) in next.table.records().iter().filter(|(key, now)| last.table.record(key) != Some(*now)) {
        diagram.note((0, row), show_record(key, record), Tone::Good);
    }
    for key in last.table.records().keys().filter(|key| next.table.record(key).is_none()) {
        diagram.note((0, row), format!("no {key}"), Tone::Plain);
    }
    for id in last.table.sessions().keys().filter(|id| next.table.session(**id).is_none()) {
        diagram.note((0, row), format!("{} is gone", session(*id)), Tone::Bad);
    }
    if let Some(violation) = next.violation {
        let row = diagram.row("");
        diagram.line(row, format!("violated: {}", violation.property), Tone::Bad);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::layers::{EVERY_START, LOCKS, WITHOUT_WRITES};
    use crate::locks::Bounds;

    #[test]
    fn sentences_of_requests_are_distinct() {
        let (openings, unnumbered) = (&EVERY_START, &WITHOUT_WRITES);
        let (breaks, strangers) = (true, true);
        let bounds = Bounds { openings, opened: 5, keys: 2, unnumbered, breaks, strangers, revisions: 2, ..LOCKS };
        let model = Locks::new(bounds);
        let mut state = model.init_states().remove(0);
        // The most requests are possible after two locks were granted to sessions that were opened
        // for them.
        for grants in 0..=2 {
            let mut actions = Vec::new();
            model.actions(&state, &mut actions);
            let shown: BTreeSet<String> = actions.iter().map(|action| model.describe_in(&state, action)).collect();
            assert_eq!(shown.len(), actions.len(), "{shown:#?}");
            assert_eq!((state.greatest.0, state.opened), (grants, 3 + grants));
            let is_granted = |next: &State| next.greatest > state.greatest && next.opened > state.opened;
            let granted = actions.into_iter().filter_map(|action| model.next_state(&state, action)).find(is_granted);
            state = granted.unwrap_or(state);
        }
    }
}
