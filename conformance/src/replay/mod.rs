//! The model's traces on live nodes.
//!
//! A trace is a path through a model: who was given what, where a server crashed, what was lost. Here the same happens to
//! real `palisade` processes with real files, that speak to one another over real TCP, and after every step each process's
//! node, its disk and what it said are compared with the model's. What the model proves of its servers is then true of
//! these processes too, for these paths: the driver carries out what it is asked for, in the order that it owes; the log
//! recovers exactly to the model's disk; the frames say what the messages say.
//!
//! | file | what it is |
//! |---|---|
//! | [`trace`] | a trace, read |
//! | [`translate`] | the model's entries and addresses in the server's terms, and back |
//! | [`expected_node`] | what a live node is to be: the same functions, stepped here |
//! | [`live`] | a [puppet](palisade::stepper): a node's process on strings |
//! | [`message_gate`] | what stands between the processes: no frame passes that the trace does not let pass |
//! | [`crash`] | where a live node has to stand still so that it is killed where the model's server crashed |
//! | [`play`] | the play: trace in, the first difference out |
//! | [`rejected_inputs`] | what is asked in vain, between the steps |
//! | [`large_table`] | a trace of no model: a table with many sessions and keys |
//! | [`coverage`] | what was exercised |
//! | [`difference`] | two states, and where they part, in words |
//! | [`saved_traces`] | the traces that are kept, and the model that they are paths of |
//! | [`mutants`] | bugs in the server that a replay must find |

pub mod command;
pub mod coverage;
pub mod crash;
pub mod difference;
pub mod expected_node;
pub mod large_table;
pub mod live;
pub mod message_gate;
pub mod mutants;
pub mod play;
pub mod rejected_inputs;
pub mod saved_traces;
pub mod trace;
pub mod translate;
