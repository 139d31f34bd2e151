//! A cluster that fails for a while and then heals: it elects a leader, commits, catches up, and
//! gives a returning member its vote.
//!
//! A run has two parts. In the first, the adversary of the layers [`raft`](crate::raft) and
//! [`membership`](crate::membership) acts within bounds: elections at any moment, losses, cuts,
//! crashes, late messages, snapshots, membership changes. At any moment the cluster may heal: every
//! server is connected, and no fault happens any more. **Only the first part is bounded.** In the
//! second part terms and logs may grow without limit. That the graph is nevertheless finite is a
//! result of the exploration: it fails if there are too many states.
//!
//! States are [`World`]'s, steps are those of the real [`Node`](palisade_spec::raft::Node). After
//! the healing, the past (the history for the safety properties, the budgets of faults, the
//! clients) has no effect, so states that differ only in it count as one.
//!
//! # Assumptions after the healing
//!
//! An election can fail for ever if two candidates keep taking each other's votes: Raft's answer is
//! randomized timeouts (§3.4), which make it unlikely. Here that is an assumption about time, as in
//! the dissertation (broadcast time ≪ election timeout, §3.9):
//!
//! - **Rounds.** All messages caused by a timer, and their answers, arrive before another timer
//!   fires. (Messages that were late when the cluster healed arrive at any moment.)
//! - **Heartbeats come before election timers.** A server does not time out while it follows a
//!   server that leads its term and has it as a member. A leader's election timer (CheckQuorum)
//!   does not fire before a heartbeat was sent and answered.
//! - **Weak fairness** of every server's election timer, of every leader's heartbeat timer, and of
//!   messages that are late.
//! - **Strong fairness** of a leader's heartbeat that finds all its followers active: between two
//!   firings of the election timer there is a second heartbeat, again and again. Rule R40 promotes
//!   with such a heartbeat.

use std::fmt;
use std::hash::{Hash, Hasher};

use palisade_spec::raft::{NodeId, Role, Standing, StateMachine};
use stateright::{Model, Property};

use super::{Class, Fairness, Live, Response};
use crate::presentation::Presentation;
use crate::world::{self, Environment, Ref, Replica, Stimulus, World};

/// The limits of the first part.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// The last term in which a server may campaign.
    pub terms: u64,
    /// Maximum length of a log.
    pub log: u64,
}

/// A flaw, to test that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Leaders send no heartbeats: they never find out what was lost, and promote no member.
    NoHeartbeats,
    /// The cluster heals except for server 3.
    OneStaysAway,
}

/// The model.
pub struct Healing<E: Environment> {
    world: World<E>,
    until: Until,
    /// Whether heartbeats that find all followers active are strongly fair.
    second_heartbeats: bool,
    flaw: Option<Flaw>,
}

/// A cluster, and whether it has healed.
pub struct State<E: Environment> {
    cluster: world::State<E>,
    healed: bool,
}

/// An action.
pub enum Action<E: Environment> {
    /// A step of the cluster.
    Step(world::Action<E>),
    /// The cluster heals.
    Heal,
}

impl<E: Environment> Healing<E> {
    /// A cluster with faults within these limits. The world itself has no limit of terms or logs:
    /// see [`UNLIMITED`].
    ///
    /// # Panics
    /// If the world's bounds limit terms or logs.
    pub fn new(world: World<E>, until: Until) -> Healing<E> {
        assert_eq!((world.bounds.terms, world.bounds.log), (UNLIMITED, UNLIMITED), "the second part has no limits");
        Healing { world, until, second_heartbeats: true, flaw: None }
    }

    /// The same model without strong fairness.
    pub fn without_second_heartbeats(self) -> Healing<E> {
        Healing { second_heartbeats: false, ..self }
    }

    /// The same model with a flaw.
    pub fn with(self, flaw: Flaw) -> Healing<E> {
        Healing { flaw: Some(flaw), ..self }
    }

    /// Whether the adversary may take this action in the first part.
    fn is_within(&self, cluster: &world::State<E>, action: &world::Action<E>) -> bool {
        match action {
            world::Action::Step { server, stimulus: Stimulus::ElectionTimeout | Stimulus::Campaign, .. } => {
                let node = &cluster.server(*server).node;
                node.is_leader() || node.term().0 < self.until.terms
            }
            _ => true,
        }
    }

    /// Whether this action is possible after the healing.
    fn is_good(&self, cluster: &world::State<E>, action: &world::Action<E>) -> bool {
        match action {
            world::Action::Step { server, stimulus: Stimulus::ElectionTimeout, fault: None, .. } => {
                !hears(cluster, *server) && !waits_for_answers(&cluster.server(*server))
            }
            world::Action::Step { stimulus: Stimulus::HeartbeatTimeout, fault: None, .. } => {
                self.flaw != Some(Flaw::NoHeartbeats)
            }
            world::Action::Step { stimulus, fault, again, .. } => {
                fault.is_none() && !again && matches!(stimulus, Stimulus::Deliver(_) | Stimulus::Compact(_))
            }
            _ => false,
        }
    }

    fn heal(&self, mut cluster: world::State<E>) -> world::State<E> {
        let away: Vec<NodeId> =
            cluster.servers.iter().filter(|replica| replica.cut).map(|replica| replica.node.id()).collect();
        for server in away {
            if self.flaw != Some(Flaw::OneStaysAway) || server != NodeId(3) {
                let healed = self.world.next_state(&cluster, world::Action::Heal(server));
                cluster = healed.expect("a server that is cut off can be connected");
            }
        }
        world::State { crashes: 0, snapshots: 0, repeats: 0, losses: 0, cuts: 0, late: 0, ..cluster }
    }

    fn servers(&self) -> u32 {
        self.world.bounds.servers + self.world.bounds.joiners
    }
}

/// No limit.
pub const UNLIMITED: u64 = 1 << 30;

/// Whether a server follows the leader of its term, which has it as a member and sends it
/// heartbeats.
fn hears<E: Environment>(cluster: &world::State<E>, server: NodeId) -> bool {
    let node = &cluster.server(server).node;
    let Some(leader) = node.leader().filter(|leader| *leader != server) else { return false };
    let leader = &cluster.server(leader).node;
    leader.is_leader() && leader.term() == node.term() && leader.members().get(server).is_some()
}

/// Whether a server leads, and no majority has answered it since its election timer last fired.
fn waits_for_answers<S: StateMachine>(replica: &Replica<S>) -> bool {
    let Role::Leader(leadership) = replica.node.role() else { return false };
    let active = |voter: NodeId| leadership.progress.get(&voter).is_some_and(|progress| progress.active);
    let members = replica.node.members();
    let answered = members.voters().filter(|voter| *voter == replica.node.id() || active(*voter)).count();
    2 * answered <= members.voters().count()
}

/// The leader of the highest term that is among its own members and has committed an entry of its
/// term.
fn leader<E: Environment>(cluster: &world::State<E>) -> Option<Ref<Replica<E::Machine>>> {
    cluster.servers.iter().copied().find(|replica| {
        let node = &replica.node;
        let outranks = |other: &&Ref<Replica<E::Machine>>| {
            node.members().get(other.node.id()).is_some() && other.node.term() > node.term()
        };
        node.is_leader()
            && node.log().term_at(node.commit()) == Some(node.term())
            && !cluster.servers.iter().any(|other| outranks(&other))
    })
}

/// Whether every member has, and has committed, the leader's log.
fn is_caught_up<E: Environment>(cluster: &world::State<E>) -> bool {
    let Some(leader) = leader(cluster) else { return false };
    let last = leader.node.log().last();
    let has_all =
        |replica: &Ref<Replica<E::Machine>>| replica.node.log().last() == last && replica.node.commit() == last.index;
    cluster.servers.iter().filter(|replica| leader.node.members().get(replica.node.id()).is_some()).all(has_all)
}

/// Whether a server knows a member that returned without its disk and has no vote yet.
fn is_returning<E: Environment>(cluster: &world::State<E>) -> bool {
    let returning = |replica: &Ref<Replica<E::Machine>>| {
        replica.node.members().iter().any(|(_, member)| member.standing == Standing::Returning)
    };
    cluster.servers.iter().any(returning)
}

/// Whether each of the leader's members has a vote or never had one, and that configuration is
/// committed.
fn has_its_votes<E: Environment>(cluster: &world::State<E>) -> bool {
    leader(cluster).is_some_and(|leader| {
        let node = &leader.node;
        node.members().returning().next().is_none() && node.log().members_since() <= node.commit()
    })
}

impl<E: Environment> Clone for State<E> {
    fn clone(&self) -> State<E> {
        State { cluster: self.cluster.clone(), healed: self.healed }
    }
}

impl<E: Environment> PartialEq for State<E> {
    fn eq(&self, other: &State<E>) -> bool {
        self.healed == other.healed && self.cluster == other.cluster
    }
}

/// States of one hash have the same future.
impl<E: Environment> Hash for State<E> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.healed.hash(hasher);
        if !self.healed {
            return self.cluster.hash(hasher);
        }
        self.cluster.servers.iter().for_each(|replica| replica.digest(0).hash(hasher));
        self.cluster.network.iter().for_each(|message| message.digest(0).hash(hasher));
        self.cluster.violation.is_some().hash(hasher);
    }
}

/// A table of the state, for people.
impl<E: Environment> fmt::Debug for State<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cluster.fmt(f)
    }
}

impl<E: Environment> Clone for Action<E> {
    fn clone(&self) -> Action<E> {
        match self {
            Action::Step(action) => Action::Step(action.clone()),
            Action::Heal => Action::Heal,
        }
    }
}

impl<E: Environment> PartialEq for Action<E> {
    fn eq(&self, other: &Action<E>) -> bool {
        match (self, other) {
            (Action::Step(one), Action::Step(other)) => one == other,
            (Action::Heal, Action::Heal) => true,
            _ => false,
        }
    }
}

impl<E: Environment> fmt::Debug for Action<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Step(action) => action.fmt(f),
            Action::Heal => f.write_str("Heal"),
        }
    }
}

impl<E: Environment> Model for Healing<E> {
    type State = State<E>;
    type Action = Action<E>;

    /// The layers [`raft`](crate::raft) and [`membership`](crate::membership) check safety.
    fn properties(&self) -> Vec<Property<Healing<E>>> {
        Vec::new()
    }

    fn init_states(&self) -> Vec<State<E>> {
        self.world.init_states().into_iter().map(|cluster| State { cluster, healed: false }).collect()
    }

    fn actions(&self, state: &State<E>, actions: &mut Vec<Action<E>>) {
        let mut possible = Vec::new();
        self.world.actions(&state.cluster, &mut possible);
        possible.retain(|action| match state.healed {
            true => self.is_good(&state.cluster, action),
            false => self.is_within(&state.cluster, action),
        });
        actions.extend((!state.healed).then_some(Action::Heal));
        actions.extend(possible.into_iter().map(Action::Step));
    }

    fn next_state(&self, last: &State<E>, action: Action<E>) -> Option<State<E>> {
        let Action::Step(action) = action else {
            return Some(State { cluster: self.heal(last.cluster.clone()), healed: true });
        };
        let cluster = self.world.next_state(&last.cluster, action)?;
        let fits = |replica: &Ref<Replica<E::Machine>>| replica.node.log().last().index.0 <= self.until.log;
        (last.healed || cluster.servers.iter().all(fits)).then_some(State { cluster, healed: last.healed })
    }

    fn format_action(&self, action: &Action<E>) -> String {
        match action {
            Action::Step(action) => self.world.format_action(action),
            Action::Heal => "the cluster heals: all servers are connected, and nothing fails any more".to_string(),
        }
    }

    fn format_step(&self, last: &State<E>, action: Action<E>) -> Option<String> {
        match action {
            Action::Step(action) => self.world.format_step(&last.cluster, action),
            Action::Heal => Some(String::new()),
        }
    }
}

impl<E: Environment> Presentation for Healing<E> {
    fn sentence(&self, last: &State<E>, action: &Action<E>) -> String {
        match action {
            Action::Step(action) => self.world.sentence(&last.cluster, action),
            Action::Heal => self.format_action(action),
        }
    }
}

impl<E: Environment> Live for Healing<E> {
    fn classes(&self) -> Vec<Class> {
        let class = |name: String, fairness| Class { name, fairness };
        let mut classes = vec![class("a late message arrives".to_string(), Fairness::Weak)];
        for server in 1..=self.servers() {
            let second = if self.second_heartbeats { Fairness::Strong } else { Fairness::Weak };
            classes.extend([
                class(format!("server {server}'s election timer runs out"), Fairness::Weak),
                class(format!("server {server} sends heartbeats"), Fairness::Weak),
                class(format!("server {server} sends heartbeats while all its followers are active"), second),
            ]);
        }
        classes
    }

    fn classes_of(&self, state: &State<E>, action: &Action<E>) -> u64 {
        // Before the healing no action is fair.
        let Action::Step(world::Action::Step { server, stimulus, .. }) = action else { return 0 };
        let offset = 1 + 3 * (u32::from(server.number()) - 1);
        match stimulus {
            _ if !state.healed => 0,
            Stimulus::Deliver(_) => 1,
            Stimulus::ElectionTimeout => 1 << offset,
            Stimulus::HeartbeatTimeout => {
                let replica = state.cluster.server(*server);
                let Role::Leader(leadership) = replica.node.role() else { return 0 };
                let all_active = leadership.progress.values().all(|progress| progress.active);
                1 << (offset + 1) | u64::from(all_active) << (offset + 2)
            }
            _ => 0,
        }
    }

    fn labels(&self, state: &State<E>) -> u64 {
        if !state.healed {
            return 0;
        }
        let cluster = &state.cluster;
        let label = |due: bool, served: bool| if served { 2 } else { u64::from(due) };
        let leads = label(true, leader(cluster).is_some());
        let returned = label(is_returning(cluster), has_its_votes(cluster));
        leads | label(true, is_caught_up(cluster)) << 2 | returned << 4
    }

    fn responses(&self) -> Vec<Response> {
        let properties = [ELECTS, CATCHES_UP, REGAINS].into_iter().zip([0, 2, 4]);
        let all = properties.map(|(property, pending)| {
            let of = "a healed cluster".to_string();
            Response { property, of, pending, served: pending + 1 }
        });
        all.take(if E::CHANGES_MEMBERS { 3 } else { 2 }).collect()
    }

    fn out_of_room(&self, state: &State<E>) -> Option<String> {
        state.cluster.violation.map(|violation| format!("nothing happens after a violation: {violation}"))
    }
}

/// A cluster without faults elects a leader that commits an entry of its term.
pub const ELECTS: &str = "a healed cluster elects a leader that commits";
/// Every member then has, and has committed, the leader's log: its entries, or a snapshot and the
/// rest.
pub const CATCHES_UP: &str = "every member catches up";
/// A member that lost its disk is given a vote again.
pub const REGAINS: &str = "a returning member gets its vote back";
