//! Replays the models' traces on live nodes.
//!
//! A trace is a path through a model: the inputs of each server, crashes, and lost messages. The
//! replay applies the same events to processes of the server's parts with real files, connected over
//! real TCP. After every step it compares each process's node state, its disk and the messages it sent
//! with the model's. So for these paths, what the model proves of its servers is true of these
//! processes too: the driver executes the outputs in the required order, the log recovers
//! exactly the model's disk, and the frames encode the messages faithfully.
//!
//! | file | contents |
//! |---|---|
//! | [`trace`] | the trace format and its parser |
//! | [`translate`] | translates the model's entries and addresses to the server's, and back |
//! | [`expected_node`] | the expected state of a live node: the same functions, stepped here |
//! | [`live`] | a node's process, single-stepped by a [stepper](crate::stepper) |
//! | [`message_gate`] | the proxy between the processes: it forwards a frame only when the trace says so |
//! | [`crash_plan`] | where a live node must halt to be killed where the model's server crashed |
//! | [`nodes`] | the live nodes of a replay, compared after each input |
//! | `events` | turns the events of a trace into inputs and crashes of live nodes |
//! | [`play`] | the replay of one trace, up to the first difference |
//! | `compare`, [`difference`], [`finding`] | a live node against the expected one; the first difference; what a replay finds |
//! | [`rejected_inputs`] | inputs between the steps that a node must refuse or drop |
//! | [`large_table`] | generated traces without a model: a table with many sessions and keys |
//! | [`coverage`] | counts what a replay exercised |
//! | [`saved_traces`] | the saved traces and the models that they are paths of |

pub mod command;
mod compare;
pub mod coverage;
pub mod crash_plan;
pub mod difference;
mod events;
pub mod expected_node;
pub mod finding;
pub mod large_table;
pub mod live;
pub mod message_gate;
pub mod nodes;
pub mod play;
pub mod rejected_inputs;
pub mod saved_traces;
pub mod trace;
pub mod translate;
