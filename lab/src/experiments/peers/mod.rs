//! Experiment `peers`: how many pairs of acquire and release the systems make, measured in turns on one machine.
//!
//! | module | contents |
//! |---|---|
//! | [`drivers`] | the systems, and what one client does in a pair |
//! | [`raw`] | Palisade's wire protocol without its client |
//! | `done` | what a client has done in a window |
//! | [`record`] | the history of one window, which is judged and not measured |
//! | [`window`] | one window: clients in a closed loop |
//! | [`machine`] | the disk's speed and the use of the processors beside each window |
//! | [`tables`] | medians, ratios, and what the page says of them |
//! | [`page`] | the page |

mod done;
pub mod drivers;
pub mod machine;
pub mod page;
pub mod raw;
pub mod record;
pub mod tables;
pub mod window;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::drivers::{Servers, System};
use self::window::{Cell, Target, Use, Window};
use super::{servers_of, text};
use crate::event::micros;
use crate::history::Judgement;
use crate::report::setup::Setup;
use crate::report::{Prediction, Run};
use crate::servers::{self, Cluster, Kind};

/// Rounds of the committed page.
pub const ROUNDS: u64 = 5;
/// A window of the committed page.
pub const WINDOW: Duration = Duration::from_millis(1_500);
/// How long a lock lasts without a renewal: longer than a window.
const TTL: Duration = Duration::from_secs(60);
/// How long a client waits for its lock at most: longer than the warm-up, the window and the drain together.
const WAIT: Duration = Duration::from_secs(120);
pub(super) const OWN: [usize; 4] = [1, 16, 64, 256];
pub(super) const SHARED: [usize; 2] = [256, 1024];
pub(super) const HOT: [usize; 3] = [50, 200, 1000];
/// Load after the servers were resumed, before the first window of a turn; the first time, ZooKeeper's program is compiled
/// meanwhile.
const WARM_UP: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(1)];
/// Clients of that load.
const WARM_CLIENTS: usize = 64;

/// What to measure.
#[derive(Debug)]
pub struct Plan {
    /// The command line.
    pub command: String,
    /// Number of rounds.
    pub rounds: u64,
    /// Length of a window.
    pub window: Duration,
    /// Only these servers; none: all.
    pub kinds: Vec<Kind>,
    /// The Palisade program.
    pub palisade: Option<PathBuf>,
}

/// The windows of one system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The system.
    pub system: System,
    /// Length of a window.
    pub window_us: u64,
    /// The windows, in the order in which they were measured.
    pub windows: Vec<Window>,
    /// What the checkers say of one window of the hot lock that was not measured; none: a client cannot wait for a lock, or
    /// the run recorded no history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Judgement>,
}

/// Servers that take turns; between their turns they are stopped by SIGSTOP.
struct Turn {
    servers: Servers,
    cluster: Cluster,
    setup: Setup,
    figures: Vec<Figures>,
}

/// Measures all systems in turns: each round in the reverse order of the one before. `save` is called after each round, and
/// after each judged window, with all that there is so far, so that an error later loses none of it.
///
/// # Errors
/// Servers do not start, clients cannot connect, or `save` fails.
pub async fn run(
    plan: &Plan,
    mut save: impl FnMut(Vec<Run<Figures>>) -> Result<(), String>,
) -> Result<Vec<Run<Figures>>, String> {
    let mut turns = Vec::new();
    for servers in drivers::ALL {
        if !plan.kinds.is_empty() && !plan.kinds.contains(&servers.kind) {
            continue;
        }
        eprintln!("peers: starting {} ({:?})", servers.kind, servers.durability);
        let cluster = servers::start(servers.kind, &servers.options(plan.palisade.as_ref())).await.map_err(text)?;
        let setup = Setup::of(&plan.command, servers_of(&cluster), cluster.dir());
        let window_us = micros(plan.window);
        let figures =
            servers.systems.iter().map(|&system| Figures { system, window_us, windows: Vec::new(), judged: None });
        let mut turn = Turn { figures: figures.collect(), servers, cluster, setup };
        turn.warm_up(WARM_UP[0]).await?;
        turn.pause()?;
        turns.push(turn);
    }
    for round in 1..=plan.rounds {
        let mut order: Vec<&mut Turn> = turns.iter_mut().collect();
        if round.is_multiple_of(2) {
            order.reverse();
        }
        for turn in order {
            turn.measure(round, plan.window).await?;
        }
        save(runs(&turns))?;
    }
    for index in 0..turns.len() {
        turns[index].judge(plan.window).await;
        save(runs(&turns))?;
    }
    Ok(runs(&turns))
}

fn runs(turns: &[Turn]) -> Vec<Run<Figures>> {
    let of = |turn: &Turn| {
        let run = |figures: &Figures| Run {
            backend: figures.system.name().to_owned(),
            setup: turn.setup.clone(),
            predictions: predictions(figures),
            figures: figures.clone(),
        };
        turn.figures.iter().map(run).collect::<Vec<_>>()
    };
    turns.iter().flat_map(of).collect()
}

impl Turn {
    /// The servers run, and serve.
    async fn resume(&self) -> Result<Target, String> {
        for node in 0..self.cluster.len() {
            self.cluster.resume(node).map_err(text)?;
        }
        for node in 0..self.cluster.len() {
            self.cluster.wait_ready(node).await.map_err(text)?;
        }
        self.target().await
    }

    async fn target(&self) -> Result<Target, String> {
        let leads = self.servers.kind != Kind::Redlock;
        let leader = if leads { self.cluster.leader().await.map_err(text)? } else { 0 };
        let endpoints = self.cluster.endpoints().to_vec();
        let processes = (0..self.cluster.len()).filter_map(|node| self.cluster.identity(node));
        Ok(Target {
            leader: self.cluster.address(leader).to_owned(),
            endpoints,
            processes: processes.flat_map(|process| process.tree()).collect(),
        })
    }

    fn pause(&self) -> Result<(), String> {
        (0..self.cluster.len()).try_for_each(|node| self.cluster.pause(node)).map_err(text)
    }

    async fn warm_up(&mut self, time: Duration) -> Result<(), String> {
        let cell = Cell { how: Use::Own, clients: WARM_CLIENTS };
        self.windows(&[cell], 0, time).await
    }

    async fn measure(&mut self, round: u64, window: Duration) -> Result<(), String> {
        self.resume().await?;
        self.warm_up(WARM_UP[1]).await?;
        let own = OWN.map(|clients| Cell { how: Use::Own, clients });
        let shared = SHARED.map(|clients| Cell { how: Use::Shared, clients });
        let hot = HOT.map(|clients| Cell { how: Use::Hot, clients });
        let cells: Vec<Cell> = own.into_iter().chain(shared).chain(hot).collect();
        self.windows(&cells, round, window).await?;
        self.pause()
    }

    /// Records and judges a window of the hot lock of each system whose clients can wait. A window that failed has no
    /// operations, which is not as predicted, and discards no other window.
    async fn judge(&mut self, window: Duration) {
        let target = self.resume().await;
        for figures in self.figures.iter_mut().filter(|figures| figures.system.hands_over()) {
            let judged = match &target {
                Ok(target) => window::judged(target, figures.system, window).await,
                Err(error) => Err(error.clone()),
            };
            let judged = judged.unwrap_or_else(|error| {
                eprintln!("peers: {}: the history of its window was not judged: {error}", figures.system.name());
                Judgement::default()
            });
            let (operations, found) = (judged.operations, judged.service.len());
            eprintln!("peers: {}: {found} violations in {operations} operations", figures.system.name());
            figures.judged = Some(judged);
        }
        if let Err(error) = self.pause() {
            eprintln!("peers: {} were not stopped: {error}", self.servers.kind);
        }
    }

    /// Measures windows of all systems of these servers, or warms up (round 0), on one thread of its own: the other
    /// processors are left to the servers.
    async fn windows(&mut self, cells: &[Cell], round: u64, window: Duration) -> Result<(), String> {
        let target = self.target().await?;
        let mut systems: Vec<&mut Figures> = self.figures.iter_mut().collect();
        if round.is_multiple_of(2) {
            systems.reverse();
        }
        for figures in systems {
            let system = figures.system;
            let fits = |cell: &Cell| match cell.how {
                Use::Own => true,
                Use::Shared => system.shares(),
                Use::Hot => system.hands_over(),
            };
            for cell in cells.iter().copied().filter(fits) {
                // A cell that does not become steady costs minutes in each round, and its rate is not compared.
                if !figures.steady(cell) {
                    continue;
                }
                let (target, disk) = (target.clone(), self.cluster.dir().to_owned());
                let measured = tokio::task::spawn_blocking(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(text)?;
                    runtime.block_on(window::measure(&target, system, cell, (round, window), &disk))
                });
                let window = measured.await.map_err(text)?.map_err(|error| format!("{}: {error}", system.name()))?;
                if round == 0 {
                    continue;
                }
                eprintln!("peers: round {round}: {}", page::line(system, &window));
                figures.windows.push(window);
            }
        }
        Ok(())
    }
}

fn predictions(figures: &Figures) -> Vec<Prediction> {
    let windows = &figures.windows;
    let count = |holds: fn(&Window) -> bool| windows.iter().filter(|window| holds(window)).count();
    let mut predictions = vec![
        Prediction::none("windows with a failed pair", windows.len(), count(|window| window.errors > 0)),
        Prediction::all("windows in which pairs were completed", windows.len(), count(|window| window.rate > 0.0)),
    ];
    if let Some(judged) = &figures.judged {
        let what = "violations in the history of a window of the hot lock that was not measured";
        predictions.push(Prediction::none(what, judged.operations, judged.service.len()));
    }
    predictions
}

#[cfg(test)]
mod tests {
    use super::machine::Cores;
    use super::*;

    #[test]
    fn predictions_can_fail() {
        let window = |rate, errors| Window {
            round: 1,
            cell: Cell { how: Use::Own, clients: 1 },
            steady: true,
            rate,
            own: None,
            p50_us: 1,
            p99_us: 1,
            errors,
            error: None,
            sync_us: 1,
            cores: Cores::default(),
        };
        let holds = |windows: Vec<Window>| {
            let judged = Some(Judgement { operations: windows.len(), ..Judgement::default() });
            let predictions = predictions(&Figures { system: System::Redis, window_us: 1, windows, judged });
            predictions.iter().map(|prediction| prediction.holds).collect::<Vec<_>>()
        };
        assert_eq!(holds(vec![window(1.0, 0)]), [true, true, true]);
        assert_eq!(holds(vec![window(1.0, 0), window(0.0, 1)]), [false, false, true]);
        assert_eq!(holds(vec![]), [false, false, false]);
    }
}
