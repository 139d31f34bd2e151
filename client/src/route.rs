//! Finding the leader: which node to dial next, and how soon.
//!
//! A node that does not lead names the leader, and that address is dialed next, at once. Without a name, or if the named
//! one cannot be reached, the endpoints are tried in turn, with a pause in between that is drawn at random and grows
//! with the row of disappointments, from 20 ms to at most 250 ms. Members that came since the client was started take
//! their turn after the endpoints. A useful answer ends the row. Two nodes that name one
//! another cannot send a client back and forth without pause: only the first name in a row is followed at once.
//!
//! A leader whose address leads nowhere is reached through the nodes that name it: they may forward what the client asks.

use std::collections::HashSet;
use std::time::Duration;

use rand::Rng;

/// The pause after the first disappointment, at most.
const SHORTEST: Duration = Duration::from_millis(20);
/// The pause after many disappointments, at most.
const LONGEST: Duration = Duration::from_millis(250);
/// In a row of disappointments, so many named leaders are followed at once.
const HOPS_AT_ONCE: u32 = 2;

/// The address of a leader leads nowhere if so many attempts to reach it have failed.
const ATTEMPTS: u32 = 2;

/// A node to dial.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) endpoint: String,
    /// How long to wait before.
    pub(crate) pause: Duration,
    /// Whether it may forward to the leader.
    pub(crate) forwarded: bool,
}

/// Where the leader was looked for, and where to look next.
pub(crate) struct Route {
    endpoints: Vec<String>,
    /// Members that are not among the endpoints: they came while the client was running.
    learned: Vec<String>,
    next: usize,
    named: Option<String>,
    /// Whether every endpoint forwards, so that no other address is needed.
    forwarded: bool,
    /// The leader that was named last, and how often it could not be reached.
    leader: Option<(String, u32)>,
    /// Whether the node that was dialed last was the named leader.
    is_at_named: bool,
    /// Disappointments since the last useful answer.
    row: u32,
    /// Named leaders followed since the last useful answer.
    hops: u32,
    /// Nodes that refuse this client, or that it refuses.
    refusing: HashSet<String>,
}

impl Route {
    /// The same route over the endpoints alone: each of them forwards.
    pub(crate) fn forwarded(self, forwarded: bool) -> Route {
        Route { forwarded, ..self }
    }

    /// A route over at least one endpoint, begun at a random one, so that many clients do not all meet at the first.
    pub(crate) fn new(endpoints: Vec<String>) -> Route {
        assert!(!endpoints.is_empty(), "a route needs an endpoint");
        let next = rand::rng().random_range(0..endpoints.len());
        Route {
            endpoints,
            learned: Vec::new(),
            next,
            named: None,
            forwarded: false,
            leader: None,
            is_at_named: false,
            row: 0,
            hops: 0,
            refusing: HashSet::new(),
        }
    }

    /// The node to dial next.
    pub(crate) fn next(&mut self) -> Hop {
        let forwarded = self.forwarded || self.leader.as_ref().is_some_and(|(_, failures)| *failures >= ATTEMPTS);
        self.is_at_named = false;
        if let Some(named) = self.named.take().filter(|_| !forwarded) {
            self.is_at_named = true;
            self.hops += 1;
            let pause = if self.hops <= HOPS_AT_ONCE { Duration::ZERO } else { backoff(self.row) };
            return Hop { endpoint: named, pause, forwarded: false };
        }
        let count = self.endpoint_count();
        let endpoint = self.endpoints.iter().chain(&self.learned).nth(self.next % count);
        let endpoint = endpoint.expect("the index is below the count").clone();
        self.next = (self.next + 1) % count;
        let pause = if self.row == 0 { Duration::ZERO } else { backoff(self.row) };
        Hop { endpoint, pause, forwarded }
    }

    /// How many addresses take turns.
    fn endpoint_count(&self) -> usize {
        self.endpoints.len() + self.learned.len()
    }

    /// The cluster has these members now. The configured endpoints stay: they may be names that resolve to whichever nodes run there.
    pub(crate) fn learn(&mut self, members: Vec<String>) {
        // A node that has just started does not know where the others serve clients.
        if !members.is_empty() && !self.forwarded {
            self.learned = members.into_iter().filter(|member| !self.endpoints.contains(member)).collect();
        }
    }

    /// The node that was dialed does not lead, and names the leader if it knows it.
    pub(crate) fn redirected(&mut self, leader: Option<String>) {
        self.row = self.row.saturating_add(1);
        if self.leader.as_ref().map(|(known, _)| known) != leader.as_ref() {
            self.leader = leader.clone().map(|leader| (leader, 0));
        }
        self.named = leader;
    }

    /// The node that was dialed could not be reached, or went silent, or closed.
    pub(crate) fn failed(&mut self) {
        self.row = self.row.saturating_add(1);
        if let (true, Some((_, failures))) = (self.is_at_named, &mut self.leader) {
            *failures = failures.saturating_add(1);
        }
    }

    /// The node at this address refuses the client, or is refused by it. Returns whether as many nodes do as take turns: a
    /// node that cannot be reached takes no refusal back, and is no refusal itself, because it may still accept the client.
    pub(crate) fn refused(&mut self, endpoint: &str) -> bool {
        self.refusing.insert(endpoint.to_owned());
        let addresses: HashSet<&String> = self.endpoints.iter().chain(&self.learned).collect();
        self.refusing.len() >= addresses.len()
    }

    /// A node has accepted the client.
    pub(crate) fn forget_refusals(&mut self) {
        self.refusing.clear();
    }

    /// The node that was dialed answers like a leader.
    pub(crate) fn arrived(&mut self) {
        self.row = 0;
        self.hops = 0;
        match &mut self.leader {
            // The next search tries the leader's own address once more: it may have been gone for a moment only.
            Some((_, failures)) if !self.is_at_named => *failures = ATTEMPTS - 1,
            _ => self.leader = None,
        }
    }
}

/// A random pause that grows with the number of disappointments in a row.
pub(crate) fn backoff(row: u32) -> Duration {
    rand::rng().random_range(SHORTEST..=grown(row, LONGEST))
}

/// The same, up to another length, and never less than half of what it has grown to.
pub(crate) fn backoff_within(row: u32, longest: Duration) -> Duration {
    let ceiling = grown(row, longest.max(SHORTEST));
    rand::rng().random_range((ceiling / 2).max(SHORTEST)..=ceiling)
}

fn grown(row: u32, longest: Duration) -> Duration {
    SHORTEST.saturating_mul(1 << row.min(16)).min(longest)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Hop, LONGEST, Route, SHORTEST, backoff_within};

    /// The node to dial next, and the pause before it.
    fn next(route: &mut Route) -> (String, Duration) {
        let Hop { endpoint, pause, .. } = route.next();
        (endpoint, pause)
    }

    fn route() -> Route {
        let mut route = Route::new(vec!["a:1".into(), "b:2".into()]);
        route.next = 0;
        route
    }

    #[test]
    fn endpoints_take_turns_with_a_pause_after_a_failure() {
        let mut route = route();
        assert_eq!(next(&mut route), ("a:1".into(), Duration::ZERO));
        for expected in ["b:2", "a:1", "b:2"] {
            route.failed();
            let (endpoint, pause) = next(&mut route);
            assert_eq!(endpoint, expected);
            assert!((SHORTEST..=LONGEST).contains(&pause));
        }
    }

    #[test]
    fn a_named_leader_is_dialed_at_once_but_not_for_ever() {
        let mut route = route();
        for _ in 0..2 {
            route.redirected(Some("c:3".into()));
            assert_eq!(next(&mut route), ("c:3".into(), Duration::ZERO));
        }
        route.redirected(Some("c:3".into()));
        assert!(route.next().pause >= SHORTEST);
        route.arrived();
        route.redirected(Some("d:4".into()));
        assert_eq!(next(&mut route), ("d:4".into(), Duration::ZERO));
    }

    #[test]
    fn members_that_came_later_take_their_turn() {
        let mut route = route();
        route.learn(vec!["b:2".into(), "c:3".into()]);
        let mut dialed = || route.next().endpoint;
        assert_eq!([dialed(), dialed(), dialed(), dialed()], ["a:1", "b:2", "c:3", "a:1"]);
        route.learn(vec!["d:4".into(), "e:5".into()]);
        let mut dialed = || route.next().endpoint;
        assert_eq!([dialed(), dialed(), dialed(), dialed()], ["b:2", "d:4", "e:5", "a:1"]);
        route.learn(vec![]);
        assert_eq!(route.learned, ["d:4", "e:5"], "a node without members to name changes nothing");
        route.next = 3;
        route.learn(vec!["a:1".into()]);
        assert_eq!(route.next().endpoint, "b:2");
    }

    #[test]
    fn pauses_grow_as_far_as_they_may() {
        let longest = Duration::from_secs(1);
        for (row, ceiling) in [(0, 20), (1, 40), (2, 80), (5, 640), (6, 1000), (u32::MAX, 1000)] {
            let ceiling = Duration::from_millis(ceiling);
            assert!((ceiling / 2..=ceiling).contains(&backoff_within(row, longest)), "{row}");
        }
        assert_eq!(backoff_within(9, Duration::ZERO), SHORTEST);
    }

    #[test]
    fn a_named_leader_that_fails_is_forgotten() {
        let mut route = route();
        route.redirected(Some("c:3".into()));
        route.next();
        route.failed();
        assert_eq!(route.next().endpoint, "a:1");
    }

    /// Goal: behind a load balancer or a NAT, where the leader's own address leads nowhere, the client lets the nodes
    /// that it reaches forward its requests, and goes to the next leader itself.
    #[test]
    fn leader_whose_address_leads_nowhere_is_reached_through_other_nodes() {
        let mut route = route();
        for _ in 0..2 {
            assert!(!route.next().forwarded);
            route.redirected(Some("c:3".into()));
            let hop = route.next();
            assert_eq!((hop.endpoint.as_str(), hop.forwarded), ("c:3", false));
            route.failed();
        }
        let hop = route.next();
        assert_eq!((hop.endpoint.as_str(), hop.forwarded), ("a:1", true));
        route.arrived();
        // The connection breaks: the client tries the leader itself once more, and knows the way.
        route.failed();
        assert_eq!((route.next().endpoint.as_str(), route.is_at_named), ("b:2", false));
        route.redirected(Some("c:3".into()));
        assert_eq!(route.next().endpoint, "c:3");
        route.failed();
        let hop = route.next();
        assert_eq!((hop.endpoint.as_str(), hop.forwarded), ("a:1", true));
        route.redirected(Some("d:4".into()));
        let hop = route.next();
        assert_eq!((hop.endpoint.as_str(), hop.forwarded), ("d:4", false));
        route.arrived();
        assert!(!route.next().forwarded);
    }

    /// Goal: the client is refused when each node has refused it, in any order, and none has accepted it since.
    #[test]
    fn refusals_are_counted_by_node() {
        let mut route = Route::new(["a:1", "b:2", "a:1"].map(str::to_owned).into());
        assert!(!route.refused("a:1"));
        route.failed();
        assert!(!route.refused("a:1"));
        assert!(route.refused("b:2"));
        route.forget_refusals();
        assert!(!route.refused("b:2"));
        route.learn(vec!["c:3".into()]);
        assert!(!route.refused("a:1"));
        assert!(route.refused("c:3"));
    }

    /// Goal: a client of one address for all nodes never dials another one.
    #[test]
    fn endpoints_that_forward_are_enough() {
        let mut route = Route::new(vec!["balancer:1".into()]).forwarded(true);
        route.learn(vec!["a:1".into(), "b:2".into()]);
        for _ in 0..3 {
            let hop = route.next();
            assert_eq!((hop.endpoint.as_str(), hop.forwarded), ("balancer:1", true));
            route.redirected(Some("c:3".into()));
        }
    }
}
