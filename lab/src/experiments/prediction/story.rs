//! The stories of the gallery that run on real servers.

use std::path::Path;

use super::action::{self, Action};
use super::trace::{GALLERY, State, Step, Trace, find};
use crate::dlock::Backend;
use crate::servers::{Durability, Options, Signing};

/// The servers of a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Servers {
    /// Five independent Redis.
    Redlock,
    /// One Redis; client A reaches it through a link.
    Redis,
    /// A Redis and two replicas, which follow it through a link that is held from the start.
    Replicas,
    /// A lock service, by its own client.
    Service,
}

/// A story of the gallery.
#[derive(Debug)]
pub(super) struct Story {
    /// The flawed model.
    pub model: &'static str,
    /// The servers.
    pub servers: Servers,
    /// Whether clients write to a resource.
    pub resource: bool,
    /// The TTL of every key.
    pub ttl_ms: u64,
    /// How long client A waits before each of its requests. Its keys then expire one after the other.
    pub gap_ms: u64,
    /// Whether the resource checks tokens in any case, and the servers sign them: the repair is then that the resource
    /// requires the signature. Otherwise the repair is the fence.
    pub signed: bool,
    /// The steps that the repair changes, by number: the model's sentence, and what changes instead.
    pub repair: &'static [Repaired],
}

/// A step with the repair: its number, its sentence, and what changes instead.
type Repaired = (usize, &'static str, &'static [&'static str]);

/// A step of a run: what the model says, what it means, and the state after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planned {
    /// The step, with the changes that are expected.
    pub step: Step,
    /// The action.
    pub action: Action,
    /// The state that is expected after it.
    pub after: State,
    /// Whether the repair changes the step.
    pub repaired: bool,
}

/// All stories that run.
pub(super) const STORIES: &[Story] = &[
    Story {
        model: "gallery-redis-failover",
        servers: Servers::Replicas,
        resource: false,
        ttl_ms: 60_000,
        gap_ms: 0,
        signed: false,
        repair: &[],
    },
    Story {
        model: "gallery-redis-release",
        servers: Servers::Redis,
        resource: false,
        ttl_ms: 3_000,
        gap_ms: 0,
        signed: false,
        repair: &[
            (5, "the DEL of client A arrives", &["client A: deletes → idle"]),
            (6, "client A asks for the lock and is granted it", &[]),
        ],
    },
    Story {
        model: "gallery-redlock-clock",
        servers: Servers::Redlock,
        resource: false,
        ttl_ms: 60_000,
        gap_ms: 0,
        signed: false,
        repair: &[],
    },
    Story {
        model: "gallery-redlock-crash",
        servers: Servers::Redlock,
        resource: false,
        ttl_ms: 60_000,
        gap_ms: 0,
        signed: false,
        repair: &[],
    },
    Story {
        model: "gallery-redlock-pause",
        servers: Servers::Redlock,
        resource: true,
        ttl_ms: 10_000,
        gap_ms: 2_500,
        signed: false,
        repair: &[(12, "the write of client A arrives and is done", &["client A: about to write → was refused"])],
    },
    Story {
        model: "gallery-fencing",
        servers: Servers::Service,
        resource: true,
        ttl_ms: 3_000,
        gap_ms: 0,
        signed: false,
        repair: &[(5, "client A writes, as it believes under the lock", &["client A: believes in grant 1 → idle"])],
    },
    Story {
        model: "gallery-made-up-token",
        servers: Servers::Service,
        resource: true,
        ttl_ms: 30_000,
        gap_ms: 0,
        signed: true,
        repair: &[
            (2, "client B writes with the greatest number there is", &[]),
            (
                3,
                "client A writes and is refused: its token is too low",
                &[
                    "lock: A → free",
                    "client A: holds grant 1 → idle",
                    "resource: no token seen → has seen the token of grant 1",
                ],
            ),
        ],
    },
];

impl Story {
    /// The story's trace in the gallery.
    ///
    /// # Errors
    /// The gallery has none, or one of another form.
    pub(super) fn trace(&self) -> Result<Trace, String> {
        find(GALLERY, self.model)
    }

    /// The lock service on which the story runs.
    #[must_use]
    pub(super) fn backend(&self) -> Backend {
        match self.servers {
            Servers::Redlock => Backend::Redlock,
            Servers::Redis | Servers::Replicas => Backend::Redis,
            Servers::Service => Backend::Palisade,
        }
    }

    /// How its servers are started, if not in the usual way; `signing`: the keys of a story that is signed, and the
    /// `palisade` program.
    #[must_use]
    pub(super) fn options(&self, signing: Option<&Signing>, palisade: Option<&Path>) -> Option<Options> {
        let usual = Options::default;
        match self.model {
            _ if self.signed => Some(Options {
                sign_grants: signing.map(Signing::directory),
                palisade: palisade.map(Path::to_owned),
                ..usual()
            }),
            "gallery-redis-failover" => Some(Options { replicas: 2, ..usual() }),
            "gallery-redlock-clock" => Some(Options { fake_clock: true, ..usual() }),
            "gallery-redlock-crash" => Some(Options { durability: Durability::Volatile, ..usual() }),
            _ => None,
        }
    }

    /// The steps of a run, from the trace in the gallery; `repaired`: with the repair.
    ///
    /// # Errors
    /// A sentence has no action, or the repair does not fit the trace.
    pub(super) fn plan(&self, trace: &Trace, repaired: bool) -> Result<Vec<Planned>, String> {
        let mut planned = Vec::new();
        let mut state = trace.first.clone();
        for (number, step) in (1..).zip(&trace.steps) {
            let instead = self.repair.iter().find(|(repaired, ..)| *repaired == number).filter(|_| repaired);
            let mut step = step.clone();
            if let Some((_, sentence, changes)) = instead {
                if *sentence != step.sentence {
                    return Err(format!("{}: step {number} is `{}`, not `{sentence}`", self.model, step.sentence));
                }
                step.changes = changes.iter().map(|&change| change.to_owned()).collect();
            }
            state = state.after(&step.changes)?;
            let action = action::of(&step.sentence)?;
            planned.push(Planned { step, action, after: state.clone(), repaired: instead.is_some() });
        }
        Ok(planned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_every_story_has_an_action() {
        for story in STORIES {
            let trace = story.trace().unwrap();
            let planned = story.plan(&trace, false).unwrap();
            assert_eq!(planned.len(), trace.steps.len(), "{}", story.model);
            assert_eq!(planned.last().map(|last| &last.after), trace.states().unwrap().last());
            let repaired = story.plan(&trace, true).unwrap();
            assert_eq!(repaired.iter().filter(|step| step.repaired).count(), story.repair.len(), "{}", story.model);
        }
    }

    #[test]
    fn a_step_without_an_action_is_an_error() {
        let story = &STORIES[0];
        let mut trace = story.trace().unwrap();
        trace.steps[1].sentence = "server 1 sleeps".to_owned();
        assert!(story.plan(&trace, false).unwrap_err().contains("`server 1 sleeps`"));
    }

    #[test]
    fn a_repair_that_does_not_fit_the_trace_is_an_error() {
        let story = STORIES.iter().find(|story| story.model == "gallery-fencing").unwrap();
        let mut trace = story.trace().unwrap();
        trace.steps[4].sentence = trace.steps[3].sentence.clone();
        assert!(story.plan(&trace, true).unwrap_err().contains("step 5"));
    }
}
