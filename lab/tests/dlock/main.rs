//! The lock library against real servers: one suite of rules for every backend, and what is special to each.

mod entries;
mod etcd;
mod palisade;
mod redis;
mod redlock;
#[path = "../support/mod.rs"]
mod skipped;
mod suite;
mod support;
mod wrappers;
mod zookeeper;
