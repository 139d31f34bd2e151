//! Raft, as a function.
//!
//! # The problem
//!
//! Several servers keep copies of one state machine, here the lock table. Each copy must execute
//! the same commands in the same order, although servers crash and come back with what is on their
//! disks, and although the network delays, repeats, reorders and loses messages. As long as a
//! majority of the voters runs and can communicate, the cluster must go on; and no command that a
//! client was told of may be lost, whichever server leads next.
//!
//! Raft solves this with a log. The servers elect a leader, and only the leader appends to the log.
//! When a majority of the voters has an entry of the leader's term on disk, that entry and all
//! before it are committed: each stays at its index for ever, and every server applies it there.
//! The rules are those of Diego Ongaro's dissertation (*Consensus: Bridging Theory and Practice*,
//! 2014); section numbers in these files are its own.
//!
//! # A node is a value
//!
//! [`Node`] is one server's part in this. [`Node::step`] takes one [`Input`] (a message, a
//! proposal, a timer that ran out, time that has passed), changes the node, and lists [`Output`]s:
//! writes to the disk, messages, applied entries, answers. It reads no clock, draws no random
//! number and waits for nothing, so the same inputs always give the same outputs. The scenario
//! scripts, the models, the simulation and the server all execute this one function.
//!
//! A *driver* owns the node and does what the outputs say. It owes the node one thing, the order of
//! the outputs: what stands behind a [`Persist`] waits until that write is durable. [`interface`]
//! has the whole contract. Whatever else a driver decides (when timers fire, how many inputs it
//! steps before it syncs, which messages it drops) can cost progress and never safety.
//!
//! A node has three kinds of state:
//!
//! - what its disk keeps, as [`Durable`]: term and vote, the snapshot, and the log;
//! - what it learns again after a crash: the commit index, the state machine at that index, and
//!   cluster time;
//! - what belongs to its [`Role`] and is dropped with it: the votes of a candidate, a leader's
//!   [`Progress`] of each follower.
//!
//! [`StateMachine`] is what the node replicates. Nothing in this module knows of locks; its own
//! tests replicate a list of words.
//!
//! # How the parts play together
//!
//! Time is divided into terms, and a term has at most one leader. A message of a later term makes
//! its receiver a follower of that term; a request of an earlier one is rejected with the present
//! term, so that its sender steps down. A node that knows a leader drops requests for votes,
//! whatever their term. `node.rs` does both before any other rule sees a message.
//!
//! **Elections.** A follower whose election timer runs out first asks whether it could win
//! ([`election`], PreVote), and only then begins a term and asks for votes. A node votes once in a
//! term, and only for a log that is at least as up-to-date as its own. A committed entry is on a
//! majority of the disks and a vote needs a majority too, so the winner has every committed entry.
//! A leader that a majority no longer answers steps down by itself (CheckQuorum).
//!
//! **Replication.** [`replication`] copies the leader's log to the others. Each AppendEntries names
//! the entry before its own, and a follower that does not have that entry rejects the message with
//! a hint; so logs that agree at one index agree everywhere before it. [`progress`] decides how the
//! leader sends: one message at a time until it knows where the logs match, a pipeline from then
//! on. The leader does not send a lost message again. A later AppendEntries, a heartbeat at the
//! latest, does not fit, and the hint of its rejection tells the leader where to continue.
//!
//! **Commitment.** [`commit`] counts. The leader commits an entry when a majority of the voters has
//! it, but counts only entries of its own term, because an entry of an earlier term can be on a
//! majority and still be replaced (figure 3.7). So a new leader appends a no-op at once, and with
//! it commits all that came before.
//!
//! **Everything else** uses these three: [`membership`] changes which servers count, by an entry of
//! the log; [`read`] proves to the leader that it still led after a read arrived; [`transfer`]
//! starts an election at a chosen server; [`snapshot`] replaces the beginning of the log; [`clock`]
//! gives every entry the time at which it happens.
//!
//! # The life of an entry
//!
//! Three nodes, of which the first leads. A client's request becomes a proposal:
//!
//! 1. The driver gives the leader [`Input::Propose`]. The leader stamps the payload with cluster
//!    time, appends it to its log in memory and outputs [`Output::Accepted`] with the entry's index
//!    and term, an AppendEntries for each follower, and its own write: in this order, so that the
//!    followers' disks and the leader's work at the same time ([`replication`]).
//! 2. A follower finds that the entry before it fits. It removes entries of its own that conflict,
//!    appends the new one, outputs the write and behind it AppendAccepted. The driver sends that
//!    reply only when the write is durable, so the leader may count it.
//! 3. With the first reply two of three nodes have the entry. The leader counts its own copy
//!    although it may not be durable yet: the output that tells of the commit stands behind the
//!    leader's write. It applies the entry to its state machine and outputs [`Output::Applied`],
//!    from which the driver answers the client ([`commit`]).
//! 4. The followers learn the new commit index from the next AppendEntries, a heartbeat at the
//!    latest, and apply the entry too: no further than that message has shown that their logs are
//!    the leader's.
//! 5. Some time later the driver takes a snapshot that includes the entry, and when that is durable
//!    it lets the node remove the entry from the log with [`Input::Compact`]. A follower that still
//!    lacks the entry is sent the snapshot instead ([`snapshot`]).
//!
//! If the leader dies after step 1, the next leader decides. If it has the entry, it commits the
//! entry together with its own no-op. If not, the entry's index goes to another entry, and every
//! log that still has the old one replaces it. A driver that waits for the entry therefore compares
//! terms: [`Output::Applied`] with the entry's index and another term means that it is lost.
//!
//! # The rules and their files
//!
//! | rule | file | dissertation |
//! |---|---|---|
//! | later terms win, requests of earlier terms are rejected; protection of a live leader | `node.rs` | figure 3.1, §4.2.3 |
//! | one vote a term, durable before it is granted; only to an up-to-date log | [`election`] | §3.4, §3.6.1 |
//! | PreVote; CheckQuorum | [`election`] | §9.6, §6.2 |
//! | consistency check with hints; truncation of conflicts; batches and pipelines | [`replication`], [`progress`] | §3.5, §10.2.1 |
//! | commit by a majority, own term only; apply in order | [`commit`] | §3.6.2 |
//! | log compaction; InstallSnapshot for lagging followers | [`snapshot`] | §5 |
//! | a new leader's no-op | [`election`] | §6.4 |
//! | members change one at a time, in the log, after an own-term commit; learners first | [`membership`], [`members`] | §4 |
//! | reads wait until a majority has confirmed the leader | [`read`] | §6.4 |
//! | leadership transfer to a voter with the whole log | [`transfer`] | §3.10 |
//! | cluster time: the leader's clock stamps entries, heartbeats carry it; a clock belongs to a log | [`clock`] | ours |
//! | what a disk keeps, and the writes that change it | `durable.rs`, `log.rs` | figure 3.1, §5 |
//! | numbers that no correct node would send | `ids.rs`, `message.rs` | ours |
//!
//! docs/protocol.md numbers the rules and has a glossary. `spec/tests/scripts/raft/` shows each of
//! them at work, one behaviour a file.
//!
//! # What is left out
//!
//! - **Joint consensus** (§4.3). Members change one at a time, so a change of several is a series.
//! - **Reads without a majority**: by lease (§6.4.1), or at followers. Only the leader answers
//!   linearizable reads, after a round with a majority.
//! - **Timers and retries.** A node says only when to restart a timer. What a lost AppendEntries
//!   carried is repaired as above; a lost vote, by the next election.
//! - **Sizes in bytes.** Batches and windows count entries.
//! - **Snapshots in pieces** (figure 5.3). A snapshot is one message here; the driver streams it.
//! - **A word to removed followers.** The leader stops sending to a removed server at once, so the
//!   server may never receive the entry of its removal. Its pre-votes are dropped by all that know
//!   a leader.
//! - **Duplicate requests** (§6.3). A repeated proposal is appended again; to recognise it is the
//!   state machine's work ([`lock`](crate::lock)).
//! - **Defence against wrong members.** A node refuses malformed numbers and gaps, but believes
//!   well-formed messages of its peers, and cannot see whether its driver keeps the contract.
//! - **A guarantee of progress.** Safety needs no timing. Progress needs election timeouts that are
//!   long against the network's delay and drawn at random, and those are the driver's.
//!
//! # Where it differs from the dissertation
//!
//! Messages are one-way, and a reply is a message like any other. A node applies what it commits in
//! the same step, so "last applied" does not exist (one step commits at most
//! [`Config::max_commits`] entries). A rejection carries a hint, so the leader need not go back one
//! entry at a time. Heartbeats never carry entries. A PreVote has the sender's present term, and
//! means the next. A node ignores vote requests as long as it knows a leader, instead of measuring
//! the time since it heard from it. A read round is a number on every AppendEntries, so many reads
//! share one. A server that has lost its disk comes back as a new member in the same entry that
//! removes the old one. And entries carry cluster time, which the dissertation leaves to the state
//! machine. docs/protocol.md, "Divergences", has the whole list with the reasons.

pub mod clock;
pub mod commit;
mod config;
mod durable;
pub mod election;
mod ids;
pub mod interface;
mod log;
mod machine;
pub mod members;
pub mod membership;
mod message;
mod node;
#[cfg(test)]
pub(crate) mod parts;
pub mod progress;
pub mod read;
pub mod replication;
mod role;
pub mod snapshot;
pub mod transfer;

pub use config::Config;
pub use durable::{Durable, HardState, Persist, Snapshot};
pub use ids::{Index, MAX_NUMBER, MAX_TERM_ADVANCE, NodeId, ReadRound, RequestId, Stamp, Term};
pub(crate) use ids::{in_range, number};
pub use interface::{DropReason, Input, Output};
pub use log::{Entry, Log, Payload, Position};
pub use machine::StateMachine;
pub use members::{Address, Change, Member, Members, Refusal, Standing};
pub use message::{Body, Hint, Message};
pub use node::Node;
pub use progress::{Progress, ProgressState};
pub use read::Reads;
pub use role::{Leadership, Role};
