//! The table of findings in docs/lab/README.md: a row for each lock service, a column for each property.
//!
//! `palisade-lab run` writes it whenever it writes a page. Each cell is computed from the results that are kept beside
//! the pages.

mod cells;

use std::path::Path;

use super::{clocks, failover, fairness, pause, redlock, release};
use crate::dlock::Backend;
use crate::report::Results;
use crate::report::table::Table;
use crate::resource::rule::Fence;

/// The line above the table.
const START: &str = "<!-- `palisade-lab run` writes this table. -->";
/// The line below it.
const END: &str = "<!-- The table ends here. -->";

const HEAD: [&str; 9] = [
    "backend",
    "stale write after a pause, no fence: [pause](pause.md)",
    "the same with the fence: [pause](pause.md)",
    "a former owner's release: [release](release.md)",
    "order of arrival: [fairness](fairness.md)",
    "held lock when a server is killed: [failover](failover.md)",
    "no grants after the leader's kill, s, medians of the two cases: [failover](failover.md)",
    "tokens over the failover: [failover](failover.md)",
    "wall clocks jump: [clocks](clocks.md)",
];

/// Writes the table into the README.md of a directory of pages, if it has one.
///
/// # Errors
/// README.md has no place for the table, or a file cannot be read or written.
pub(super) fn write(out: &Path) -> Result<(), String> {
    let path = out.join("README.md");
    if !path.exists() {
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let table = Kept::load(out)?.table();
    let text = with_table(&text, &table)
        .ok_or_else(|| format!("{} lacks the lines around the table: {START} and {END}", path.display()))?;
    std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// The text with this table between the two lines; none if it lacks them.
fn with_table(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(START)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{START}\n\n{table}\n{END}{after}"))
}

/// The results that the table is made of.
struct Kept {
    pause: Results<pause::Figures>,
    release: Results<release::Figures>,
    fairness: Results<fairness::Figures>,
    failover: Results<failover::Figures>,
    redlock: Results<redlock::Figures>,
    clocks: Results<clocks::Figures>,
}

impl Kept {
    fn load(out: &Path) -> Result<Kept, String> {
        Ok(Kept {
            pause: Results::load(out, "pause")?,
            release: Results::load(out, "release")?,
            fairness: Results::load(out, "fairness")?,
            failover: Results::load(out, "failover")?,
            redlock: Results::load(out, "redlock")?,
            clocks: Results::load(out, "clocks")?,
        })
    }

    fn table(&self) -> String {
        let mut table = Table::new(&HEAD);
        for backend in Backend::ALL {
            table.row(self.row(backend));
        }
        table.markdown()
    }

    fn row(&self, backend: Backend) -> [String; HEAD.len()] {
        let (pause, failover) = (of(&self.pause, backend), of(&self.failover, backend));
        let mut fenced = cells::stale_write(pause, Fence::On);
        let (mut held, mut tokens) = (cells::held_lock(failover), cells::tokens(failover));
        if backend == Backend::Redlock {
            let redlock = of(&self.redlock, backend);
            let ([writes, numbers], crash) = (cells::own_tokens(redlock), cells::one_crashes(redlock));
            fenced = format!("{fenced}; after failed attempts {writes} ([redlock](redlock.md))");
            held = format!("failover: {held}. One instance crashes, {crash} ([redlock](redlock.md))");
            tokens = format!("failover: {tokens}. After failed attempts they {numbers} ([redlock](redlock.md))");
        }
        [
            backend.to_string(),
            cells::stale_write(pause, Fence::Off),
            fenced,
            cells::former_release(of(&self.release, backend)),
            cells::order_of_arrival(of(&self.fairness, backend)),
            held,
            cells::gap(failover),
            tokens,
            cells::jumps(of(&self.clocks, backend)),
        ]
    }
}

/// The figures of a backend, if it was run.
fn of<T>(results: &Results<T>, backend: Backend) -> Option<&T> {
    results.runs.iter().find(|run| run.backend == backend.name()).map(|run| &run.figures)
}

#[cfg(test)]
mod tests;
