//! Experiments on real lock services: where locks without fencing break, and what they cost.
//!
//! | module | contents |
//! |---|---|
//! | [`dlock`] | one interface to five lock services: Redis, Redlock, etcd, ZooKeeper, Palisade |
//! | [`resource`] | a resource in a process of its own that checks fencing tokens |
//! | [`worker`] | a worker that takes a lock, pauses, and writes to the resource |
//! | [`event`] | what a worker prints, one JSON object a line |
//! | [`servers`] | the real servers, started with pinned configurations: `palisade-lab up` |
//! | [`contend`] | contenders on one key or many, at an offered rate: latency, throughput, order |
//! | [`generate`] | very many short-lived locks, whose keys come from a seed |
//! | [`experiments`] | what is shown: each writes figures, plots and its page in docs/lab/ |
//! | [`stores`] | stores that check fencing tokens by themselves: a PostgreSQL row, an object |
//! | [`history`] | histories of several processes on one clock, for the checkers of `conformance` |
//! | [`report`] | figures as CSV and JSON, plots as SVG, pages as Markdown |
//! | [`metrics`] | the metrics that every program of the lab serves |
//! | [`open_files`], `signals` | this process's limit of open files; the signals that end it |
//! | `http`, `text` | an HTTP client; errors and keys as text |

pub mod contend;
pub mod dlock;
pub mod event;
pub mod experiments;
pub mod generate;
pub mod history;
mod http;
pub mod metrics;
pub mod open_files;
pub mod report;
pub mod resource;
pub mod servers;
mod signals;
pub mod stores;
mod text;
pub mod worker;
