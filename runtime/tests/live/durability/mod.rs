//! What was acknowledged is there after any crash, and a node that cannot be sure of it does not start.

mod crashes;
mod old_copies;
mod refusals;
mod returns;
