//! Fair cycles: the infinite runs on which a response never happens.
//!
//! A run violates "whenever *pending*, then later *served*" if after a pending state it visits no
//! served state. The run is infinite: it is a cycle, or stays in one state (stuttering). It counts
//! only if it is fair:
//!
//! - **weak fairness** of a class: if its actions stay possible from some point on, one of them is
//!   taken again and again;
//! - **strong fairness**: if its actions become possible again and again, one of them is taken
//!   again and again.
//!
//! The states that a run visits infinitely often are strongly connected. So the search decomposes
//! the states that are not served into strongly connected components (Tarjan, without recursion),
//! and keeps the components with a fair run. Such a component has, for each weakly fair class, an
//! edge of the class or a state in which the class is not possible; for each strongly fair class,
//! an edge of the class or no state in which it is possible. If only the condition of a strongly
//! fair class fails, the search removes the states in which that class is possible and decomposes
//! the rest again (Streett automata: Emerson and Lei 1987).

use std::collections::VecDeque;

use super::graph::{Edge, Graph};

/// The fairness of a class of actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fairness {
    /// Weak: not passed over for ever while its actions stay possible.
    Weak,
    /// Strong: not passed over for ever while its actions become possible again and again.
    Strong,
}

/// The fair classes, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fair {
    /// The weakly fair classes.
    pub weak: u64,
    /// The strongly fair classes.
    pub strong: u64,
}

/// "Whenever a state has a label of `pending`, later a state has a label of `served`."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The labels of pending states, a bit each.
    pub pending: u64,
    /// The labels of served states, a bit each.
    pub served: u64,
}

/// Result of a search.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of states that are pending and not served.
    pub pending: usize,
    /// Number of strongly connected components among the states that a run visits after it was
    /// pending, without being served.
    pub components: usize,
    /// A violation reached in a minimum of steps.
    pub violation: Option<Circle>,
}

/// A path into a fair component, and a cycle in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    /// The initial state of the run.
    pub initial: u32,
    /// The steps to the cycle.
    pub stem: Vec<Edge>,
    /// The number of these steps before the run is pending.
    pub pending_after: usize,
    /// The steps of the cycle; empty if the run stutters.
    pub cycle: Vec<Edge>,
}

/// Searches for a fair run on which the response never happens.
pub fn search(graph: &Graph, fair: Fair, question: Question) -> Found {
    let region = Region::of(graph, question);
    let (components, fair_states) = region.fair_states(fair);
    let violation = region.stem(&fair_states).map(|(initial, stem, pending_after, at)| {
        let cycle = region.cycle(fair, &fair_states, at);
        Circle { initial, stem, pending_after, cycle }
    });
    Found { pending: region.pending.len(), components, violation }
}

/// The states that a run visits after it was pending, without being served.
struct Region<'a> {
    graph: &'a Graph,
    question: Question,
    pending: Vec<u32>,
    /// Whether a state belongs to the set.
    inside: Vec<bool>,
}

const NONE: u32 = u32::MAX;

impl<'a> Region<'a> {
    fn of(graph: &'a Graph, question: Question) -> Region<'a> {
        let is_pending = |state: &u32| {
            let labels = graph.labels[*state as usize];
            labels & question.pending != 0 && labels & question.served == 0
        };
        let pending: Vec<u32> = numbers(graph).filter(is_pending).collect();
        let mut inside = vec![false; graph.states()];
        let mut todo = pending.clone();
        pending.iter().for_each(|state| inside[*state as usize] = true);
        while let Some(state) = todo.pop() {
            for edge in graph.edges(state) {
                let to = edge.to as usize;
                if !inside[to] && graph.labels[to] & question.served == 0 {
                    inside[to] = true;
                    todo.push(edge.to);
                }
            }
        }
        Region { graph, question, pending, inside }
    }

    /// The number of components, and for each state the number of its fair component.
    fn fair_states(&self, fair: Fair) -> (usize, Vec<u32>) {
        let graph = self.graph;
        // The group of each state: only edges within a group are considered.
        let mut group: Vec<u32> = self.inside.iter().map(|inside| if *inside { 0 } else { NONE }).collect();
        let mut fair_ones = vec![NONE; graph.states()];
        let mut todo: Vec<Vec<u32>> = vec![numbers(graph).filter(|state| self.inside[*state as usize]).collect()];
        let (mut groups, mut first) = (1, None::<usize>);
        while let Some(states) = todo.pop() {
            let components = decompose(graph, &states, &group);
            first.get_or_insert(components.len());
            for component in components {
                let number = groups;
                groups += 1;
                component.iter().for_each(|state| group[*state as usize] = number);
                let (mut taken, mut ever, mut always) = (0, 0, u64::MAX);
                for &state in &component {
                    ever |= graph.enabled[state as usize];
                    always &= graph.enabled[state as usize];
                    let inner = graph.edges(state).iter().filter(|edge| group[edge.to as usize] == number);
                    taken |= inner.fold(0, |taken, edge| taken | edge.classes);
                }
                if fair.weak & always & !taken != 0 {
                    continue;
                }
                let passed_over = fair.strong & ever & !taken;
                if passed_over == 0 {
                    component.iter().for_each(|state| fair_ones[*state as usize] = number);
                    continue;
                }
                let (out, rest): (Vec<u32>, Vec<u32>) =
                    component.into_iter().partition(|state| graph.enabled[*state as usize] & passed_over != 0);
                out.iter().for_each(|state| group[*state as usize] = NONE);
                todo.push(rest);
            }
        }
        (first.unwrap_or(0), fair_ones)
    }

    /// A shortest path into a fair component: its initial state, its steps, the number of steps
    /// before the run is pending, and its last state.
    fn stem(&self, fair_states: &[u32]) -> Option<(u32, Vec<Edge>, usize, u32)> {
        let (graph, count) = (self.graph, self.graph.states());
        // Each state twice: before the run is pending, and after.
        let mut from: Vec<Option<Option<(usize, Edge)>>> = vec![None; 2 * count];
        let mut todo: VecDeque<usize> = VecDeque::new();
        let enter = |from: &mut Vec<Option<Option<(usize, Edge)>>>, todo: &mut VecDeque<usize>, index: usize, by| {
            if from[index].is_none() {
                from[index] = Some(by);
                todo.push_back(index);
            }
        };
        let is_pending = |state: usize| {
            graph.labels[state] & self.question.pending != 0 && graph.labels[state] & self.question.served == 0
        };
        for state in 0..graph.initial {
            enter(&mut from, &mut todo, state, None);
            if is_pending(state) {
                enter(&mut from, &mut todo, count + state, None);
            }
        }
        while let Some(index) = todo.pop_front() {
            let state = index % count;
            if index >= count && fair_states[state] != NONE {
                let (mut stem, mut pending_after, mut at) = (Vec::new(), 0, index);
                while let Some((before, edge)) = from[at].expect("it was entered") {
                    stem.push(edge);
                    pending_after += usize::from(before < count);
                    at = before;
                }
                stem.reverse();
                return Some((number(at % count), stem, pending_after, number(state)));
            }
            for &edge in graph.edges(number(state)) {
                let to = edge.to as usize;
                if index < count {
                    enter(&mut from, &mut todo, to, Some((index, edge)));
                }
                if if index < count { is_pending(to) } else { self.inside[to] } {
                    enter(&mut from, &mut todo, count + to, Some((index, edge)));
                }
            }
        }
        None
    }

    /// A fair cycle from a state through its fair component: it takes a step of every class that
    /// fairness requires.
    fn cycle(&self, fair: Fair, fair_states: &[u32], start: u32) -> Vec<Edge> {
        let (graph, own) = (self.graph, fair_states[start as usize]);
        let all = fair.weak | fair.strong;
        if graph.enabled[start as usize] & all == 0 {
            return Vec::new();
        }
        let ever = numbers(graph).filter(|state| fair_states[*state as usize] == own);
        let ever = ever.fold(0, |ever, state| ever | graph.enabled[state as usize]);
        // The requirements: an edge for each strong class that is possible in the component; for
        // each weak class, an edge or a state in which it is not possible.
        let (mut strong, mut weak) = (fair.strong & ever, fair.weak);
        let (mut cycle, mut at) = (Vec::new(), start);
        let settle = |strong: &mut u64, weak: &mut u64, state: u32, taken: u64| {
            *strong &= !taken;
            *weak &= !taken & graph.enabled[state as usize];
        };
        settle(&mut strong, &mut weak, start, 0);
        while strong | weak != 0 {
            let steps = self.nearest(fair_states, at, |edge| {
                edge.classes & (strong | weak) != 0 || weak & !graph.enabled[edge.to as usize] != 0
            });
            for edge in steps.expect("a fair component has what its fairness owes") {
                settle(&mut strong, &mut weak, edge.to, edge.classes);
                at = edge.to;
                cycle.push(edge);
            }
        }
        if at != start || cycle.is_empty() {
            let back = self.nearest(fair_states, at, |edge| edge.to == start);
            cycle.extend(back.expect("a component is strongly connected"));
        }
        cycle
    }

    /// A shortest path within a state's component whose last step is `sought`.
    fn nearest(&self, fair_states: &[u32], start: u32, sought: impl Fn(&Edge) -> bool) -> Option<Vec<Edge>> {
        let own = fair_states[start as usize];
        let mut from: std::collections::HashMap<u32, Option<(u32, Edge)>> = [(start, None)].into();
        let mut todo = VecDeque::from([start]);
        while let Some(state) = todo.pop_front() {
            for &edge in self.graph.edges(state).iter().filter(|edge| fair_states[edge.to as usize] == own) {
                if sought(&edge) {
                    let (mut steps, mut at) = (vec![edge], state);
                    while let Some((before, edge)) = from[&at] {
                        steps.push(edge);
                        at = before;
                    }
                    steps.reverse();
                    return Some(steps);
                }
                from.entry(edge.to).or_insert_with(|| {
                    todo.push_back(edge.to);
                    Some((state, edge))
                });
            }
        }
        None
    }
}

fn number(state: usize) -> u32 {
    u32::try_from(state).expect("fewer than 2^32 states")
}

fn numbers(graph: &Graph) -> impl Iterator<Item = u32> {
    0..number(graph.states())
}

/// The strongly connected components of these states, by the edges between states of the same group
/// (Tarjan 1972). A state on no cycle is a component by itself.
fn decompose(graph: &Graph, states: &[u32], group: &[u32]) -> Vec<Vec<u32>> {
    const UNSEEN: u32 = 0;
    const DONE: u32 = u32::MAX;
    // The discovery number of each state, and the lowest discovery number on the stack that it
    // reaches.
    let mut seen: std::collections::HashMap<u32, (u32, u32)> =
        states.iter().map(|state| (*state, (UNSEEN, 0))).collect();
    let (mut time, mut components) = (UNSEEN, Vec::new());
    let (mut stack, mut path): (Vec<u32>, Vec<(u32, usize)>) = (Vec::new(), Vec::new());
    for &root in states {
        if seen[&root].0 != UNSEEN {
            continue;
        }
        path.push((root, 0));
        while let Some((state, next)) = path.pop() {
            if next == 0 {
                time += 1;
                seen.insert(state, (time, time));
                stack.push(state);
            }
            let edges = graph.edges(state);
            let mut index = next;
            let mut child = None;
            while let Some(edge) = edges.get(index) {
                index += 1;
                if group[edge.to as usize] != group[state as usize] {
                    continue;
                }
                match seen[&edge.to] {
                    (UNSEEN, _) => {
                        child = Some(edge.to);
                        break;
                    }
                    (DONE, _) => {}
                    (when, _) => {
                        let own = seen.get_mut(&state).expect("it is one of them");
                        own.1 = own.1.min(when);
                    }
                }
            }
            if let Some(child) = child {
                path.extend([(state, index), (child, 0)]);
                continue;
            }
            let (when, low) = seen[&state];
            if low == when {
                let begin = stack.iter().rposition(|other| *other == state).expect("it is on the stack");
                let component = stack.split_off(begin);
                component.iter().for_each(|state| {
                    seen.insert(*state, (DONE, 0));
                });
                components.push(component);
            }
            if let Some((parent, _)) = path.last() {
                let parent = seen.get_mut(parent).expect("it is one of them");
                parent.1 = parent.1.min(low);
            }
        }
    }
    components
}

#[cfg(test)]
mod tests {
    use super::*;

    const PENDING: u64 = 1;
    const SERVED: u64 = 2;
    const ASK: Question = Question { pending: PENDING, served: SERVED };
    const A: u64 = 1;
    const B: u64 = 2;
    const UNFAIR: Fair = Fair { weak: 0, strong: 0 };

    fn weak(weak: u64) -> Fair {
        Fair { weak, strong: 0 }
    }

    fn strong(strong: u64) -> Fair {
        Fair { weak: 0, strong }
    }

    /// The states of the violation: on the path to the cycle, and on the cycle.
    fn violation(graph: &Graph, fair: Fair) -> Option<(Vec<u32>, Vec<u32>)> {
        let to = |edges: Vec<Edge>| edges.into_iter().map(|edge| edge.to).collect();
        search(graph, fair, ASK).violation.map(|circle| (to(circle.stem), to(circle.cycle)))
    }

    #[test]
    fn run_may_stop_unless_a_fair_action_is_possible() {
        let graph = Graph::of(&[PENDING, SERVED], &[(0, 1, A)]);
        assert_eq!(violation(&graph, UNFAIR), Some((vec![], vec![])), "nothing forces the step");
        assert_eq!(violation(&graph, weak(A)), None);
        assert_eq!(violation(&graph, strong(A)), None);
        assert_eq!(violation(&graph, weak(B)), Some((vec![], vec![])), "another class forces nothing");
    }

    #[test]
    fn terminal_state_is_a_violation() {
        let graph = Graph::of(&[0, PENDING, 0], &[(0, 1, A), (1, 2, A)]);
        assert_eq!(violation(&graph, weak(A)), Some((vec![1, 2], vec![])));
        assert_eq!(search(&graph, weak(A), ASK).violation.unwrap().pending_after, 1);
        let graph = Graph::of(&[0, PENDING, SERVED], &[(0, 1, A), (1, 2, A)]);
        assert_eq!(violation(&graph, weak(A)), None, "a terminal state that is served is none");
    }

    #[test]
    fn state_never_pending_is_no_violation() {
        let graph = Graph::of(&[0, 0], &[(0, 1, A), (1, 0, A)]);
        assert_eq!(search(&graph, UNFAIR, ASK), Found { pending: 0, components: 0, violation: None });
    }

    #[test]
    fn pending_state_that_is_served_needs_no_response() {
        let graph = Graph::of(&[PENDING | SERVED, 0], &[(0, 1, A)]);
        assert_eq!(violation(&graph, weak(A)), None);
    }

    /// From 0 and 1, which follow one another, B leads to where it is served: from both, or from 1
    /// only.
    #[test]
    fn weak_fairness_needs_the_action_to_stay_possible() {
        let both = [(0, 1, A), (1, 0, A), (0, 2, B), (1, 2, B)];
        let labels = [PENDING, 0, SERVED];
        let graph = Graph::of(&labels, &both);
        assert_eq!(violation(&graph, weak(A)), Some((vec![], vec![1, 0])));
        assert_eq!(violation(&graph, weak(A | B)), None);
        let graph = Graph::of(&labels, &both[..3]);
        assert_eq!(violation(&graph, weak(A | B)), Some((vec![], vec![1, 0])), "B is not possible in 1");
        assert_eq!(violation(&graph, Fair { weak: A, strong: B }), None, "B is possible again and again");
    }

    #[test]
    fn stuttering_is_a_run_where_only_the_other_class_is_fair() {
        let graph = Graph::of(&[PENDING, 0, SERVED], &[(0, 1, A), (1, 0, A), (0, 2, B)]);
        assert_eq!(violation(&graph, strong(B)), Some((vec![1], vec![])), "it stays in 1, where B is not possible");
    }

    /// Of 0, 1 and 2 only 0 can do B, to be served. The cycle of 1 and 2 does without it.
    #[test]
    fn strong_fairness_allows_cycles_in_which_the_action_is_not_possible() {
        let edges = [(0, 1, A), (1, 2, A), (2, 1, A), (2, 0, A), (0, 3, B)];
        let graph = Graph::of(&[PENDING, 0, 0, SERVED], &edges);
        assert_eq!(violation(&graph, Fair { weak: A, strong: B }), Some((vec![1], vec![2, 1])));
        let found = search(&graph, Fair { weak: A, strong: B }, ASK);
        assert_eq!((found.pending, found.components), (1, 1));
    }

    #[test]
    fn cycle_takes_every_class_that_fairness_requires() {
        // B is on a detour over 2, which must be taken; the short cycle of 0 and 1 never takes it.
        let edges = [(0, 1, A), (1, 0, A), (1, 2, B), (2, 0, A), (0, 2, B)];
        let graph = Graph::of(&[PENDING, 0, 0], &edges);
        let (stem, cycle) = violation(&graph, strong(A | B)).unwrap();
        assert_eq!((stem, cycle), (vec![], vec![1, 2, 0]));
    }

    #[test]
    fn cycle_passes_a_state_where_a_weak_class_is_not_possible() {
        // B leads out of 0 only: 1 shows that B does not stay possible.
        let edges = [(0, 0, A), (0, 1, A), (1, 0, A), (0, 2, B)];
        let graph = Graph::of(&[PENDING, 0, SERVED], &edges);
        let (_, cycle) = violation(&graph, weak(A | B)).unwrap();
        assert!(cycle.contains(&1) && cycle.ends_with(&[0]), "{cycle:?}");
    }

    #[test]
    fn loop_at_one_state_is_a_cycle() {
        let graph = Graph::of(&[PENDING, SERVED], &[(0, 0, A), (0, 1, B)]);
        assert_eq!(violation(&graph, weak(A)), Some((vec![], vec![0])));
        assert_eq!(violation(&graph, weak(A | B)), None);
    }

    #[test]
    fn cycle_through_a_served_state_is_no_violation() {
        let graph = Graph::of(&[PENDING, SERVED], &[(0, 1, A), (1, 0, A)]);
        assert_eq!(violation(&graph, weak(A)), None);
    }

    #[test]
    fn run_may_be_pending_again_after_it_was_served() {
        let graph = Graph::of(&[PENDING, SERVED, PENDING], &[(0, 1, A), (1, 2, A)]);
        assert_eq!(violation(&graph, weak(A)), Some((vec![1, 2], vec![])));
        assert_eq!(search(&graph, weak(A), ASK).violation.unwrap().pending_after, 2);
    }

    #[test]
    fn components_are_those_of_reachability() {
        // Two cycles joined by an edge, a state on no cycle, and one outside of the group.
        let edges = [(0, 1, A), (1, 2, A), (2, 0, A), (2, 3, A), (3, 4, A), (4, 3, A), (4, 5, A), (5, 6, A), (6, 0, A)];
        let graph = Graph::of(&[0; 7], &edges);
        let all: Vec<u32> = (0..7).collect();
        let sorted = |mut components: Vec<Vec<u32>>| {
            components.iter_mut().for_each(|component| component.sort_unstable());
            components.sort_unstable();
            components
        };
        assert_eq!(sorted(decompose(&graph, &all, &[0; 7])), std::slice::from_ref(&all));
        let without_6 = [0, 0, 0, 0, 0, 0, NONE];
        assert_eq!(sorted(decompose(&graph, &all[..6], &without_6)), [vec![0, 1, 2], vec![3, 4], vec![5]]);
    }

    /// A path of a million states: recursion would run out of stack.
    #[test]
    fn long_path_does_not_overflow_the_stack() {
        let states = 1_000_000_u32;
        let mut labels = vec![0; states as usize];
        labels[0] = PENDING;
        let graph = Graph::chain(labels, A);
        let found = search(&graph, weak(A), ASK);
        assert_eq!(found.components, states as usize);
        assert_eq!(found.violation.unwrap().stem.len(), states as usize - 1);
    }
}
