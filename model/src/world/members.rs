//! Checks of the membership, where it changes: of one server, of the majorities that elect, and of
//! history.

use palisade_spec::invariants::{
    Check, elected_by_a_majority, members_follow_the_log, members_survive_compaction, one_change_at_a_time,
    removed_leader_steps_down,
};
use palisade_spec::raft::Index;

use super::environment::Environment;
use super::intern::Ref;
use super::replica::Replica;
use super::setup::World;
use super::state::State;

impl<E: Environment> World<E> {
    /// Checks a server's new state, and its election if it was `elected`.
    pub(super) fn judge_members(
        &self,
        state: &State<E>,
        old: Ref<Replica<E::Machine>>,
        new: Ref<Replica<E::Machine>>,
        elected: bool,
    ) -> Check {
        let (node, committed) = (&new.node, &state.history.committed);
        removed_leader_steps_down(node)?;
        if old.node.log() != node.log() {
            members_follow_the_log(node.log())?;
            one_change_at_a_time(node.log(), Index(committed.len() as u64))?;
        }
        let (log, snapshot) = (node.log(), &new.disk.snapshot);
        let base = log.base().index;
        members_survive_compaction(base, log.members_at(base), &self.founders, committed)?;
        members_survive_compaction(snapshot.last.index, &snapshot.members, &self.founders, committed)?;
        if elected {
            elected_by_a_majority(node, |id| state.server(id).node.hard_state())?;
        }
        Ok(())
    }
}
