//! Compares a live node with its expected node.

use std::fmt;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Input, Output};
use serde_json::Value;

use super::crash_plan::{self, Plan};
use super::difference::Difference;
use super::expected_node::ExpectedNode;
use crate::stepper::protocol::{Answer, Effect, Now};

/// Compares what a node did in a step with what it should have done. Returns the number of messages
/// that it sent, and its state unless it halted.
pub(super) fn step(
    answer: Answer,
    input: &Input<LockTable>,
    outputs: &[Output<LockTable>],
    plan: Option<&Plan>,
) -> Result<(usize, Option<Now>), Difference> {
    let different = |what: &str, expected: &dyn fmt::Debug, seen: &dyn fmt::Debug| {
        Difference::new(what, format!("{expected:?}"), format!("{seen:?}"))
    };
    let all = crash_plan::effects(outputs);
    let due = plan.map_or(&all, |plan| &plan.effects);
    let (effects, now) = match answer {
        Answer::Stepped(stepped) if plan.is_none_or(|plan| plan.stop.is_none()) => {
            if stepped.input != *input {
                return Err(different("the input", input, &stepped.input));
            }
            let due: Vec<String> = outputs.iter().map(|output| format!("{output:?}")).collect();
            if stepped.outputs != due {
                return Err(different("the outputs", &due, &stepped.outputs));
            }
            (stepped.effects, Some(stepped.now))
        }
        Answer::Halted { effects } if plan.is_some_and(|plan| plan.stop.is_some()) => (effects, None),
        other => {
            let expected =
                plan.and_then(|plan| plan.stop).map_or("a step".into(), |stop| format!("to halt at {stop:?}"));
            return Err(Difference::new("the answer", expected, format!("{other:?}")));
        }
    };
    if effects != *due {
        return Err(different("the driver's effects, in order", due, &effects));
    }
    let is_send = |effect: &&Effect| matches!(effect, Effect::Send(_) | Effect::SendSnapshot(_));
    Ok((effects.iter().filter(is_send).count(), now))
}

/// Compares the complete state of a live node with the expected one.
pub(super) fn state(expected: &ExpectedNode, now: &Now) -> Result<(), Difference> {
    if expected.node != now.node
        && let Some(difference) = Difference::between("the node", &value(&expected.node), &value(&now.node))
    {
        return Err(difference);
    }
    let expected = expected.settled();
    if expected != now.disk
        && let Some(difference) = Difference::between("the disk, read back", &value(&expected), &value(&now.disk))
    {
        return Err(difference);
    }
    Ok(())
}

fn value(of: &impl serde::Serialize) -> Value {
    serde_json::to_value(of).expect("nodes and disks are plain values")
}
