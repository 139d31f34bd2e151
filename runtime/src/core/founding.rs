//! A founder's first start: a founder with a blank disk takes no part until all other founders have
//! met it (`server/bootstrap.rs` has the reason).

use std::time::{Duration, Instant};

use palisade_spec::raft::NodeId;
use tracing::{info, warn};

/// How often a waiting founder logs which founders it waits for.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// The wait of a blank founder for the other founders.
#[derive(Debug)]
pub(super) struct Founding {
    /// All other founders; empty if this node is not a blank founder.
    others: Vec<NodeId>,
    /// Those that have not met this node. `None` if the node takes part.
    waiting_for: Option<Vec<NodeId>>,
    /// When the log last named them.
    logged: Option<Instant>,
}

impl Founding {
    /// A blank founder has to meet `others`; a node without such others takes part at once.
    pub(super) fn new(others: Vec<NodeId>) -> Founding {
        let waiting_for = (!others.is_empty()).then(|| others.clone());
        Founding { others, waiting_for, logged: None }
    }

    /// The founders that have not met this node, as of the last check. `None` if the node takes
    /// part.
    pub(super) fn waiting_for(&self) -> Option<&[NodeId]> {
        self.waiting_for.as_deref()
    }

    /// Checks whether the node takes part now.
    pub(super) fn takes_part(&mut self, now: Instant, has_met: impl Fn(NodeId) -> bool) -> bool {
        let Some(before) = &self.waiting_for else { return true };
        let missing: Vec<NodeId> = self.others.iter().copied().filter(|&other| !has_met(other)).collect();
        if missing.is_empty() {
            info!("all founders of the cluster have met: this node takes part in elections from now on");
            self.waiting_for = None;
            return true;
        }
        if self.logged.is_none_or(|at| now.saturating_duration_since(at) >= LOGGED_EVERY || missing != *before) {
            let nodes = missing.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ");
            warn!(
                waiting_for = nodes,
                "this founder takes no part yet: these founders have not met it. Start them; if they run, their logs \
                 and this one say why they are not connected"
            );
            self.logged = Some(now);
        }
        self.waiting_for = Some(missing);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn founder_takes_part_when_all_others_have_met_it() {
        let (two, three, now) = (NodeId(2), NodeId(3), Instant::now());
        let mut founding = Founding::new(vec![two, three]);
        assert!(!founding.takes_part(now, |_| false));
        assert_eq!(founding.waiting_for(), Some(&[two, three][..]));
        assert!(!founding.takes_part(now, |node| node == three));
        assert_eq!(founding.waiting_for(), Some(&[two][..]));
        // A connection may have ended meanwhile: the others are counted together.
        assert!(founding.takes_part(now, |_| true));
        assert_eq!(founding.waiting_for(), None);
        assert!(founding.takes_part(now, |_| false), "once is enough");
        assert!(Founding::new(Vec::new()).takes_part(now, |_| false));
    }
}
