//! Acknowledged operations survive any crash, and a node that cannot be sure of them does not
//! start.

mod crashes;
mod old_copies;
mod private_files;
mod refusals;
pub(crate) mod returns;
