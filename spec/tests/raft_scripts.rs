//! Raft's rules, one behaviour a script: `tests/scripts/raft/<area>/<behaviour>`. Every script is a safety test too,
//! for after every step of it all invariants are checked.

mod support;

use support::script::ClusterScript;
use support::slate::Slate;

#[test]
fn raft_scripts() {
    support::run::scripts("raft", ClusterScript::<Slate>::new);
}
