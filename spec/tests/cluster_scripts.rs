//! The lock table on a Raft cluster, one behaviour a script: `tests/scripts/cluster/<behaviour>`.
//! The guarantees of the locks must survive failures of the nodes.

mod support;

use palisade_spec::lock::LockTable;
use support::script::ClusterScript;

#[test]
fn cluster_scripts() {
    support::run::scripts("cluster", ClusterScript::<LockTable>::new);
}
