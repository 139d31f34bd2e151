//! Raft's rules, one behaviour a script: `tests/scripts/raft/<area>/<behaviour>`. Every script is
//! also a safety test: all invariants are checked after every step.

mod support;

use support::script::ClusterScript;
use support::slate::Slate;

#[test]
fn raft_scripts() {
    support::run::scripts("raft", ClusterScript::<Slate>::new);
}
