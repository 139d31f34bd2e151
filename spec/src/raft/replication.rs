//! Replication (§3.5): copies a leader's entries to its followers' logs.
//!
//! Entries are batched (one AppendEntries carries many) and pipelined (the next leaves before the
//! last is acknowledged, up to a limit in flight). The network may lose messages: after a lost
//! AppendEntries a later one does not fit and is rejected, and the leader goes back.

use alloc::vec::Vec;

use super::log::follows;
use super::progress::Rejection;
use super::{
    Body, DropReason, Entry, Hint, Index, Node, NodeId, Output, Payload, Persist, Position, ReadRound, RequestId, Role,
    Stamp, StateMachine,
};

impl<S: StateMachine> Node<S> {
    /// Handles client proposals. Only a leader accepts them.
    pub(super) fn on_propose(&mut self, id: RequestId, payloads: Vec<Payload<S::Command>>, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &self.role else {
            return out.push(Output::Refused { id, leader: self.leader() });
        };
        if leadership.successor.is_some() {
            // The transfer waits until the successor has the whole log: new entries could delay
            // that without end.
            return out.push(Output::Refused { id, leader: leadership.successor });
        }
        out.push(Output::Accepted { id, first: self.log.last().index.next(), term: self.term() });
        self.append(payloads, Self::replicate, out);
    }

    /// Leader: announces itself and its commit index. A heartbeat carries no entries; a rejected
    /// heartbeat reveals entries that were lost on the way.
    pub(super) fn on_heartbeat_timeout(&mut self, out: &mut Vec<Output<S>>) {
        let commit = self.commit;
        if self.is_leader() {
            self.resume_commit(out);
        }
        // One step commits at most `max_commits` entries, and a promotion may commit some.
        if self.is_leader() && self.commit == commit {
            self.promote_returned(out);
        }
        let Role::Leader(leadership) = &self.role else { return };
        if let Some(successor) = leadership.successor {
            self.maybe_send_timeout_now(successor, out);
        }
        self.heartbeat(out);
        out.push(Output::ArmHeartbeatTimer);
    }

    /// Leader: sends an AppendEntries without entries to each peer.
    pub(super) fn heartbeat(&self, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &self.role else { unreachable!("only a leader has followers") };
        for (&peer, progress) in &leadership.progress {
            self.send_entries(peer, progress.next.max(self.log.base().index.next()), 0, out);
            if self.needs_snapshot(progress.next) {
                out.push(Output::SendSnapshot { to: peer, term: self.term() });
            }
        }
    }

    /// Leader: stamps the payloads, appends them, sends them to each peer, and outputs its own
    /// write last. Because the followers may have an entry before the leader's own disk, a commit
    /// costs one sync instead of two (§10.2.1): every output that depends on the leader's copy
    /// ([`commit`](super::commit)) comes after its write.
    pub(super) fn append(
        &mut self,
        payloads: Vec<Payload<S::Command>>,
        send: fn(&mut Self, NodeId, &mut Vec<Output<S>>),
        out: &mut Vec<Output<S>>,
    ) {
        if payloads.is_empty() {
            return;
        }
        let first = self.log.last().index.next();
        for payload in payloads {
            let index = self.log.last().index.next();
            self.log.push(Entry { term: self.term(), index, stamp: self.clock, payload });
        }
        if self.log.members_since() >= first {
            self.track_members();
        }
        for peer in self.followers() {
            send(self, peer, out);
        }
        out.push(Output::Persist(Persist::Entries(self.log.slice(first, usize::MAX).to_vec())));
        self.advance_commit(out);
    }

    /// Leader: sends `peer` the entries that it lacks, up to the limit in flight. Sends nothing to
    /// a peer in the probe state.
    pub(super) fn replicate(&mut self, peer: NodeId, out: &mut Vec<Output<S>>) {
        let last = self.log.last().index;
        let (batch, limit) = (self.config.max_batch, self.config.max_inflight);
        loop {
            let progress = self.progress(peer);
            let window = usize::try_from(progress.window(limit)).unwrap_or(usize::MAX);
            if window == 0 || progress.next > last {
                return;
            }
            let from = progress.next;
            if self.needs_snapshot(from) {
                return self.fall_back_to_snapshot(peer, out);
            }
            let sent = self.send_entries(peer, from, window.min(batch), out);
            self.progress(peer).next = Index(from.0 + sent as u64);
        }
    }

    /// Leader: probes once whether the log of `peer` matches before `next`, with a first batch in
    /// case it does.
    pub(super) fn probe(&mut self, peer: NodeId, out: &mut Vec<Output<S>>) {
        let next = self.progress(peer).next;
        if self.needs_snapshot(next) {
            return self.fall_back_to_snapshot(peer, out);
        }
        self.send_entries(peer, next, self.config.max_batch, out);
    }

    /// Sends at most `limit` entries from `from` on, and returns their number. Without entries it
    /// is a heartbeat.
    fn send_entries(&self, peer: NodeId, from: Index, limit: usize, out: &mut Vec<Output<S>>) -> usize {
        let index = from.previous();
        let term = self.log.term_at(index).expect("a leader sends only what its log holds");
        let entries = self.log.slice(from, limit).to_vec();
        let sent = entries.len();
        let prev = Position { term, index };
        let Role::Leader(leadership) = &self.role else { unreachable!("only a leader has followers") };
        let (commit, stamp, round) = (self.commit, self.clock, leadership.reads.round);
        self.send(peer, Body::AppendEntries { prev, entries, commit, stamp, round }, out);
        sent
    }

    /// Follower: handles the leader's entries or its heartbeat (figure 3.1, "AppendEntries RPC").
    pub(super) fn on_append_entries(
        &mut self,
        from: NodeId,
        prev: Position,
        entries: Vec<Entry<S::Command>>,
        AppendMeta { commit, stamp, round }: AppendMeta,
        out: &mut Vec<Output<S>>,
    ) {
        let last_stamp = entries.last().map_or(Stamp(0), |entry| entry.stamp);
        let last_term = entries.last().map_or(prev.term, |entry| entry.term);
        if self.is_leader() || !contiguous(prev, &entries) || last_stamp > stamp || last_term > self.term() {
            return out.push(Output::Dropped { from, reason: DropReason::Malformed });
        }
        self.role = Role::Follower { leader: Some(from) };
        out.push(Output::ArmElectionTimer);

        // The entries that a snapshot covers are committed, and so equal in every leader's log:
        // only later ones are compared.
        let base = self.log.base().index;
        let fits = prev.index < base || self.log.term_at(prev.index) == Some(prev.term);
        if !fits {
            let hint = self.hint(prev.index);
            return self.send(from, Body::AppendRejected { prev: prev.index, hint, round }, out);
        }
        let matched = Index(prev.index.0 + entries.len() as u64).max(base);
        let news = self.missing_entries(entries);
        if news.first().is_some_and(|first| !self.can_append(first)) {
            return out.push(Output::Dropped { from, reason: DropReason::Malformed });
        }
        let wrote = !news.is_empty();
        self.accept(news, out);
        self.observe_leader_clock(stamp, matched, wrote);
        self.send(from, Body::AppendAccepted { matched, round }, out);
        // Only up to what this leader has confirmed: later entries may be another leader's (figure
        // 3.1, step 5).
        self.commit_up_to(commit.min(matched), out);
    }

    /// The leader's entries that this log lacks.
    fn missing_entries(&self, entries: Vec<Entry<S::Command>>) -> Vec<Entry<S::Command>> {
        let base = self.log.base().index;
        let known =
            |entry: &Entry<S::Command>| entry.index <= base || self.log.term_at(entry.index) == Some(entry.term);
        entries.into_iter().skip_while(known).collect()
    }

    /// Whether the entry can follow its predecessor in this log.
    fn can_append(&self, entry: &Entry<S::Command>) -> bool {
        let index = entry.index.previous();
        let before = self.log.term_at(index).zip(self.log.stamp_at(index));
        before.is_some_and(|(term, stamp)| follows(Position { term, index }, stamp, entry))
    }

    /// Writes the missing entries to the log. The first conflicting entry is removed with all that
    /// follow it; entries that do not conflict stay, because this may be an old message.
    fn accept(&mut self, news: Vec<Entry<S::Command>>, out: &mut Vec<Output<S>>) {
        let Some(first) = news.first() else { return };
        assert!(first.index > self.commit, "a committed entry is never replaced (§3.6.3, State Machine Safety)");
        self.log.truncate(first.index);
        for entry in &news {
            self.log.push(entry.clone());
        }
        out.push(Output::Persist(Persist::Entries(news)));
    }

    /// What this node's log holds at `prev`, where the leader's entry did not fit.
    pub(super) fn hint(&self, prev: Index) -> Hint {
        match self.log.term_at(prev) {
            Some(term) => Hint::Conflict { term, first: self.log.first_index_of_term_at(prev) },
            None => Hint::Short { next: self.log.last().index.next() },
        }
    }

    /// Leader: a follower's log equals the leader's up to `matched`.
    pub(super) fn on_append_accepted(
        &mut self,
        from: NodeId,
        matched: Index,
        round: ReadRound,
        out: &mut Vec<Output<S>>,
    ) {
        if let Err(reason) = self.validate_reply(from, matched) {
            return out.push(Output::Dropped { from, reason });
        }
        self.record_reply(from, round);
        self.progress(from).accepted(matched);
        self.advance_commit(out);
        if self.is_leader() {
            self.replicate(from, out);
            self.maybe_send_timeout_now(from, out);
            self.confirm_round(out);
        }
    }

    /// Leader: a follower has no entry at `prev`, or a different one.
    pub(super) fn on_append_rejected(
        &mut self,
        from: NodeId,
        prev: Index,
        hint: Hint,
        round: ReadRound,
        out: &mut Vec<Output<S>>,
    ) {
        if let Err(reason) = self.validate_reply(from, Index(0)) {
            return out.push(Output::Dropped { from, reason });
        }
        // If the leader has entries of the follower's conflicting term, the logs may be equal up to
        // the last of them; otherwise all of the follower's entries of that term are wrong (§3.5).
        let next = match hint {
            Hint::Short { next } => next,
            Hint::Conflict { term, first } => self.log.last_index_of_term(term).map_or(first, Index::next),
        };
        self.record_reply(from, round);
        match self.progress(from).rejected(prev, next) {
            Rejection::Stale => out.push(Output::Dropped { from, reason: DropReason::Stale }),
            Rejection::Current => self.probe(from, out),
            Rejection::LostEntries => {
                out.push(Output::LostEntries { follower: from, acknowledged: prev });
                self.probe(from, out);
            }
        }
        self.confirm_round(out);
    }

    /// Whether the message can be a reply to a request of this node as leader.
    fn validate_reply(&self, from: NodeId, matched: Index) -> Result<(), DropReason> {
        let Role::Leader(leadership) = &self.role else { return Err(DropReason::Stale) };
        if !leadership.progress.contains_key(&from) {
            return Err(DropReason::UnknownPeer);
        }
        if matched > self.log.last().index { Err(DropReason::Malformed) } else { Ok(()) }
    }

    /// Leader: the other members.
    fn followers(&self) -> Vec<NodeId> {
        let Role::Leader(leadership) = &self.role else { unreachable!("only a leader has followers") };
        leadership.progress.keys().copied().collect()
    }

    /// Leader: the progress of one peer.
    pub(super) fn progress(&mut self, peer: NodeId) -> &mut super::Progress {
        let Role::Leader(leadership) = &mut self.role else { unreachable!("only a leader has followers") };
        leadership.progress.get_mut(&peer).expect("a leader knows every other member")
    }
}

/// The fields of an AppendEntries other than its entries.
pub(super) struct AppendMeta {
    pub(super) commit: Index,
    pub(super) stamp: Stamp,
    pub(super) round: ReadRound,
}

/// Whether the entries follow `prev` and one another without a gap, as in any log.
fn contiguous<C>(prev: Position, entries: &[Entry<C>]) -> bool {
    let mut last = prev;
    let mut stamp = Stamp(0);
    entries.iter().all(|entry| {
        let fits = follows(last, stamp, entry);
        (last, stamp) = (entry.position(), entry.stamp);
        fits
    })
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec;
    use alloc::vec::Vec;

    use crate::invariants::states;
    use crate::raft::parts::Idle;
    use crate::raft::{
        Body, Config, Durable, Entry, HardState, Index, Input, Log, Members, Message, Node, NodeId, Output, Payload,
        Persist, Position, ReadRound, Snapshot, Stamp, Term,
    };

    fn at(index: u64, term: u64) -> Position {
        Position { term: Term(term), index: Index(index) }
    }

    fn entry(index: u64, term: u64) -> Entry<()> {
        Entry { term: Term(term), index: Index(index), stamp: Stamp(100), payload: Payload::Noop }
    }

    /// Sends node 1, whose log begins after a snapshot up to 10@2, these entries of the leader of
    /// term 3. Returns the indexes that node 1 writes, its reply if any, and its commit index.
    fn append(prev: Position, entries: &[Entry<()>]) -> (Vec<u64>, Option<Body<Idle>>, u64) {
        let (last, stamp, round) = (at(10, 2), Stamp(100), ReadRound(0));
        let members = Arc::new(Members::of([1, 2, 3].map(NodeId)));
        let mut node = Node::recover(
            Config::new(NodeId(1)),
            Durable {
                hard: HardState { term: Term(3), vote: None },
                snapshot: Snapshot { last, stamp, members: Arc::clone(&members), machine: Idle },
                log: Log::starting_at(last, stamp, members),
            },
        );
        let body = Body::AppendEntries { prev, entries: entries.to_vec(), commit: Index(11), stamp, round };
        let mut out = Vec::new();
        node.step(Input::Receive(Message { from: NodeId(2), to: NodeId(1), term: Term(3), body }), &mut out);
        let (mut written, mut answer) = (Vec::new(), None);
        for output in out {
            match output {
                Output::Persist(Persist::Entries(entries)) => written.extend(entries.iter().map(|entry| entry.index.0)),
                Output::Send(message) => answer = Some(message.body),
                _ => {}
            }
        }
        (written, answer, node.commit().0)
    }

    #[test]
    fn entries_that_the_snapshot_covers_are_skipped() {
        let accepted = |matched| Some(Body::AppendAccepted { matched: Index(matched), round: ReadRound(0) });
        let many = [entry(9, 2), entry(10, 2), entry(11, 2), entry(12, 3)];
        assert_eq!(append(at(8, 1), &many), (vec![11, 12], accepted(12), 11));
        assert_eq!(append(at(9, 2), &many[1..]), (vec![11, 12], accepted(12), 11));
        assert_eq!(append(at(10, 2), &many[2..]), (vec![11, 12], accepted(12), 11));
        // The snapshot proves equality up to its own end, even if the leader's entries end before
        // it.
        assert_eq!(append(at(8, 1), &many[..1]), (vec![], accepted(10), 10));
        assert_eq!(append(at(10, 2), &[]), (vec![], accepted(10), 10));
    }

    /// No correct leader sends this. If one did, the logs would have diverged permanently, and
    /// continuing would hide it.
    #[test]
    #[should_panic = "a committed entry is never replaced"]
    fn replacing_a_committed_entry_panics() {
        let node = states::with_appended(&states::follower(1, &[]), 1, &[1, 1], 2);
        states::with_appended(&node, 2, &[1, 2], 0);
    }

    #[test]
    fn only_positions_before_the_snapshots_end_are_not_compared() {
        for prev in [at(10, 1), at(11, 2)] {
            let (written, answer, applied) = append(prev, &[]);
            assert!(matches!(answer, Some(Body::AppendRejected { .. })));
            assert_eq!((written, applied), (vec![], 10));
        }
    }

    /// The entries are contiguous, but the first one after the snapshot does not follow the
    /// snapshot: no log has both.
    #[test]
    fn entries_that_cannot_follow_the_snapshot_are_dropped() {
        let older = [entry(9, 1), entry(10, 1), entry(11, 1)];
        assert_eq!(append(at(8, 1), &older), (vec![], None, 10));
        let with_a_gap = [entry(9, 2), entry(11, 2)];
        assert_eq!(append(at(8, 1), &with_a_gap), (vec![], None, 10));
        let earlier = [9, 10, 11].map(|index| Entry { stamp: Stamp(99), ..entry(index, 2) });
        assert_eq!(append(at(8, 1), &earlier), (vec![], None, 10));
    }
}
