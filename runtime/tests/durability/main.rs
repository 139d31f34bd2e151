//! What was acknowledged is there after any crash, and a node that cannot be sure of it does not start.

mod crashes;
mod journal;
mod load;
mod old_copies;
mod refusals;

#[path = "../support/mod.rs"]
mod support;
