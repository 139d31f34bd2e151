//! Plans the points at which live nodes halt, to be killed where the model's servers crashed.
//!
//! The model executes a node's outputs one by one; it may crash between any two, and between the
//! entries of one write. A live node makes all writes of a step durable at the position of the first,
//! in one frame (only a leader's snapshot splits them), and after a crash either the whole frame is
//! there or nothing of it. The contract of `spec` allows that, and it is less than what the model
//! tries: some of the model's crashes leave a disk that no crash of a live node leaves. For these,
//! the live node is killed in the middle of the frame, its disk is compared with the disk before
//! the step, and the replay ends there.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Output, Persist};

use super::trace::Crash;
use crate::stepper::protocol::{Effect, Stop, WritePoint};

/// How to bring about a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where the node halts; `None` if it completes its step.
    pub stop: Option<Stop>,
    /// What the node has done up to that point.
    pub effects: Vec<Effect>,
    /// The number of outputs that count as executed: every write before this one is durable.
    pub durable: usize,
    /// Whether the next write's snapshot file already has its final name.
    pub is_half_installed: bool,
    /// Whether the model's server has a different disk, so that the replay ends here.
    pub diverges: bool,
}

/// Everything that a driver does for these outputs, in its order.
pub fn effects(outputs: &[Output<LockTable>]) -> Vec<Effect> {
    let barrier = outputs.iter().position(is_write).unwrap_or(outputs.len());
    let (before, behind) = outputs.split_at(barrier);
    let mut effects: Vec<Effect> = before.iter().filter_map(send).collect();
    let mut is_open = false;
    for write in behind.iter().filter_map(write) {
        if matches!(write, Persist::Snapshot(_)) {
            if is_open {
                effects.extend([Effect::Write, Effect::Sync]);
            }
            effects.push(Effect::Name);
        }
        is_open = true;
    }
    if is_open {
        effects.extend([Effect::Write, Effect::Sync]);
    }
    effects.extend(behind.iter().filter_map(send));
    effects
}

/// How to crash a live node in a step with these outputs. `salt` chooses among crash points that
/// are the same to the model.
pub fn plan(crash: Crash, outputs: &[Output<LockTable>], salt: usize) -> Plan {
    let all = effects(outputs);
    let (done, rest) = outputs.split_at(crash.outputs);
    let writes_done = done.iter().any(is_write);
    let writes_left = rest.iter().any(is_write);
    let up_to = |effect: Effect, nth: usize| -> Vec<Effect> {
        let positions = all.iter().enumerate().filter(|(_, other)| **other == effect);
        let at = positions.map(|(at, _)| at).nth(nth);
        all[..at.unwrap_or(all.len())].to_vec()
    };
    let plan =
        |stop, effects| Plan { stop, effects, durable: crash.outputs, is_half_installed: false, diverges: false };
    let barrier = outputs.iter().position(is_write).unwrap_or(outputs.len());
    let frames = all.iter().filter(|effect| **effect == Effect::Write).count();
    match rest.first().and_then(write) {
        Some(Persist::Snapshot(_)) if crash.entries.is_none() => plan(Some(Stop::Name), up_to(Effect::Name, 0)),
        Some(Persist::Snapshot(_)) => {
            let nth = frame_of(outputs, crash.outputs);
            let stop = Stop::Write { nth, at: WritePoint::Before };
            Plan { is_half_installed: true, ..plan(Some(stop), up_to(Effect::Write, nth)) }
        }
        Some(_) => {
            let at = if crash.entries.is_none() && salt.is_multiple_of(2) {
                WritePoint::Before
            } else {
                WritePoint::Within(13 * salt)
            };
            let diverges = crash.entries.is_some() || writes_done;
            let nth = frame_of(outputs, crash.outputs);
            let stop = Stop::Write { nth, at };
            Plan { diverges, durable: barrier, ..plan(Some(stop), up_to(Effect::Write, nth)) }
        }
        None if rest.is_empty() => plan(None, all),
        None => {
            let sent = done.iter().filter(|output| send(output).is_some()).count();
            // More is durable before this message than the model's server had written.
            let diverges = writes_done && writes_left;
            let is_right_behind =
                writes_done && !outputs[barrier..crash.outputs].iter().any(|output| send(output).is_some());
            let stop = match salt % 3 {
                1 if is_right_behind => Stop::Write { nth: frames - 1, at: WritePoint::Unsynced },
                2 if is_right_behind => Stop::Write { nth: frames - 1, at: WritePoint::Synced },
                _ => Stop::Send(sent),
            };
            let mut effects = Vec::new();
            let mut seen = 0;
            for effect in &all {
                if matches!(effect, Effect::Send(_) | Effect::SendSnapshot(_)) {
                    if seen == sent {
                        break;
                    }
                    seen += 1;
                }
                if stop == (Stop::Write { nth: frames.max(1) - 1, at: WritePoint::Unsynced })
                    && *effect == Effect::Sync
                    && effects.iter().filter(|effect| **effect == Effect::Write).count() == frames
                {
                    break;
                }
                effects.push(*effect);
            }
            let durable = if diverges { outputs.len() } else { crash.outputs };
            Plan { diverges, durable, ..plan(Some(stop), effects) }
        }
    }
}

/// The number of the step's frame that contains the write at `position` in these outputs.
fn frame_of(outputs: &[Output<LockTable>], position: usize) -> usize {
    let (mut frame, mut is_open) = (0, false);
    for write in outputs[..=position].iter().filter_map(write) {
        if is_open && matches!(write, Persist::Snapshot(_)) {
            frame += 1;
        }
        is_open = true;
    }
    frame
}

fn is_write(output: &Output<LockTable>) -> bool {
    matches!(output, Output::Persist(_))
}

fn write(output: &Output<LockTable>) -> Option<&Persist<LockTable>> {
    if let Output::Persist(write) = output { Some(write) } else { None }
}

fn send(output: &Output<LockTable>) -> Option<Effect> {
    match output {
        Output::Send(message) => Some(Effect::Send(message.to)),
        Output::SendSnapshot { to, .. } => Some(Effect::SendSnapshot(*to)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::{Body, HardState, Index, Message, NodeId, Term};

    use super::*;

    fn send_to(to: u32) -> Output<LockTable> {
        Output::Send(Message { from: NodeId(1), to: NodeId(to), term: Term(1), body: Body::TimeoutNow })
    }

    fn vote() -> Output<LockTable> {
        Output::Persist(Persist::HardState(HardState::default()))
    }

    fn compact() -> Output<LockTable> {
        Output::Persist(Persist::Compact(Index(1)))
    }

    const DURABLE: [Effect; 2] = [Effect::Write, Effect::Sync];

    fn at(outputs: usize) -> Crash {
        Crash { input: 0, outputs, entries: None }
    }

    #[test]
    fn writes_of_a_step_share_one_frame_at_the_first_write() {
        let (two, three) = (Effect::Send(NodeId(2)), Effect::Send(NodeId(3)));
        let outputs = [send_to(2), vote(), Output::ArmElectionTimer, compact(), send_to(3)];
        assert_eq!(effects(&outputs), [&[two], &DURABLE[..], &[three]].concat());
        assert_eq!(plan(at(0), &outputs, 0).stop, Some(Stop::Send(0)));
        let before = plan(at(1), &outputs, 0);
        assert_eq!((before.stop, before.diverges), (Some(Stop::Write { nth: 0, at: WritePoint::Before }), false));
        assert_eq!(before.effects, [two]);
        assert!(plan(at(3), &outputs, 0).diverges, "a live node has both writes or none");
        let behind = plan(at(4), &outputs, 0);
        assert_eq!((behind.stop, behind.diverges), (Some(Stop::Send(1)), false));
        assert_eq!(behind.effects, [two, Effect::Write, Effect::Sync]);
        let unsynced = plan(at(4), &outputs, 1);
        assert_eq!(unsynced.effects, [two, Effect::Write]);
        assert_eq!(plan(at(5), &outputs, 0).stop, None);
    }

    #[test]
    fn partial_write_leaves_live_disk_unchanged() {
        let crash = Crash { entries: Some(1), ..at(0) };
        let plan = plan(crash, &[vote(), send_to(2)], 3);
        assert!(plan.diverges && plan.effects.is_empty() && plan.durable == 0);
        assert_eq!(plan.stop, Some(Stop::Write { nth: 0, at: WritePoint::Within(39) }));
    }
}
