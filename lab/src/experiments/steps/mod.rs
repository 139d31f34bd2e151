//! Clients of a lock as processes that do one step at a time: the experiment decides what happens between two steps. Only a
//! process can be stopped by SIGSTOP.

mod client;
mod process;

pub use client::StepClient;
pub(super) use client::{Order, Report, Stage, connect, now_us};
pub(super) use process::Process;
