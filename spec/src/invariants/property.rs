//! The names of all properties: of the protocol, of the lock table, and of what the models, the
//! simulation and the validation of recordings check around them.
//!
//! Lists of mutants, saved traces and documents name a property by its text ([`Property::name`]).

use core::fmt;

macro_rules! properties {
    ($($(#[$doc:meta])* $property:ident = $name:literal,)*) => {
        /// A property that a checker judges.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Property {
            $($(#[$doc])* $property,)*
            /// A property of the history that the clients saw, under the name of its checker.
            History(&'static str),
        }

        impl Property {
            /// All properties but those of client histories.
            pub const ALL: &'static [Property] = &[$(Property::$property,)*];

            /// The property's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Property::$property => $name,)*
                    Property::History(checker) => checker,
                }
            }
        }
    };
}

properties! {
    /// At most one leader is elected in a term (figure 3.2).
    ElectionSafety = "election safety",
    /// A leader has the votes of a majority of the voters (§3.4, §4.1).
    ElectedByMajority = "elected by a majority",
    /// A leader only appends to its log (figure 3.2).
    LeaderAppendOnly = "leader append-only",
    /// Logs with the same entry at an index are equal up to it (figure 3.2).
    LogMatching = "log matching",
    /// A leader has every entry that was committed in an earlier term (figure 3.2).
    LeaderCompleteness = "leader completeness",
    /// A leader commits only what a majority of the voters has (§3.6.2, §4.1).
    CommittedByMajority = "committed by a majority",
    /// No two nodes apply different entries at one index (figure 3.2).
    StateMachineSafety = "state machine safety",
    /// Entries are committed one after the other.
    CommitsFollowOneAnother = "commits follow one another",
    /// A state is of entries that were committed.
    CommittedBeforeKept = "committed before it is kept",
    /// After the same entry all nodes have the same state, and had the same outcomes.
    ReplicaAgreement = "replica agreement",
    /// The parts of a node's state fit one another.
    NodeSoundness = "node soundness",
    /// No assertion of the code under test fails.
    Assertions = "assertions",
    /// A node's term never decreases.
    TermsOnlyGrow = "terms only grow",
    /// A node's vote does not change within a term, and is durable before it is sent.
    OneVotePerTerm = "one vote a term",
    /// A node's commit index never decreases.
    CommitOnlyGrows = "commit only grows",
    /// `Accepted` and `Applied` name the entries that they are about.
    RepliesNameEntries = "replies name their entries",
    /// Every reply names an open request of its node, and a node replies as it promises.
    RepliesNameRequests = "replies name their requests",
    /// What a follower acknowledges is in the leader's log too.
    AcknowledgementsMatchLog = "acknowledgements match the log",
    /// An acknowledged entry stays in the log.
    AcknowledgedEntriesAreKept = "acknowledged entries are kept",
    /// An AppendEntries says what its sender's log has.
    MessagesAreTrue = "messages are true",
    /// The base of a log and a snapshot name the committed entry that they replace.
    SnapshotsMatchLog = "snapshots match the log",

    /// A node uses the members that its log states (§4.1).
    MembersFollowLog = "members follow the log",
    /// A snapshot has the members as of its last entry (§5.1).
    MembersSurviveCompaction = "members survive compaction",
    /// At most one change of the members is uncommitted (§4.1).
    OneChangeAtATime = "one change at a time",
    /// A removed leader leads no longer once its removal is committed (§4.2.2).
    RemovedLeaderStepsDown = "a removed leader steps down",

    /// Stamps never decrease along the log.
    StampsOnlyGrow = "stamps only grow",
    /// A node's clock goes back only when its log changes.
    ClockMonotonicity = "clock monotonicity",
    /// A new leader continues from its own clock.
    ElectionsLoseNoTime = "elections lose no time",
    /// Cluster time advances past an entry's stamp by no more than the entry's age.
    ClusterTimeNeverRunsAhead = "cluster time never runs ahead",
    /// A node's clock advances by no more than the time that passed.
    ClocksAreNotFast = "clocks are not fast",

    /// A node that is idle has in memory what its disk has.
    MemoryMatchesDisk = "memory matches disk",
    /// A message leaves only when the writes before it are durable.
    PersistBeforeSend = "persist before send",
    /// The messages that leave are those of the outputs, in their order.
    SendsMatchOutputs = "sends match outputs",
    /// The writes are those of the outputs, in their order.
    WritesMatchOutputs = "writes match outputs",
    /// A message that a node receives was sent.
    NoSpuriousMessage = "no spurious message",
    /// A restart finds every write that was reported durable.
    AcknowledgedWritesSurvive = "acknowledged writes survive",
    /// A driver's own snapshot, and the compaction after it, include only entries whose `Applied`
    /// it may have executed.
    CompactedAfterRelease = "compacted after release",
    /// The founders of a cluster start with the same members.
    FoundersAgree = "founders agree",
    /// A cluster has founders.
    ClusterHasFounders = "a cluster has founders",

    /// A message of a later term ends its receiver's term.
    LaterTermsAreAdopted = "later terms are adopted",
    /// A leader that receives no answers steps down.
    UnheardLeaderStepsDown = "unheard leader steps down",
    /// A leader's clock stops during a transfer of its leadership.
    TimeStopsDuringTransfer = "time stops during a transfer",
    /// A leader whose clock has passed a deadline has proposed a no-op that ends the session.
    ExpiryIsOnItsWay = "expiry is on its way",
    /// A node keeps its configured limits.
    LimitsHold = "limits hold",

    /// No two claims that conflict hold a lock: its holders have at most all its permits.
    MutualExclusion = "mutual exclusion",
    /// Every grant has a greater token than all grants before it.
    TokenMonotonicity = "token monotonicity",
    /// A lock goes to the session that has waited longest, and no other one overtakes it.
    FifoOrder = "FIFO order",
    /// A waiter whose turn has come at all its keys does not wait.
    NoNeedlessWait = "no needless wait",
    /// No waiters wait for one another in a circle.
    NoDeadlock = "no deadlock",
    /// A grant has as many holds as acquires that were not released.
    HoldsAreCounted = "holds are counted",
    /// A claim has the value that its own client gave it last.
    ValuesAreKept = "values are kept",
    /// Only the holder of a lock changes what was written under it.
    StoreIsFenced = "the store is fenced",
    /// All changes of a transaction are made together, and no other ones.
    TransactionsAreWhole = "transactions are whole",
    /// A session lives until its deadline.
    NoEarlyExpiry = "no early expiry",
    /// A repeated operation changes nothing.
    ExactlyOnce = "exactly once",
    /// A request without the proof of a session changes nothing.
    NoForeignChange = "no foreign change",
    /// The access rules in force permit every grant, and only administrators change them.
    NoDeniedGrant = "no denied grant",
    /// Every break of a grant is reported as it happened, and no other break is.
    BreaksAreReported = "breaks are reported",
    /// The events tell how the holders and the queues change.
    ChangesHaveEvents = "changes have events",
    /// The parts of a lock table fit one another.
    TableSoundness = "table soundness",
    /// A release drops only the claim that it names.
    ReleaseByHolderOnly = "release by holder only",
    /// A reply says what the table has.
    RepliesMatchTable = "replies match the table",

    /// A client that relies on its lease holds the lock.
    LeasesAreHonoured = "leases are honoured",
    /// A resource accepts no write with a token below the highest that it has seen.
    NoStaleWrite = "no stale write",
    /// A read includes every entry that was committed before it was requested.
    LinearizableReads = "linearizable reads",
    /// A node answers a read once.
    ReadAnsweredOnce = "a read is answered once",
    /// A client is told of an effect only when it is committed.
    ReplyAfterCommit = "reply after commit",
    /// A client is granted and refused what it asked for: these keys, in this mode, with these holds, and
    /// a position in no longer a queue.
    AnswersMatchRequests = "answers match requests",
    /// A request whose client was told that nothing was done has no effect.
    RejectedRequestsHaveNoEffect = "rejected requests have no effect",
    /// A wait ends when it was promised to end.
    WaitsEnd = "waits end",
    /// A client can decode the answers.
    ClientMessagesDecode = "client messages decode",
    /// The recorded history of the clients is one.
    HistoriesAreWellFormed = "histories are well formed",

    /// A recording has the node's start before its steps.
    RecordedInOrder = "recorded in order",
    /// A recording begins with the node's first start.
    RecordedFromFirstStart = "recorded from the first start on",
    /// The spec gives the outputs that were recorded.
    SameOutputs = "same outputs",
    /// The spec reaches the state that was recorded.
    SameState = "same state",

    /// A node starts and runs with a disk that is in order.
    SoundDiskIsAccepted = "a sound disk is accepted",
    /// An operator can set a lost log aside.
    LostLogCanBeSetAside = "a lost log can be set aside",
    /// A snapshot arrives as it was sent.
    SnapshotsArriveWhole = "snapshots arrive whole",
    /// A cluster without faults has a leader and makes progress.
    ClusterRecovers = "the cluster recovers",
    /// Every request is served in the end.
    AllRequestsAreServed = "all requests are served",
    /// All nodes reach the same state in the end.
    ReplicasConverge = "replicas converge",
}

impl Property {
    /// The property of this name; of properties of client histories only the checkers know the
    /// names.
    pub fn named(name: &str) -> Option<Property> {
        Property::ALL.iter().copied().find(|property| property.name() == name)
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::Property;

    #[test]
    fn every_name_is_of_one_property() {
        let names: BTreeSet<_> = Property::ALL.iter().map(|property| property.name()).collect();
        assert_eq!(names.len(), Property::ALL.len());
        assert!(Property::ALL.iter().all(|property| Property::named(property.name()) == Some(*property)));
        assert_eq!(Property::named("linearizability"), None);
        assert_eq!(alloc::format!("{}", Property::History("fifo")), "fifo");
    }
}
