//! A second opinion on small histories: a sequential lock service, and a search through everything that it may have done.
//!
//! It is written from docs/protocol.md and docs/conformance.md, and shares nothing with the checkers, which share their bounds
//! with one another. It looks at all keys at once, so it knows that one counter gives out all tokens.
//!
//! **Time.** Each operation happens at one moment between its ends (an acquire that waits: it arrives at one, and is granted at
//! another). The search gives each event the earliest moment that is left: not before the event before it, not before its
//! operation's invocation, and for an expiry not before the last sign of life plus the time-to-live. Only completions bound from
//! above, so if the earliest moments do not fit, none do.
//!
//! **Tokens.** A grant takes any token that the history mentions for its key and session and that is greater than all before,
//! or one that nobody mentions.
//!
//! **What is hidden**: a session may expire, and then be swept; an acquire of unknown outcome may lose its place; each sending
//! of an operation that was sent again arrives at most once, or never. It allows too much where numbers forbid a repetition.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use palisade_conformance::history::event::DEFAULT_TTL_MS;
use palisade_conformance::history::{Answer, Call, End, History, Key, Note, Operation, Refusal, Session};

/// What the search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opinion {
    /// The service may have shown this.
    Possible,
    /// It cannot have.
    Impossible,
    /// There were more states than the budget allows.
    Undecided,
}

/// Searches at most `budget` states.
pub(crate) fn judge(history: &History, budget: usize) -> Opinion {
    let oracle = Oracle::new(history);
    let mut seen = HashSet::new();
    let mut open = vec![oracle.beginning()];
    while let Some(state) = open.pop() {
        if oracle.is_over(&state) {
            return Opinion::Possible;
        }
        if seen.len() > budget {
            return Opinion::Undecided;
        }
        let next = oracle.next(&state).into_iter().filter(|next| oracle.is_in_time(next));
        open.extend(next.filter(|next| seen.insert(next.clone())));
    }
    Opinion::Impossible
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    last_token: u64,
    leases: Vec<Lease>,
    locks: BTreeMap<Key, Lock>,
    stages: Vec<Stage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lease {
    /// `None` as long as nobody was shown the name.
    name: Option<Session>,
    ttl: u64,
    deadline: u64,
    /// It is due or ended: it cannot act.
    is_gone: bool,
    /// It ends with its last claim.
    once: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Lock {
    holder: Option<(usize, u64)>,
    queue: Vec<usize>,
}

/// How far an operation has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stage {
    /// How many of its sendings are under way.
    sendings: usize,
    /// For an acquire without a session: the one that it opened.
    lease: Option<usize>,
    /// For an acquire: it stands in the queue.
    waits: bool,
    /// For an acquire: the token that it was granted.
    token: Option<u64>,
    /// It was noted that it waits, as the history has it.
    noted: bool,
    /// What was answered has happened.
    done: bool,
}

struct Oracle<'h> {
    history: &'h History,
    /// Of each token: its key, and its session if anything says it. A token that has two is one that nobody is granted.
    tokens: BTreeMap<u64, BTreeSet<(Key, Option<Session>)>>,
    /// Sessions that no answer introduced.
    strays: BTreeSet<Session>,
    last: u64,
}

impl<'h> Oracle<'h> {
    fn new(history: &'h History) -> Oracle<'h> {
        let mut tokens: BTreeMap<u64, BTreeSet<(Key, Option<Session>)>> = BTreeMap::new();
        let (mut strays, mut known) = (BTreeSet::new(), BTreeSet::new());
        let mut last = 0;
        for operation in &history.operations {
            last = last.max(operation.invoked.0).max(operation.end.as_ref().map_or(0, |(time, _)| time.0));
            strays.extend(operation.call.session().cloned());
            let key = operation.call.key();
            let mention = match (&operation.call, operation.end.as_ref().map(|(_, end)| end)) {
                (Call::Release { token, session, .. }, Some(End::Ok(_))) => Some((*token, Some(session))),
                (_, Some(End::Ok(Answer::Granted { session, token }))) => {
                    known.extend(operation.call.session().is_none().then(|| session.clone()));
                    Some((*token, Some(session)))
                }
                (_, Some(End::Ok(Answer::Opened { session }))) => {
                    known.insert(session.clone());
                    None
                }
                (_, Some(End::Ok(Answer::Lock { holder, queue, .. }))) => {
                    strays.extend(queue.iter().cloned().chain(holder.iter().map(|holder| holder.session.clone())));
                    holder.as_ref().map(|holder| (holder.token, Some(&holder.session)))
                }
                (_, Some(End::Fail(Refusal::Held { token }))) => Some((*token, None)),
                _ => None,
            };
            if let (Some(key), Some((token, session))) = (key, mention) {
                tokens.entry(token).or_default().insert((key.clone(), session.cloned()));
            }
        }
        let strays = strays.difference(&known).cloned().collect();
        Oracle { history, tokens, strays, last }
    }

    fn beginning(&self) -> State {
        let stage = |operation: &Operation| {
            let never_taken = matches!(operation.refusal(), Some(Refusal::NotTaken { .. }));
            let sendings = if never_taken { 0 } else { sendings(operation) };
            Stage { sendings, lease: None, waits: false, token: None, noted: false, done: never_taken }
        };
        let keys = self.history.operations.iter().filter_map(|operation| operation.call.key());
        State {
            now: 0,
            last_token: 0,
            leases: Vec::new(),
            locks: keys.map(|key| (key.clone(), Lock::default())).collect(),
            stages: self.history.operations.iter().map(stage).collect(),
        }
    }

    fn is_over(&self, state: &State) -> bool {
        self.history.operations.iter().zip(&state.stages).all(|(operation, stage)| {
            let answered = matches!(operation.end, Some((_, End::Ok(_) | End::Fail(_))));
            !answered || stage.done
        }) && self.notes(state, u64::MAX)
    }

    /// Nothing was answered before it happened.
    fn is_in_time(&self, state: &State) -> bool {
        let late = |(operation, stage): (&Operation, &Stage)| operation.completed().0 < state.now && !stage.done;
        !self.history.operations.iter().zip(&state.stages).any(late) && self.notes(state, state.now)
    }

    fn notes(&self, state: &State, by: u64) -> bool {
        self.history.operations.iter().zip(&state.stages).all(|(operation, stage)| {
            let due = operation.notes.iter().any(|(time, note)| matches!(note, Note::Queued { .. }) && time.0 < by);
            !due || stage.noted
        })
    }

    /// Whatever may happen next.
    fn next(&self, state: &State) -> Vec<State> {
        let mut next = Vec::new();
        for place in 0..self.history.operations.len() {
            self.arrive(state, place, &mut next);
            self.leave(state, place, &mut next);
        }
        for lease in 0..state.leases.len() {
            let Lease { is_gone, deadline, .. } = state.leases[lease];
            let mut state = state.clone();
            if is_gone {
                if state.has_claim(lease) {
                    next.extend(self.end(state, lease));
                }
            } else if deadline < self.last {
                state.now = state.now.max(deadline);
                state.leases[lease].is_gone = true;
                next.push(state);
            }
        }
        next
    }

    /// A sending arrives.
    fn arrive(&self, state: &State, place: usize, next: &mut Vec<State>) {
        let operation = &self.history.operations[place];
        let now = state.now.max(operation.invoked.0);
        let Stage { sendings, done, .. } = state.stages[place];
        let refused = done && operation.refusal().is_some();
        if sendings == 0 || refused || (now > operation.completed().0 && !operation.was_disconnected()) {
            return;
        }
        let mut state = State { now, ..state.clone() };
        state.stages[place].sendings -= 1;
        match &operation.call {
            Call::OpenSession { ttl_ms } => {
                let Some(Answer::Opened { session }) = operation.answer() else { return };
                state.open(Some(session.clone()), self.history.at_least(*ttl_ms), false);
                next.extend(self.answer(state, place, true));
            }
            Call::KeepAlive { session } => {
                let lease = state.find(session);
                let lives = !state.leases[lease].is_gone;
                if lives {
                    state.shows_life(lease);
                }
                next.extend(self.answer(state, place, lives == operation.answer().is_some()));
            }
            Call::CloseSession { session } => {
                let lease = state.find(session);
                state.leases[lease].is_gone = true;
                next.extend(self.end(state, lease).into_iter().filter_map(|state| self.answer(state, place, true)));
            }
            Call::Withdraw { session, key, .. } => {
                let lease = state.find(session);
                for state in self.end_due_holder(state, key) {
                    let states =
                        if state.leases[lease].is_gone { vec![state] } else { self.drop_claim(state, lease, key) };
                    next.extend(states.into_iter().filter_map(|state| self.answer(state, place, true)));
                }
            }
            Call::Release { session, key, token, .. } => {
                let lease = state.find(session);
                for state in self.end_due_holder(state, key) {
                    let holds = state.locks[key].holder == Some((lease, *token));
                    let states = if holds { self.drop_claim(state, lease, key) } else { vec![state] };
                    let fits = holds == operation.answer().is_some();
                    next.extend(states.into_iter().filter_map(|state| self.answer(state, place, fits)));
                }
            }
            Call::Read { key, .. } => {
                let fits = self.shows(&mut state, key, operation);
                next.extend(self.answer(state, place, fits));
            }
            Call::Acquire { key, session, wait_ms, ttl_ms, .. } => match session {
                Some(session) => {
                    let lease = state.find(session);
                    self.ask(state, place, lease, key, *wait_ms > 0, next);
                }
                None => {
                    let ttl = self.history.at_least(ttl_ms.unwrap_or(DEFAULT_TTL_MS));
                    for name in self.names(&state, operation) {
                        let mut state = state.clone();
                        let lease = state.open(name, ttl, true);
                        state.stages[place].lease = Some(lease);
                        self.ask(state, place, lease, key, *wait_ms > 0, next);
                    }
                }
            },
            Call::Access { .. } | Call::NoteLoss { .. } => next.extend(self.answer(state, place, true)),
        }
    }

    /// The names that the session of an acquire without one may have.
    fn names(&self, state: &State, operation: &Operation) -> Vec<Option<Session>> {
        let taken: BTreeSet<&Session> = state.leases.iter().filter_map(|lease| lease.name.as_ref()).collect();
        let free = self.strays.iter().filter(|name| !taken.contains(name)).cloned().map(Some).chain([None]);
        match operation.answer() {
            Some(Answer::Granted { session, .. }) if operation.was_disconnected() => {
                free.chain([Some(session.clone())]).collect()
            }
            Some(Answer::Granted { session, .. }) => vec![Some(session.clone())],
            _ => free.collect(),
        }
    }

    /// What was seen of an operation has happened, or contradicts what was seen. What nobody knows may be anything.
    fn answer(&self, mut state: State, place: usize, fits: bool) -> Option<State> {
        let operation = &self.history.operations[place];
        if operation.answer().is_none() && operation.refusal().is_none() {
            return Some(state);
        }
        state.stages[place].done = true;
        fits.then_some(state)
    }

    /// An acquire arrives.
    fn ask(&self, state: State, place: usize, lease: usize, key: &Key, wait: bool, next: &mut Vec<State>) {
        let operation = &self.history.operations[place];
        for mut state in self.end_due_holder(state, key) {
            if state.leases[lease].is_gone {
                let refused = operation.refusal() == Some(&Refusal::NoSession);
                state.stages[place].done |= refused && state.stages[place].token.is_none();
                next.push(state);
                continue;
            }
            let lock = &state.locks[key];
            let queued = lock.queue.iter().position(|waiter| *waiter == lease);
            match (lock.holder, queued) {
                (None, _) => {
                    state.stages[place].waits = true;
                    next.extend(self.grant(state, lease, key));
                }
                (Some((holder, token)), _) if holder == lease => {
                    state.shows_life(lease);
                    state.stages[place].token = Some(token);
                    next.extend(self.told(state));
                }
                (Some((_, token)), _) if !wait => {
                    if queued.is_some() {
                        next.extend(self.drop_claim(state.clone(), lease, key).into_iter().map(|mut state| {
                            state.stages[place].done |= operation.refusal() == Some(&Refusal::Held { token });
                            state
                        }));
                        continue;
                    }
                    state.stages[place].done |= operation.refusal() == Some(&Refusal::Held { token });
                    next.push(state);
                }
                _ => {
                    let ahead = queued.unwrap_or(lock.queue.len());
                    if queued.is_none() {
                        state.locks.get_mut(key).expect("the key is on record").queue.push(lease);
                    }
                    state.stages[place].waits = true;
                    state.stages[place].noted |= operation.notes.iter().any(|(time, note)| match note {
                        Note::Queued { ahead: said } => {
                            time.0 >= state.now && said.is_none_or(|said| said == ahead as u64)
                        }
                        Note::Disconnected => false,
                    });
                    next.push(state);
                }
            }
        }
    }

    /// What may become of an acquire that waits, or has lost its place.
    fn leave(&self, state: &State, place: usize, next: &mut Vec<State>) {
        let operation = &self.history.operations[place];
        let Call::Acquire { key, session, wait_ms, .. } = &operation.call else { return };
        let Stage { waits, token, done, lease, .. } = state.stages[place];
        let has_arrived = state.stages[place].sendings < sendings(operation);
        let lease = lease.or_else(|| session.as_ref().and_then(|name| state.named(name)));
        let (Some(lease), None, true) = (lease, token, has_arrived) else { return };
        let mut state = state.clone();
        match operation.refusal() {
            Some(Refusal::Timeout) if waits && !done => {
                let over = operation.invoked.0 + self.history.at_least(*wait_ms);
                state.now = state.now.max(over.min(operation.completed().0));
                state.stages[place].done = true;
                next.extend(self.drop_claim(state, lease, key));
            }
            Some(Refusal::Withdrawn) if !waits && !done => {
                state.stages[place].done = true;
                next.push(state);
            }
            Some(Refusal::NoSession) if state.leases[lease].is_gone && !done => {
                state.stages[place].done = true;
                next.push(state);
            }
            None if waits && (operation.answer().is_none() || operation.was_disconnected()) => {
                next.extend(self.drop_claim(state, lease, key));
            }
            Some(_) if waits && operation.was_disconnected() => next.extend(self.drop_claim(state, lease, key)),
            _ => {}
        }
    }

    /// Whether a read shows the lock as it is. Names that nobody had seen are learned.
    fn shows(&self, state: &mut State, key: &Key, operation: &Operation) -> bool {
        let Some(Answer::Lock { holder, queue, .. }) = operation.answer() else { return true };
        let lock = state.locks[key].clone();
        let tokens = holder.as_ref().map(|holder| holder.token) == lock.holder.map(|(_, token)| token);
        let shown = holder.iter().map(|holder| &holder.session).chain(queue);
        let there: Vec<usize> = lock.holder.iter().map(|(lease, _)| *lease).chain(lock.queue).collect();
        tokens
            && there.len() == usize::from(holder.is_some()) + queue.len()
            && there.into_iter().zip(shown).all(|(lease, name)| state.is_called(lease, name))
    }

    fn end_due_holder(&self, state: State, key: &Key) -> Vec<State> {
        match state.locks[key].holder {
            Some((holder, _)) if state.leases[holder].is_gone => self.drop_claim(state, holder, key),
            _ => vec![state],
        }
    }

    /// A session ends everywhere.
    fn end(&self, state: State, lease: usize) -> Vec<State> {
        let keys: Vec<Key> = state.locks.keys().cloned().collect();
        keys.iter().fold(vec![state], |states, key| {
            states.into_iter().flat_map(|state| self.drop_claim(state, lease, key)).collect()
        })
    }

    fn drop_claim(&self, mut state: State, lease: usize, key: &Key) -> Vec<State> {
        let lock = state.locks.get_mut(key).expect("the key is on record");
        lock.queue.retain(|waiter| *waiter != lease);
        let held = lock.holder.is_some_and(|(holder, _)| holder == lease);
        for place in 0..state.stages.len() {
            if state.is_waiter(&self.history.operations[place], place, lease, key) {
                state.stages[place].waits = false;
            }
        }
        if !held {
            state.end_once(lease);
            return vec![state];
        }
        let lock = state.locks.get_mut(key).expect("the key is on record");
        lock.holder = None;
        // Waiters that are due are passed over, and lose their place.
        let passed = lock.queue.iter().take_while(|waiter| state.leases[**waiter].is_gone).count();
        let passed: Vec<usize> = lock.queue.drain(..passed).collect();
        let granted = (!lock.queue.is_empty()).then(|| lock.queue.remove(0));
        for place in 0..state.stages.len() {
            let operation = &self.history.operations[place];
            if passed.iter().any(|waiter| state.is_waiter(operation, place, *waiter, key)) {
                state.stages[place].waits = false;
            }
        }
        state.end_once(lease);
        match granted {
            Some(first) => self.grant(state, first, key),
            None => vec![state],
        }
    }

    /// With each token that it may have.
    fn grant(&self, state: State, lease: usize, key: &Key) -> Vec<State> {
        let of = |mentions: &BTreeSet<(Key, Option<Session>)>| {
            mentions.iter().all(|(of, session)| {
                let name = &state.leases[lease].name;
                of == key && (session.is_none() || name.is_none() || session == name)
            })
        };
        let after = state.last_token + 1;
        let hidden = (after..).find(|token| !self.tokens.contains_key(token));
        let mentioned = self.tokens.range(after..).filter(|(_, mentions)| of(mentions)).map(|(token, _)| *token);
        let granted = mentioned.chain(hidden).map(|token| {
            let mut state = state.clone();
            state.last_token = token;
            state.shows_life(lease);
            state.locks.get_mut(key).expect("the key is on record").holder = Some((lease, token));
            for place in 0..state.stages.len() {
                if state.is_waiter(&self.history.operations[place], place, lease, key) {
                    state.stages[place].waits = false;
                    state.stages[place].token = Some(token);
                }
            }
            state
        });
        granted.filter_map(|state| self.told(state)).collect()
    }

    /// Acquires that are granted are told so: the answers must have these tokens.
    fn told(&self, mut state: State) -> Option<State> {
        for (operation, stage) in self.history.operations.iter().zip(&mut state.stages) {
            let Some(granted) = stage.token.filter(|_| !stage.done) else { continue };
            match (operation.answer(), operation.refusal()) {
                (Some(Answer::Granted { token, .. }), _) if *token == granted => stage.done = true,
                // One of several sendings, perhaps.
                (Some(_), _) if operation.was_disconnected() => stage.token = None,
                (None, None) => {}
                _ => return None,
            }
        }
        Some(state)
    }
}

fn sendings(operation: &Operation) -> usize {
    1 + operation.notes.iter().filter(|(_, note)| *note == Note::Disconnected).count()
}

impl State {
    fn named(&self, name: &Session) -> Option<usize> {
        self.leases.iter().position(|lease| lease.name.as_ref() == Some(name))
    }

    /// Nobody knows when a session that is on record without its opening may expire.
    fn find(&mut self, name: &Session) -> usize {
        self.named(name).unwrap_or_else(|| self.open(Some(name.clone()), 0, false))
    }

    fn open(&mut self, name: Option<Session>, ttl: u64, once: bool) -> usize {
        self.leases.push(Lease { name, ttl, deadline: self.now.saturating_add(ttl), is_gone: false, once });
        self.leases.len() - 1
    }

    fn shows_life(&mut self, lease: usize) {
        let lease = &mut self.leases[lease];
        lease.deadline = lease.deadline.max(self.now.saturating_add(lease.ttl));
    }

    fn has_claim(&self, lease: usize) -> bool {
        let has = |lock: &Lock| lock.holder.is_some_and(|(holder, _)| holder == lease) || lock.queue.contains(&lease);
        self.locks.values().any(has)
    }

    fn end_once(&mut self, lease: usize) {
        if self.leases[lease].once && !self.has_claim(lease) {
            self.leases[lease].is_gone = true;
        }
    }

    fn is_waiter(&self, operation: &Operation, place: usize, lease: usize, of: &Key) -> bool {
        let Call::Acquire { key, session, .. } = &operation.call else { return false };
        let own = self.stages[place].lease.or_else(|| session.as_ref().and_then(|name| self.named(name)));
        self.stages[place].waits && key == of && own == Some(lease)
    }

    fn is_called(&mut self, lease: usize, name: &Session) -> bool {
        if self.leases[lease].name.is_none() && self.named(name).is_none() {
            self.leases[lease].name = Some(name.clone());
        }
        self.leases[lease].name.as_ref() == Some(name)
    }
}
