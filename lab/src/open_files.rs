//! How many files this process may open: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the experiments with the most contenders need.
const ENOUGH: u64 = 20_000;

/// Raises the limit as far as the system permits it. Processes that this one starts have it, too.
pub fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // The limit then stays as it is: `warning` says whether it is too low.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// What is wrong with the limit, in words.
pub(crate) fn warning() -> Option<String> {
    let limit = getrlimit(Resource::Nofile).current.filter(|&limit| limit < ENOUGH)?;
    Some(format!(
        "a process may open {limit} files here, and connections of contenders beyond them fail; raise the hard limit to \
         {ENOUGH} (`ulimit -Hn`, or LimitNOFILE= of a systemd unit)"
    ))
}
