//! Replays one trace on live nodes, up to the first difference.

use super::coverage::Coverage;
use super::finding::{PlayError, found};
use super::nodes::{Flow, LiveNodes, ReplayConfig};
use super::trace::Trace;

/// The result of replaying one trace.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// Number of the trace's steps that were replayed.
    pub steps: usize,
    /// Why the replay ended before the trace did.
    pub ended: Option<String>,
    /// What the replay exercised.
    pub coverage: Coverage,
}

/// Replays a trace on live nodes.
///
/// # Errors
/// See [`PlayError`].
pub fn play(config: &ReplayConfig, trace: &Trace) -> Result<Played, PlayError> {
    let mut replay = LiveNodes::start(config, trace)?;
    let mut played = Played::default();
    let beginning = |server, difference| found(0, "the setup", server, difference);
    replay.give_all_starts().map_err(|(server, difference)| beginning(server, difference))?;
    let mut flow = Flow::Continues;
    for event in &trace.setting().prelude {
        if let Flow::Continues = flow {
            flow = replay.act(event).map_err(|(server, difference)| beginning(server, difference))?;
        }
    }
    for step in &trace.steps {
        if let Flow::Ends(_) = flow {
            break;
        }
        flow = replay
            .act(&step.event)
            .map_err(|(server, difference)| found(step.step, &step.sentence, server, difference))?;
        played.steps += 1;
        if let Flow::Continues = flow {
            replay
                .give_rejected_input()
                .map_err(|(server, difference)| found(step.step, "a rejected input after it", server, difference))?;
        }
    }
    match flow {
        Flow::Ends(why) => played.ended = Some(why),
        Flow::Continues => replay
            .close()
            .map_err(|(server, difference)| found(played.steps, "after the last step", server, difference))?,
    }
    played.coverage = replay.coverage;
    Ok(played)
}
