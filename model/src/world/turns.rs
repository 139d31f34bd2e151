//! An action taken apart: who had a turn in it, what was said, and what became of it.

use std::collections::VecDeque;

use palisade_spec::raft::{Message, NodeId};

use super::action::{Action, Fault};
use super::environment::Environment;
use super::intern::Ref;
use super::model::World;
use super::replay::{CrashPoint, Fed, crash_points, feed};
use super::seat::{Seat, Stimulus};
use super::state::{CommandOf, State};
use super::step::Perils;

/// One server's part in an action. Where messages are prompt, others follow.
pub(super) struct Turn<E: Environment> {
    pub(super) server: NodeId,
    pub(super) stimulus: Stimulus<CommandOf<E>>,
    /// The turn in which the message was sent that arrives in this one, if it was sent within the action.
    pub(super) cause: Option<usize>,
    pub(super) before: Ref<Seat<E::Machine>>,
    pub(super) after: Ref<Seat<E::Machine>>,
    pub(super) fed: Vec<Fed<E::Machine>>,
    pub(super) crash: Option<CrashPoint<E::Machine>>,
    /// What it sent, in order.
    pub(super) sent: Vec<(Ref<Message<CommandOf<E>>>, Fortune)>,
}

/// What becomes of a message within the action in which it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fortune {
    /// It goes on its way, and stays there.
    Travels,
    /// It arrives in a turn of its own.
    Arrives,
    /// It is lost.
    Lost,
    /// The sender or the receiver is cut off.
    CutOff,
}

impl<E: Environment> World<E> {
    /// Everybody's part in an action, in order.
    pub(super) fn turns(&self, last: &State<E>, action: &Action<E>) -> Vec<Turn<E>> {
        let mut state = last.clone();
        let (first, fault) = match action {
            Action::Step { server, stimulus, fault, .. } => ((*server, *stimulus), *fault),
            Action::Move { chosen, fault } => {
                let moved = self.kept.moved(last.environment, chosen);
                state.environment = moved.0;
                state.violation = self.kept.judged(state.environment, state.ghost).err();
                let Some(asked) = moved.1 else { return Vec::new() };
                (asked, *fault)
            }
            Action::Crash(_) | Action::Lose(_) | Action::Cut(_) | Action::Heal(_) => return Vec::new(),
        };
        // The same loop as in `World::step`, with an eye on who brought about what.
        let (mut turns, mut perils) = (Vec::new(), Perils::default());
        let mut todo = VecDeque::from([first]);
        let mut causes = VecDeque::from([None]);
        while let (None, Some((server, stimulus)), Some(cause)) =
            (state.violation, todo.pop_front(), causes.pop_front())
        {
            if let Some(look) = state.environment.before(&state.server(server).node) {
                let moved = self.kept.moved(state.environment, &look);
                state.environment = moved.0;
                for next in [Some((server, stimulus)), moved.1].into_iter().flatten() {
                    todo.push_front(next);
                    causes.push_front(if next == (server, stimulus) { cause } else { None });
                }
                continue;
            }
            let turn = self.turn(&state, (server, stimulus), cause, fault, perils);
            self.step_one(&mut state, server, stimulus, fault, &mut perils, &mut todo);
            causes.resize(todo.len(), Some(turns.len()));
            turns.push(turn);
        }
        turns
    }

    fn turn(
        &self,
        state: &State<E>,
        (server, stimulus): (NodeId, Stimulus<CommandOf<E>>),
        cause: Option<usize>,
        fault: Option<Fault>,
        perils: Perils,
    ) -> Turn<E> {
        let before = state.server(server);
        let stepped = self.kept.step(before, stimulus);
        let place = match fault {
            Some(Fault::Crash(place)) => place.checked_sub(perils.crashes),
            _ => None,
        };
        let crashed = place.and_then(|place| stepped.crashes.get(place));
        let fed = feed(&before, stimulus, self.bounds.elections);
        let crash = place.and_then(|place| crash_points(&before, &fed).into_iter().nth(place));
        let mut carried = perils.carried;
        let fortune = |&message: &Ref<Message<CommandOf<E>>>| {
            let fortune = if !self.is_prompt(&message.body) {
                Fortune::Travels
            } else if before.cut || state.server(message.to).cut {
                Fortune::CutOff
            } else {
                carried += 1;
                if fault == Some(Fault::Lose(carried - 1)) { Fortune::Lost } else { Fortune::Arrives }
            };
            (message, fortune)
        };
        let sent = stepped.said[..crashed.map_or(stepped.said.len(), |crashed| crashed.said)].iter().map(fortune);
        Turn {
            server,
            stimulus,
            cause,
            before,
            after: crashed.map_or(stepped.seat, |crashed| crashed.seat),
            fed,
            crash,
            sent: sent.collect(),
        }
    }
}
