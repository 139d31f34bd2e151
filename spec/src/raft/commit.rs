//! Commitment (§3.6.2) and application.

use alloc::vec::Vec;

use super::{Index, Node, Output, Role, StateMachine};

impl<S: StateMachine> Node<S> {
    /// Leader: commits what a majority has, if the last such entry is of the leader's own term. An
    /// entry of an earlier term is never committed by counting replicas (figure 3.7), but by an
    /// entry of this term after it.
    ///
    /// The leader counts its own log up to its end. That is safe although the write may still be in
    /// progress: the write was output earlier, so every output that depends on the commit comes
    /// after it.
    pub(super) fn advance_commit(&mut self, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &self.role else { unreachable!("only a leader counts") };
        let index = leadership.quorum_index(self.log.last().index, self.members());
        if self.log.term_at(index) == Some(self.term()) {
            self.commit_up_to(index, out);
            // Reads may wait for the first commit of this term, or for the answer of a member that
            // was removed.
            self.confirm_round(out);
            self.begin_round(out);
            self.step_down_if_removed(out);
        }
    }

    /// Leader: continues a commit that an earlier step could not complete within `max_commits`.
    pub(super) fn resume_commit(&mut self, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &self.role else { unreachable!("only a leader counts") };
        if leadership.quorum_index(self.log.last().index, self.members()) > self.commit {
            self.advance_commit(out);
        }
    }

    /// Commits and applies the entries up to `index` that are not committed yet, at most
    /// `max_commits` of them. Later steps commit the rest: a commit index that is too low is always
    /// safe.
    pub(super) fn commit_up_to(&mut self, index: Index, out: &mut Vec<Output<S>>) {
        let index = index.min(Index(self.commit.0 + self.config.max_commits));
        while self.commit < index {
            let entry = self.log.get(self.commit.next()).expect("what is committed here is in the log");
            let outcome = self.machine.apply_payload(entry.stamp, &entry.payload);
            self.commit = entry.index;
            out.push(Output::Applied { index: entry.index, term: entry.term, stamp: entry.stamp, outcome });
        }
    }
}
