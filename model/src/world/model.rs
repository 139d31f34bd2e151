//! A cluster as a [`stateright::Model`]: every step of the model is one step of the spec, its outputs carried out in
//! order, and the adversary chooses which.

use std::sync::Arc;

use palisade_spec::invariants::{Violation, log_matching};
use palisade_spec::raft::{Body, Config, Durable, Message, NodeId, Term};
use smallvec::SmallVec;
use stateright::{Model, Property};

use super::action::Action;
use super::bounds::{Answers, Bounds, Elections, Repeats};
use super::digest::renamings;
use super::environment::Environment;
use super::ghost::Ghost;
use super::intern::Ref;
use super::kept::{Crashed, Kept, Stepped, keep};
use super::seat::{Applied, Seat, Stimulus};
use super::state::{CommandOf, State};
use crate::readable::{Readable, Representative};

/// A model of a cluster in an environment.
pub struct World<E: Environment> {
    /// What is explored.
    pub bounds: Bounds,
    initial: Vec<State<E>>,
    kept: Kept<E>,
}

impl<E: Environment> World<E> {
    /// A cluster of blank servers (or one that has a leader already), in an environment.
    pub fn new(bounds: Bounds, machine: E::Machine, environment: E) -> World<E> {
        let ids: Vec<NodeId> = (1..=bounds.servers).map(NodeId).collect();
        let all = renamings(bounds.servers);
        let renamings = if bounds.symmetry { all } else { all[..1].to_vec() };
        let kept = Kept::new(bounds.elections, renamings);
        let seats = ids.iter().map(|&id| {
            let disk = Durable::blank(machine.clone());
            kept.recover(Config::new(id, ids.clone()), disk)
        });
        let repeats = match bounds.repeats {
            Repeats::AtMost(count) => count,
            Repeats::Unlimited => 0,
        };
        let state = State {
            servers: seats.collect(),
            network: SmallVec::new(),
            ghost: kept.ghost(Ghost::new(machine)),
            environment: kept.environments.intern(environment, &kept.renamings),
            crashes: bounds.crashes,
            repeats,
            heartbeats: bounds.heartbeats.unwrap_or(0),
            violation: None,
            canonical: None,
        };
        let mut world = World { bounds, initial: vec![state], kept };
        if world.bounds.seeded {
            world.elect_first();
        }
        world
    }

    /// Lets server 1 win term 1, with all messages delivered, and forgets nothing of it.
    fn elect_first(&mut self) {
        let mut state = self.initial[0].clone();
        let network = std::mem::replace(&mut self.bounds.network, usize::MAX);
        let appends = std::mem::replace(&mut self.bounds.appends, usize::MAX);
        let heartbeats = self.bounds.heartbeats.take();
        let step = |server, stimulus| Action::Step { server, stimulus, again: false, unheard: false, crash: None };
        let go = |state: &State<E>, action| self.next_state(state, action).expect("every step is possible");
        let first = NodeId(1);
        state = go(&state, step(first, Stimulus::Campaign));
        // The heartbeat tells everybody that the no-op is committed.
        for heartbeat in [false, true] {
            if heartbeat {
                state = go(&state, step(first, Stimulus::HeartbeatTimeout));
            }
            while let Some(&message) = state.network.first() {
                state = go(&state, step(message.to, Stimulus::Deliver(message)));
            }
        }
        assert!(state.violation.is_none(), "the first election went wrong: {:?}", state.violation);
        (self.bounds.network, self.bounds.appends, self.bounds.heartbeats) = (network, appends, heartbeats);
        self.initial = vec![state];
    }

    /// How many different parts there are: servers, messages, histories, environments.
    pub fn parts(&self) -> [usize; 4] {
        let kept = &self.kept;
        [kept.seats.count(), kept.messages.count(), kept.ghosts.count(), kept.environments.count()]
    }

    /// The state that stands for all that can be renamed into it.
    pub fn representative(state: &State<E>) -> State<E> {
        let least = (0..state.ghost.renamings()).map(|renaming| state.digest(renaming)).min();
        State { canonical: least, ..state.clone() }
    }

    fn step_of(&self, state: &State<E>, server: NodeId, stimulus: Stimulus<CommandOf<E>>) -> Arc<Stepped<E>> {
        self.kept.step(state.server(server), stimulus)
    }

    fn push(
        &self,
        state: &State<E>,
        server: NodeId,
        stimulus: Stimulus<CommandOf<E>>,
        again: bool,
        to: &mut Vec<Action<E>>,
    ) {
        let travels = self.bounds.answers == Answers::Messages;
        if travels && state.crashes == 0 {
            return to.push(Action::Step { server, stimulus, again, unheard: false, crash: None });
        }
        let stepped = self.step_of(state, server, stimulus);
        let places = |crashes: &[Crashed<E>]| if state.crashes > 0 { crashes.len() } else { 0 };
        let own = places(&stepped.crashes);
        let answer = if travels { None } else { stepped.said.iter().find(|message| is_answer(&message.body)) };
        let hears = |answer: &&Ref<Message<CommandOf<E>>>| state.environment.may_act(&state.server(answer.to).node);
        if let Some(answer) = answer.filter(hears) {
            let heard = self.step_of(state, answer.to, Stimulus::Deliver(*answer));
            let all = own + places(&heard.crashes);
            to.push(Action::Step { server, stimulus, again, unheard: false, crash: None });
            to.extend((own..all).map(|place| Action::Step {
                server,
                stimulus,
                again,
                unheard: false,
                crash: Some(place),
            }));
        }
        let unheard = answer.is_some();
        to.push(Action::Step { server, stimulus, again, unheard, crash: None });
        to.extend((0..own).map(|place| Action::Step { server, stimulus, again, unheard, crash: Some(place) }));
    }

    fn server_actions(&self, state: &State<E>, server: NodeId, actions: &mut Vec<Action<E>>) {
        let node = &state.server(server).node;
        if state.crashes > 0 {
            actions.push(Action::Crash(server));
        }
        if !state.environment.may_act(node) {
            return;
        }
        let term_left = node.term() < Term(self.bounds.terms) && node.log().last().index.0 < self.bounds.log;
        match self.bounds.elections {
            Elections::AtWill if term_left && !node.is_leader() => {
                self.push(state, server, Stimulus::Campaign, false, actions);
            }
            Elections::StepByStep if term_left || node.is_leader() => {
                self.push(state, server, Stimulus::ElectionTimeout, false, actions);
            }
            _ => {}
        }
        if node.is_leader() && (self.bounds.heartbeats.is_none() || state.heartbeats > 0) {
            self.push(state, server, Stimulus::HeartbeatTimeout, false, actions);
        }
    }

    /// Where messages are prompt: what becomes of the first one.
    fn prompt_actions(&self, state: &State<E>, message: Ref<Message<CommandOf<E>>>, actions: &mut Vec<Action<E>>) {
        if state.environment.may_act(&state.server(message.to).node) {
            self.push(state, message.to, Stimulus::Deliver(message), false, actions);
        }
        actions.push(Action::Lose(message));
    }

    fn network_actions(&self, state: &State<E>, actions: &mut Vec<Action<E>>) {
        let crowded = state.network.len() + usize::from(self.bounds.servers) > self.bounds.network + 1;
        for (place, &message) in state.network.iter().enumerate() {
            if place > 0 && state.network[place - 1] == message {
                continue;
            }
            if state.environment.may_act(&state.server(message.to).node) {
                let stimulus = Stimulus::Deliver(message);
                let unlimited = self.bounds.repeats == Repeats::Unlimited;
                self.push(state, message.to, stimulus, unlimited, actions);
                if state.repeats > 0 {
                    self.push(state, message.to, stimulus, true, actions);
                }
            }
            let fills_its_link = class(&message.body) != Class::Vote && self.bounds.appends > 1;
            if crowded || fills_its_link {
                actions.push(Action::Lose(message));
            }
        }
    }

    /// The server has taken a step: its new seat, and what it said, become part of the state.
    fn accept(
        &self,
        state: &mut State<E>,
        server: NodeId,
        stepped: &Stepped<E>,
        unheard: bool,
        crash: Option<usize>,
    ) -> Option<()> {
        let own = stepped.crashes.len();
        let (crash, later) = crash
            .map_or((None, None), |place| if place < own { (Some(place), None) } else { (None, Some(place - own)) });
        let old = state.server(server);
        let place = usize::from(server.0) - 1;
        let crashed = match crash {
            Some(place) => Some(stepped.crashes.get(place)?),
            None => None,
        };
        state.servers[place] = crashed.map_or(stepped.seat, |crashed| crashed.seat);
        let said = crashed.map_or(stepped.said.len(), |crashed| crashed.said);
        let mut answer = None;
        for &message in &stepped.said[..said] {
            if self.bounds.answers == Answers::AtOnce && is_answer(&message.body) {
                answer = Some(message).filter(|_| !unheard);
            } else {
                self.send(state, message);
            }
        }
        if crash.is_some() {
            state.crashes -= 1;
        } else {
            state.violation = state.violation.or(stepped.violation);
        }
        if state.violation.is_none() {
            self.observe(state, old, server, if crash.is_none() { &stepped.applied } else { &[] });
        }
        if let Some(answer) = answer.filter(|_| state.violation.is_none()) {
            let heard = self.step_of(state, answer.to, Stimulus::Deliver(answer));
            return self.accept(state, answer.to, &heard, false, later);
        }
        self.discard_spent(state);
        self.fits(state).then_some(())
    }

    /// Puts a message on its way. Where a link has room for one AppendEntries, and for one answer, a newer one takes
    /// the place of an older one, which is lost: had it arrived, it could as well have done so before.
    fn send(&self, state: &mut State<E>, message: Ref<Message<CommandOf<E>>>) {
        let class = class(&message.body);
        if class != Class::Vote && self.bounds.appends == 1 {
            state.network.retain(|other| {
                (other.from, other.to) != (message.from, message.to) || self::class(&other.body) != class
            });
        }
        state.send(message);
    }

    /// Whether what is on its way is no more than there may be.
    fn fits(&self, state: &State<E>) -> bool {
        let limit = self.bounds.appends;
        let crowds = |message: &Ref<Message<CommandOf<E>>>| {
            let class = class(&message.body);
            let alike = state.network.iter().filter(|other| {
                (other.from, other.to) == (message.from, message.to) && self::class(&other.body) == class
            });
            class != Class::Vote && alike.count() > limit
        };
        state.network.len() <= self.bounds.network && !state.network.iter().any(crowds)
    }

    /// Replies that would change nothing where they go. An answer that means nothing now never will: it is to a
    /// question of a term, and a server does not return to a term, nor to a role in it.
    fn discard_spent(&self, state: &mut State<E>) {
        let servers = &state.servers;
        let spent = |message: &mut Ref<Message<CommandOf<E>>>| {
            let seat = servers[usize::from(message.to.0) - 1];
            is_answer(&message.body) && message.term <= seat.disk.hard.term && {
                let stepped = self.kept.step(seat, Stimulus::Deliver(*message));
                stepped.seat == seat && stepped.said.is_empty() && stepped.violation.is_none()
            }
        };
        state.network.retain(|message| !spent(message));
    }

    /// Everything that is true of histories and of pairs of servers.
    fn observe(
        &self,
        state: &mut State<E>,
        old: Ref<Seat<E::Machine>>,
        server: NodeId,
        applied: &[Applied<E::Machine>],
    ) {
        let new = state.server(server);
        if let Err(violation) = self.observed(state, old, new, applied) {
            state.violation = Some(violation);
        }
    }

    fn observed(
        &self,
        state: &mut State<E>,
        old: Ref<Seat<E::Machine>>,
        new: Ref<Seat<E::Machine>>,
        applied: &[Applied<E::Machine>],
    ) -> Result<(), &'static Violation> {
        if old == new && applied.is_empty() {
            return Ok(());
        }
        if old.node.log() != new.node.log() {
            for other in state.servers.iter().filter(|other| **other != new) {
                log_matching(new.node.log(), other.node.log()).map_err(keep)?;
            }
        }
        let elected = new.node.is_leader() && !(old.node.is_leader() && old.node.term() == new.node.term());
        if elected || !applied.is_empty() {
            let before = state.ghost;
            state.ghost = self.kept.remembered(before, old, new, elected)?;
            if state.ghost.committed.len() > before.committed.len() {
                state.servers.iter().try_for_each(|seat| state.ghost.completeness(&seat.node)).map_err(keep)?;
            }
        }
        state.environment = self.kept.seen(state.environment, old, new, applied)?;
        self.kept.judged(state.environment, state.ghost)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Vote,
    Append,
    Answer,
}

fn is_answer<C>(body: &Body<C>) -> bool {
    !matches!(body, Body::PreVote { .. } | Body::RequestVote { .. } | Body::AppendEntries { .. })
}

fn class<C>(body: &Body<C>) -> Class {
    match body {
        Body::PreVote { .. } | Body::PreVoteReply { .. } | Body::RequestVote { .. } | Body::RequestVoteReply { .. } => {
            Class::Vote
        }
        Body::AppendEntries { .. } => Class::Append,
        Body::AppendAccepted { .. } | Body::AppendRejected { .. } => Class::Answer,
    }
}

impl<E: Environment> Model for World<E> {
    type State = State<E>;
    type Action = Action<E>;

    fn properties(&self) -> Vec<Property<World<E>>> {
        E::properties()
    }

    fn init_states(&self) -> Vec<State<E>> {
        self.initial.clone()
    }

    fn actions(&self, state: &State<E>, actions: &mut Vec<Action<E>>) {
        if state.violation.is_some() {
            return;
        }
        if let Some(&message) = state.network.first().filter(|_| self.bounds.prompt) {
            return self.prompt_actions(state, message, actions);
        }
        for server in (1..=self.bounds.servers).map(NodeId) {
            self.server_actions(state, server, actions);
        }
        self.network_actions(state, actions);
        let mut moves = Vec::new();
        state.environment.moves(&state.servers, &mut moves);
        for chosen in moves {
            actions.push(Action::Move { chosen: chosen.clone(), crash: None });
            if state.crashes > 0
                && let Some((server, stimulus)) = self.kept.moved(state.environment, &chosen).1
            {
                let places = self.step_of(state, server, stimulus).crashes.len();
                actions.extend((0..places).map(|place| Action::Move { chosen: chosen.clone(), crash: Some(place) }));
            }
        }
    }

    fn next_state(&self, last: &State<E>, action: Action<E>) -> Option<State<E>> {
        let mut state = last.clone();
        match action {
            Action::Step { server, stimulus, again, unheard, crash } => {
                if let Stimulus::Deliver(message) = stimulus {
                    if !again {
                        let place = state.network.iter().position(|other| *other == message)?;
                        state.network.remove(place);
                    } else if self.bounds.repeats != Repeats::Unlimited {
                        state.repeats -= 1;
                    }
                }
                if matches!(stimulus, Stimulus::HeartbeatTimeout) && self.bounds.heartbeats.is_some() {
                    state.heartbeats -= 1;
                }
                let stepped = self.step_of(&state, server, stimulus);
                self.accept(&mut state, server, &stepped, unheard, crash)?;
            }
            Action::Crash(server) => {
                let seat = state.server(server);
                let recovered = self.kept.recover(seat.node.config().clone(), seat.disk.clone());
                if recovered == seat {
                    return None;
                }
                state.servers[usize::from(server.0) - 1] = recovered;
                state.crashes -= 1;
                self.observe(&mut state, seat, server, &[]);
                self.discard_spent(&mut state);
            }
            Action::Lose(message) => {
                let place = state.network.iter().position(|other| *other == message)?;
                state.network.remove(place);
            }
            Action::Move { chosen, crash } => {
                let moved = self.kept.moved(state.environment, &chosen);
                let asked = moved.1;
                state.environment = moved.0;
                state.violation = self.kept.judged(state.environment, state.ghost).err();
                if let Some((server, stimulus)) = asked {
                    let stepped = self.step_of(&state, server, stimulus);
                    self.accept(&mut state, server, &stepped, false, crash)?;
                }
            }
        }
        (state != *last).then_some(state)
    }
}

impl<E: Environment> Readable for World<E> {
    const REPRESENTATIVE: Option<Representative<State<E>>> = Some(World::representative);
}
