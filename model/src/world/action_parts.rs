//! The parts of an action: the servers that take part, the messages they send, and the fate of each
//! message.

use std::collections::VecDeque;

use palisade_spec::raft::{Message, NodeId};

use super::action::{Action, Fault};
use super::driver::{Crash, NodeStep};
use super::environment::Environment;
use super::intern::Ref;
use super::replica::{Replica, Stimulus};
use super::setup::World;
use super::state::State;
use super::step::FaultCount;

/// One server's part in an action. With prompt delivery an action has several turns.
pub(super) struct Turn<E: Environment> {
    pub(super) server: NodeId,
    pub(super) stimulus: Stimulus<E::Machine>,
    /// The turn that sent the message which arrives in this one, if it was sent within the action.
    pub(super) cause: Option<usize>,
    pub(super) before: Ref<Replica<E::Machine>>,
    pub(super) after: Ref<Replica<E::Machine>>,
    pub(super) node_steps: Vec<NodeStep<E::Machine>>,
    pub(super) crash: Option<Crash<E::Machine>>,
    /// The messages that the server sent, in order.
    pub(super) sent: Vec<(Ref<Message<E::Machine>>, MessageFate)>,
}

impl<E: Environment> Turn<E> {
    /// Whether the server crashes and stays away, partitioned from the others.
    pub(super) fn stays_away(&self) -> bool {
        self.after.cut && !self.before.cut
    }
}

/// The fate of a message within the action in which it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageFate {
    /// The message stays in the network.
    Travels,
    /// The message arrives, in a turn of its own.
    Arrives,
    /// The message arrives, and a copy stays in the network, to arrive once more.
    ArrivesAndTravels,
    /// The message is lost.
    Lost,
    /// The sender or the receiver is partitioned.
    CutOff,
}

impl<E: Environment> World<E> {
    /// The turns of an action, in order.
    pub(super) fn turns(&self, last: &State<E>, action: &Action<E>) -> Vec<Turn<E>> {
        let mut state = last.clone();
        let (first, fault) = match action {
            Action::Step { server, stimulus, fault, .. } => ((*server, *stimulus), *fault),
            Action::Move { chosen, fault } => {
                let moved = self.caches.moved(last.environment, chosen);
                state.environment = moved.0;
                state.violation = self.caches.check_environment(state.environment, state.history).err();
                let Some(request) = moved.1 else { return Vec::new() };
                (request, *fault)
            }
            Action::Crash(_) | Action::Snapshot(_) | Action::Lose(_) | Action::Cut(_) | Action::Heal(_) => {
                return Vec::new();
            }
        };
        // The same loop as in `World::step`; it also records the cause of each turn.
        let (mut turns, mut faults) = (Vec::new(), FaultCount::default());
        let mut todo = VecDeque::from([first]);
        let mut causes = VecDeque::from([None]);
        while let (None, Some((server, stimulus)), Some(cause)) =
            (state.violation, todo.pop_front(), causes.pop_front())
        {
            if let Some(look) = state.environment.before(&state.server(server).node) {
                let moved = self.caches.moved(state.environment, &look);
                state.environment = moved.0;
                for next in [Some((server, stimulus)), moved.1].into_iter().flatten() {
                    todo.push_front(next);
                    causes.push_front(if next == (server, stimulus) { cause } else { None });
                }
                continue;
            }
            let (before, faults_before) = (state.server(server), faults);
            let messages = self.step_one(&mut state, server, stimulus, fault, &mut faults, &mut todo);
            causes.resize(todo.len(), Some(turns.len()));
            let sent = self.message_fates(&state, before, &messages, fault, faults_before);
            let result = self.caches.driver.take(&before, stimulus);
            let index = fault.and_then(Fault::crash).and_then(|index| index.checked_sub(faults_before.crashes));
            let crash = index.and_then(|index| result.crashes.into_iter().nth(index));
            turns.push(Turn {
                server,
                stimulus,
                cause,
                before,
                after: state.server(server),
                node_steps: result.node_steps,
                crash,
                sent,
            });
        }
        turns
    }

    /// The fate of each message that a server sent.
    fn message_fates(
        &self,
        state: &State<E>,
        before: Ref<Replica<E::Machine>>,
        messages: &[Ref<Message<E::Machine>>],
        fault: Option<Fault>,
        faults_before: FaultCount,
    ) -> Vec<(Ref<Message<E::Machine>>, MessageFate)> {
        let mut carried = faults_before.carried;
        let fate = |&message: &Ref<Message<E::Machine>>| {
            let fate = if !self.is_prompt(&message.body) {
                MessageFate::Travels
            } else if before.cut || state.server(message.to).cut {
                MessageFate::CutOff
            } else {
                carried += 1;
                match fault {
                    Some(Fault::Lose(index)) if index == carried - 1 => MessageFate::Lost,
                    Some(Fault::Delay(index)) if index == carried - 1 => MessageFate::Travels,
                    Some(Fault::Repeat(index)) if index == carried - 1 => MessageFate::ArrivesAndTravels,
                    _ => MessageFate::Arrives,
                }
            };
            (message, fate)
        };
        messages.iter().map(fate).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use palisade_spec::raft::Node;
    use stateright::Model;

    use super::*;
    use crate::layers::{CALLED, EACH, JOINED, late, membership, prompt, reads, transfer};
    use crate::raft::{Proposals, Tape};
    use crate::world::{Answers, Bounds, Delivery, Elections};

    fn world(bounds: Bounds) -> World<Proposals> {
        let bounds = Bounds { terms: 1, log: 2, ..bounds };
        World::new(bounds, Tape::default(), Proposals::new(2, 1))
    }

    /// Calls `ask` for every action in at most `most` reachable states, and returns their number.
    fn for_each_action<E: Environment>(
        world: &World<E>,
        most: usize,
        mut ask: impl FnMut(&State<E>, &Action<E>, &State<E>),
    ) -> usize {
        let mut known = HashSet::new();
        let mut todo = VecDeque::from(world.init_states());
        while let Some(state) = todo.pop_front().filter(|_| known.len() < most) {
            if known.insert(state.digest(0)) {
                for (action, next) in world.next_steps(&state) {
                    ask(&state, &action, &next);
                    todo.push_back(next);
                }
            }
        }
        known.len()
    }

    /// Checks that a turn describes what happened: its inputs lead to the node's state, and a crash
    /// leaves the recorded disk.
    fn check_turn<E: Environment>(turn: &Turn<E>) {
        let mut node: Node<E::Machine> = turn.before.node.clone();
        let mut disk = turn.before.disk.clone();
        for (index, node_step) in turn.node_steps.iter().enumerate() {
            let mut outputs = Vec::new();
            node.step(node_step.input.clone(), &mut outputs);
            assert_eq!(outputs, node_step.outputs);
            let cut = turn.crash.as_ref().filter(|crash| crash.input == index);
            for output in &outputs[..cut.map_or(outputs.len(), |crash| crash.outputs)] {
                if let palisade_spec::raft::Output::Persist(write) = output {
                    assert!(node_step.done, "only messages are lost");
                    disk.apply(write);
                }
            }
            if let Some(crash) = cut {
                if crash.entries.is_none() {
                    assert_eq!(crash.disk, disk);
                }
                assert_eq!(turn.after.disk, crash.disk);
                return;
            }
        }
        assert!(turn.crash.is_none() && node == turn.after.node && disk == turn.after.disk);
    }

    fn check_turns<E: Environment>(world: &World<E>) {
        let (mut turns_seen, mut crashes, mut longest) = (0, 0, 0);
        let states = for_each_action(world, 3_000, |last, action, next| {
            let turns = world.turns(last, action);
            let mut servers = last.servers.clone();
            for turn in &turns {
                check_turn(turn);
                let index = usize::from(turn.server.number()) - 1;
                assert!(servers[index] == turn.before, "turns follow one another");
                servers[index] = turn.after;
                crashes += usize::from(turn.crash.is_some());
            }
            let others = matches!(action, Action::Crash(_) | Action::Snapshot(_) | Action::Cut(_) | Action::Heal(_));
            assert!(others || servers == next.servers, "{}", world.describe(last, action));
            turns_seen += turns.len();
            longest = longest.max(turns.len());
            // Every possible action has a sentence, an event and a drawing.
            assert!(world.describe(last, action).starts_with(|letter: char| letter.is_alphabetic()));
            assert!(!format!("{next:?}").is_empty());
            world.event_json(last, action);
            assert!(world.draw(&[(last.clone(), Some(action.clone())), (next.clone(), None)]).is_some());
        });
        assert!(states > 500 && turns_seen > 1_000 && crashes > 100, "{states} {turns_seen} {crashes}");
        let prompt = !matches!(world.bounds.delivery, Delivery::AnyTime { answers: Answers::Messages, .. });
        assert_eq!(longest > 1, prompt);
    }

    #[test]
    fn turns_match_steps_with_asynchronous_messages() {
        check_turns(&world(Bounds { crashes: 1, ..Bounds::default() }));
    }

    #[test]
    #[ignore = "takes long; `just models` runs it"]
    fn turns_match_steps_with_immediate_answers() {
        let delivery = Delivery::AnyTime { most: 4, answers: Answers::AtOnce };
        check_turns(&world(Bounds { crashes: 1, delivery, ..Bounds::default() }));
    }

    #[test]
    #[ignore = "takes long; `just models` runs it"]
    fn turns_match_steps_with_prompt_messages() {
        let delivery = Delivery::Prompt { losses: 1, cuts: 1 };
        check_turns(&world(Bounds { crashes: 1, delivery, ..Bounds::default() }));
    }

    #[test]
    fn turns_match_steps_with_prevote_messages() {
        check_turns(&world(Bounds { crashes: 1, elections: Elections::StepByStep, ..Bounds::default() }));
    }

    #[test]
    #[ignore = "takes long; `just models` runs it"]
    fn turns_match_steps_with_membership_changes() {
        check_turns(&membership(EACH, 1, Bounds { log: 4, crashes: 1, delivery: prompt(1, 1), ..JOINED }));
    }

    #[test]
    fn turns_match_steps_with_reads() {
        check_turns(&reads(2, 1, Bounds { log: 3, crashes: 1, delivery: late(2), ..Bounds::default() }));
    }

    #[test]
    fn turns_match_steps_with_leadership_transfers() {
        check_turns(&transfer(2, Bounds { crashes: 1, log: 3, delivery: late(2), ..CALLED }));
    }

    #[test]
    fn sentences_name_crash_point_and_lost_message() {
        let delivery = Delivery::Prompt { losses: 1, cuts: 1 };
        let world = world(Bounds { crashes: 1, delivery, ..Bounds::default() });
        let mut sentences = HashSet::new();
        for_each_action(&world, 200, |last, action, _| {
            sentences.insert(world.describe(last, action));
        });
        for sentence in [
            "server 1 campaigns for term 1",
            "server 1 campaigns for term 1, but crashes before it writes its vote for 1 in term 1",
            "server 1 campaigns for term 1; server 2 crashes before it writes its vote for 1 in term 1",
            "server 1 campaigns for term 1; server 1 crashes after it has sent 2 messages, before it writes entry 1 (1:noop)",
            "server 1 campaigns for term 1; the network loses 1 → 2 RequestVote(term 1, last 0@0)",
            "a client's proposal arrives at server 1",
            "server 1 campaigns for term 1; server 2 crashes after it has written its vote for 1 in term 1",
            "server 1 campaigns for term 1; server 2 crashes before it writes its vote for 1 in term 1, and stays away",
            "server 3 is cut off from the others",
        ] {
            assert!(
                sentences.contains(sentence),
                "no action has the sentence {sentence:?}; the sentences are {sentences:#?}"
            );
        }
    }
}
