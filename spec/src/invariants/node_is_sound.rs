//! Invariants of a single node, after every step.

use super::{Check, Property};
use crate::raft::{Node, NodeId, Role, StateMachine};
use crate::require;

/// How many entries at the log's end are checked. Earlier entries were checked when they were at
/// the end.
const TAIL: usize = 16;

/// Checks one node.
pub fn node_is_sound<S: StateMachine>(node: &Node<S>) -> Check {
    let name = Property::NodeSoundness;
    let log = node.log();
    let (base, last) = (log.base().index, log.last().index);
    require!(name, base <= node.commit() && node.commit() <= last, "commit {} is not in the log", node.commit())?;
    require!(
        name,
        log.last().term <= node.term(),
        "the log has an entry of term {}, later than its own",
        log.last().term
    )?;
    let clock = node.clock();
    require!(
        name,
        log.last_stamp() <= clock,
        "its clock {clock} is behind its log, which ends at {}",
        log.last_stamp()
    )?;
    require!(name, base.0 + log.entries().len() as u64 == last.0, "the log's indexes have a gap")?;
    let tail = &log.entries()[log.entries().len().saturating_sub(TAIL)..];
    for pair in tail.windows(2) {
        let ordered =
            pair[0].index.next() == pair[1].index && pair[0].term <= pair[1].term && pair[0].stamp <= pair[1].stamp;
        require!(name, ordered, "entry {} does not follow the one before", pair[1].index)?;
    }
    match node.role() {
        Role::Follower { leader } => require!(name, *leader != Some(node.id()), "it follows itself")?,
        Role::PreCandidate { grants: voters } => {
            require!(name, voters.contains(&node.id()), "it would not vote for itself")?;
        }
        Role::Candidate { votes: voters } => {
            require!(name, voters.contains(&node.id()), "it did not vote for itself")?;
            require!(name, node.hard_state().vote == Some(node.id()), "its own vote is not recorded")?;
        }
        Role::Leader(leadership) => {
            require!(name, node.hard_state().vote == Some(node.id()), "it leads without its own vote")?;
            require!(name, log.last().term == node.term(), "it has no entry of its own term")?;
            let others = node.members().ids().filter(|&id| id != node.id());
            let tracked = leadership.progress.keys().copied();
            require!(name, others.eq(tracked), "it does not track exactly the other members")?;
            for (&peer, progress) in &leadership.progress {
                let NodeId(peer) = peer;
                let (matched, next) = (progress.matched, progress.next);
                let ordered = matched < next && next <= last.next();
                require!(name, ordered, "peer {peer}: matched {matched}, next {next}, last {last}")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::node_is_sound;
    use crate::invariants::states::{complaint, follower, leader, noop, with_appended, with_proposals};
    use crate::lock::LockTable;
    use crate::raft::parts::Parts;
    use crate::raft::{Index, Node, NodeId, Progress, Role, Stamp, Term};

    /// The detail of the violation after a change to the node's parts.
    fn broken(node: &Node<LockTable>, breaks: impl FnOnce(Parts<'_, LockTable>)) -> alloc::string::String {
        let mut node = node.clone();
        assert_eq!(complaint(node_is_sound(&node)), "");
        breaks(node.parts());
        complaint(node_is_sound(&node))
    }

    fn progress<'a>(parts: &'a mut Parts<'_, LockTable>) -> &'a mut Progress {
        let Role::Leader(leadership) = parts.role else { panic!("it leads") };
        leadership.progress.get_mut(&NodeId(2)).unwrap()
    }

    #[test]
    fn commit_outside_of_the_log_is_seen() {
        let node = with_appended(&follower(1, &[]), 1, &[1, 1], 2);
        assert_eq!(node.commit(), Index(2));
        assert_eq!(broken(&node, |parts| *parts.commit = Index(1)), "");
        assert_eq!(broken(&node, |parts| *parts.commit = Index(3)), "commit 3 is not in the log");
    }

    #[test]
    fn term_before_its_log_is_seen() {
        let node = follower(2, &[1, 2]);
        let complaint = broken(&node, |parts| parts.hard.term = Term(1));
        assert_eq!(complaint, "the log has an entry of term 2, later than its own");
    }

    #[test]
    fn clock_behind_its_log_is_seen() {
        let node = follower(3, &[1, 2]);
        assert_eq!(broken(&node, |parts| *parts.clock = Stamp(9)), "");
        let complaint = broken(&node, |parts| parts.entries[1].stamp = Stamp(1));
        assert_eq!(complaint, "its clock 0 is behind its log, which ends at 1");
    }

    #[test]
    fn log_out_of_order_is_seen() {
        let node = follower(3, &[1, 1, 2, 2]);
        assert_eq!(broken(&node, |parts| drop(parts.entries.remove(1))), "the log's indexes have a gap");
        let does_not_follow = |index: u64| alloc::format!("entry {index} does not follow the one before");
        assert_eq!(broken(&node, |parts| parts.entries[1].index = Index(3)), does_not_follow(3));
        assert_eq!(broken(&node, |parts| parts.entries[2].term = Term(0)), does_not_follow(3));
        assert_eq!(broken(&node, |parts| parts.entries[1].stamp = Stamp(1)), does_not_follow(3));
    }

    #[test]
    fn node_that_follows_itself_is_seen() {
        let set = |leader| broken(&follower(1, &[]), |parts| *parts.role = Role::Follower { leader });
        assert_eq!(set(Some(NodeId(2))), "");
        assert_eq!(set(Some(NodeId(1))), "it follows itself");
    }

    #[test]
    fn candidate_without_its_own_vote_is_seen() {
        let node = follower(1, &[]);
        let vote = |parts: &mut Parts<'_, LockTable>| parts.hard.vote = Some(NodeId(1));
        let (own, other) = ([NodeId(1)].into(), [NodeId(2)].into());
        assert_eq!(broken(&node, |parts| *parts.role = Role::PreCandidate { grants: own }), "");
        let complaint = broken(&node, |parts| *parts.role = Role::PreCandidate { grants: other });
        assert_eq!(complaint, "it would not vote for itself");
        let candidate = |votes: &[u32], voted: bool| {
            broken(&node, |mut parts| {
                *parts.role = Role::Candidate { votes: votes.iter().copied().map(NodeId).collect() };
                if voted {
                    vote(&mut parts);
                }
            })
        };
        assert_eq!(candidate(&[1, 2], true), "");
        assert_eq!(candidate(&[2], true), "it did not vote for itself");
        assert_eq!(candidate(&[1], false), "its own vote is not recorded");
    }

    #[test]
    fn leader_of_nothing_is_seen() {
        let node = leader(2, &[1]);
        assert_eq!(broken(&node, |parts| parts.hard.vote = Some(NodeId(2))), "it leads without its own vote");
        assert_eq!(broken(&node, |parts| parts.entries[1] = noop(2, 1)), "it has no entry of its own term");
        assert_eq!(broken(&node, |parts| parts.hard.term = Term(3)), "it has no entry of its own term");
    }

    #[test]
    fn leader_with_other_followers_than_its_peers_is_seen() {
        let node = leader(1, &[]);
        for strangers in [false, true] {
            let complaint = broken(&node, |parts| {
                let Role::Leader(leadership) = parts.role else { panic!("it leads") };
                let progress = leadership.progress[&NodeId(2)];
                if strangers {
                    leadership.progress.insert(NodeId(4), progress);
                } else {
                    leadership.progress.remove(&NodeId(2));
                }
            });
            assert_eq!(complaint, "it does not track exactly the other members");
        }
    }

    /// `matched < next ≤ last + 1`: acknowledged entries are not sent again, and no entry is
    /// skipped.
    #[test]
    fn progress_out_of_bounds_is_seen() {
        let node = with_proposals(&leader(1, &[]), &[1, 2]);
        let set = |matched, next| {
            broken(&node, |mut parts| {
                let progress = progress(&mut parts);
                (progress.matched, progress.next) = (Index(matched), Index(next));
            })
        };
        for (matched, next) in [(0, 1), (0, 4), (2, 3), (3, 4)] {
            assert_eq!(set(matched, next), "");
        }
        for (matched, next) in [(2, 2), (2, 1), (0, 5), (4, 4)] {
            assert_eq!(set(matched, next), alloc::format!("peer 2: matched {matched}, next {next}, last 3"));
        }
    }
}
