//! Palisade's protocol, explored by [stateright](https://docs.rs/stateright).
//!
//! The models execute the functions of `palisade-spec` that the server executes. One step of a model
//! is one step of the spec, its outputs executed in their order. The adversary chooses which step
//! comes next and where a server crashes.
//!
//! | module | what is explored |
//! |---|---|
//! | [`raft`] | consensus, over a state machine that only records entries |
//! | [`membership`] | consensus while servers join, become voters and go |
//! | [`reads`] | linearizable reads without a log entry |
//! | [`locks`] | the lock table behind a perfect log: late, repeated and lost requests, expiry at any moment |
//! | [`cluster`] | everything together, with real time, clients that pause, and a resource |
//! | [`everything`] | all of these at once, for random walks and guided search |
//! | [`leases`] | time across many terms: clocks, logs and leases, without single messages |
//! | [`induction`] | invariants that every step keeps, from every state that satisfies them |
//! | [`liveness`] | what must happen on every fair run: grants, ends of sessions, elections, recoveries |
//! | [`gallery`] | the designs that Palisade replaces: their flaws, and what repairs them |
//! | [`world`] | what the layers share: servers, network, disks, crashes, history |
//! | [`models`] | the models by name, with their bounds |
//! | [`expected_counts`] | expected number of states of each model |
//! | [`check`], [`check_all`], [`progress`] | running a model to its end, its progress, and the verdict; reporting on many models |
//! | [`simulate`], [`guided`] | random walks, far past those bounds: from the beginning, or from where something new was seen |
//! | [`trace`] | shortest paths to violations and witnesses |
//! | [`saved_traces`] | saved paths, to be replayed on live servers |
//! | [`mutants`] | mutants of the protocol: a model must find each |
//! | [`document`] | docs/results.md: sizes and costs, and what finds each mutant |
//! | [`explore`] | stateright's Explorer in a browser |
//! | [`presentation`] | sentences, events and diagrams of a model |
//! | [`state_table`], [`diagram`] | states as tables and differences, paths as sequence diagrams |

pub mod check;
pub mod check_all;
pub mod cluster;
pub mod diagram;
pub mod document;
mod erased;
pub mod everything;
pub mod expected_counts;
pub mod explore;
pub mod gallery;
pub mod guided;
pub mod induction;
mod layers;
pub mod leases;
pub mod liveness;
pub mod locks;
pub mod membership;
pub mod models;
mod mutant_models;
pub mod mutants;
pub mod named;
pub mod presentation;
pub mod progress;
mod property_set;
pub mod raft;
pub mod reads;
pub mod saved_traces;
pub mod simulate;
pub mod state_table;
pub mod trace;
pub mod world;
