//! The properties of one step.

use std::collections::BTreeSet;

use palisade_spec::invariants::{self, Check};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Durable, HardState, Message, Node, NodeId, Output};
use palisade_spec::require;

use super::super::logs::{self, NODE, Stamped, position};
use super::bounds::Consensus;
use super::states::{Standing, StartState};
use super::steps::Step;

/// A node's step, as the checks see it.
pub(super) struct Taken<'a> {
    pub(super) case: &'a Consensus,
    pub(super) initial: &'a StartState,
    pub(super) step: &'a Step,
    pub(super) before: &'a Node<LockTable>,
    pub(super) after: &'a Node<LockTable>,
    pub(super) outputs: &'a [Output<LockTable>],
}

impl Taken<'_> {
    fn own(&self) -> &[Stamped] {
        &self.case.logs[self.initial.log]
    }

    /// The log of the leader that sent the message.
    fn heard(&self) -> &[Stamped] {
        match self.step {
            Step::Append { log, .. } => &self.case.logs[*log],
            _ => &[],
        }
    }

    /// Checks every property of the step.
    pub(super) fn check(&self) -> Check {
        invariants::votes_stand(NODE, self.before.hard_state(), self.after.hard_state())?;
        self.promises_are_durable()?;
        self.log()?;
        self.leadership()?;
        self.commit()
    }

    /// Messages are true, and their content is durable before they are sent.
    fn promises_are_durable(&self) -> Check {
        let mut disk: Durable<LockTable> = logs::blank(self.case.bounds.servers);
        disk.hard = self.before.hard_state();
        disk.log = self.before.log().clone();
        for output in self.outputs {
            match output {
                Output::Persist(write) => disk.apply(write),
                Output::Send(sent) => self.is_true(sent, &disk)?,
                _ => {}
            }
        }
        let is_written = disk.hard == self.after.hard_state() && disk.log == *self.after.log();
        require!(
            invariants::Property::MemoryMatchesDisk,
            is_written,
            "the disk has {disk:?}, and the node is {:?}",
            self.after
        )
    }

    fn is_true(&self, sent: &Message<LockTable>, disk: &Durable<LockTable>) -> Check {
        let said = || format!("{sent:?} was sent, and the disk has {disk:?}");
        let durable: Vec<Stamped> = disk.log.entries().iter().map(|entry| (entry.term.0, entry.stamp.0)).collect();
        let voted = |candidate| disk.hard == HardState { term: sent.term, vote: Some(candidate) };
        match &sent.body {
            Body::RequestVoteReply { granted: true } => {
                require!(invariants::Property::OneVotePerTerm, voted(sent.to), "{}", said())?;
                self.candidate_is_complete(sent)
            }
            Body::RequestVote { last, .. } => {
                let is_own = *last == self.after.log().last();
                require!(invariants::Property::OneVotePerTerm, voted(NODE) && is_own, "{}", said())
            }
            Body::AppendAccepted { matched, .. } => {
                let matched = usize::try_from(matched.0).expect("a short log");
                let heard = self.heard().get(..matched);
                let is_there = heard.is_some_and(|heard| durable.starts_with(heard)) && disk.hard.term == sent.term;
                require!(invariants::Property::AcknowledgedEntriesAreKept, is_there, "{}", said())
            }
            Body::AppendEntries { prev, entries, commit, .. } => {
                let log = logs::stamped(self.after);
                let from = usize::try_from(prev.index.0).expect("a short log");
                let is_there = position(&log, from) == *prev && logs::entries(&log, from).starts_with(entries);
                let leads = self.after.is_leader() && sent.term == self.after.term() && *commit <= self.after.commit();
                require!(invariants::Property::MessagesAreTrue, is_there && leads, "{}", said())
            }
            _ => Ok(()),
        }
    }

    /// The vote goes to a candidate that has every entry of this node's log that may be committed.
    fn candidate_is_complete(&self, reply: &Message<LockTable>) -> Check {
        let Step::AskForVote { log, .. } = self.step else {
            return require!(invariants::Property::OneVotePerTerm, false, "{reply:?} answers no question");
        };
        let candidates = &self.case.logs[*log];
        let last = candidates.last().map_or(0, |last| last.0);
        for known in 1..=self.own().len() {
            let entries = &self.own()[..known];
            let term = entries[known - 1].0;
            // The candidate's last entry may be of a later leader. If the entries were committed,
            // that leader had them, and so does the candidate; if that leader lacked them, they
            // were never committed.
            let was_replaced = last > term;
            require!(
                invariants::Property::LeaderCompleteness,
                was_replaced || candidates.starts_with(entries),
                "a candidate with the log {candidates:?} gets the vote of a node with {entries:?}"
            )?;
        }
        Ok(())
    }

    /// The log is a prefix of its old log or of the leader's, and keeps the acknowledged and
    /// committed entries.
    fn log(&self) -> Check {
        let (own, heard, log) = (self.own(), self.heard(), logs::stamped(self.after));
        if self.after.is_leader() {
            return require!(
                invariants::Property::LeaderAppendOnly,
                log.starts_with(own),
                "{own:?} has become {log:?}"
            );
        }
        let is_known = own == log || heard.starts_with(&log);
        require!(
            invariants::Property::LogMatching,
            is_known,
            "{own:?} has become {log:?}, and the leader has {heard:?}"
        )?;
        let committed = &own[..usize::try_from(self.initial.commit).expect("a short log")];
        let keeps = log.starts_with(committed);
        require!(
            invariants::Property::StateMachineSafety,
            keeps,
            "{committed:?} is committed, and the log is {log:?}"
        )?;
        // Entries that the node has acknowledged to this leader are in the leader's log, possibly
        // only after this message was sent.
        let acknowledged = (0..=own.len()).rev().find(|&length| {
            let common = length.min(heard.len());
            own[..common] == heard[..common]
        });
        let acknowledged = acknowledged.map_or(&own[..0], |length| &own[..length]);
        require!(
            invariants::Property::AcknowledgedEntriesAreKept,
            log.starts_with(acknowledged),
            "{acknowledged:?} may be acknowledged, and the log is {log:?}"
        )
    }

    /// Only a candidate with the votes of a majority leads, with the log that it asked for votes
    /// with.
    fn leadership(&self) -> Check {
        if !self.after.is_leader() || self.before.is_leader() {
            return require!(
                invariants::Property::ElectionSafety,
                !self.after.is_leader() || self.after.term() == self.before.term(),
                "a leader of term {} leads in term {}",
                self.before.term(),
                self.after.term()
            );
        }
        let mut votes: BTreeSet<u32> = match &self.initial.standing {
            Standing::Campaigns(votes) => votes.iter().copied().collect(),
            _ => BTreeSet::new(),
        };
        if let Step::Receive(Message { from, term, body: Body::RequestVoteReply { granted: true }, .. }) = self.step
            && *term == self.before.term()
        {
            votes.insert(from.0);
        }
        let is_elected = self.case.is_majority(votes.len() + 1) && self.after.term() == self.before.term();
        require!(
            invariants::Property::ElectionSafety,
            is_elected,
            "it leads term {} with the votes {votes:?}",
            self.after.term()
        )?;
        let expected = [self.own(), &[(self.after.term().0, 0)]].concat();
        let log = logs::stamped(self.after);
        require!(
            invariants::Property::ElectionSafety,
            log == expected,
            "it was elected with {:?}, and leads with {log:?}",
            self.own()
        )
    }

    /// Newly committed entries are committed: a majority has acknowledged them, or the leader has
    /// said so.
    fn commit(&self) -> Check {
        let (old, new) = (self.before.commit(), self.after.commit());
        if new == old {
            return Ok(());
        }
        let term = self.after.log().term_at(new);
        let known = match (&self.initial.standing, self.step) {
            (_, Step::Append { commit, .. }) => {
                let committed = usize::try_from(new.0).expect("a short log");
                let is_the_leaders = self.heard().get(..committed) == logs::stamped(self.after).get(..committed);
                new.0 <= *commit && is_the_leaders
            }
            (Standing::Leads { acknowledged, .. }, taken) => {
                let heard = |other: u32| match taken {
                    Step::Receive(Message {
                        from: NodeId(from),
                        term,
                        body: Body::AppendAccepted { matched, .. },
                        ..
                    }) if *from == other && *term == self.before.term() => matched.0,
                    _ => 0,
                };
                let has = |(other, matched): (u32, &u8)| u64::from(*matched).max(heard(other)) >= new.0;
                let count = 1 + self.case.others().zip(acknowledged).filter(|known| has(*known)).count();
                self.case.is_majority(count) && term == Some(self.after.term())
            }
            _ => false,
        };
        require!(invariants::Property::CommittedByMajority, known && new > old, "commit {old} has become {new}")
    }
}
