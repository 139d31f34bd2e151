//! The tables of findings in docs/lab/README.md: a row for each lock service, a column for each property or number.
//!
//! `palisade-lab run` writes it whenever it writes a page. Each cell is computed from the results that are kept beside
//! the pages.

mod cells;
mod numbers;

use std::path::Path;

use super::{
    clocks, contention, failover, fairness, fenced_stores, pause, prediction, redlock, release, renew, ten_million,
    ttl, work,
};
use crate::dlock::Backend;
use crate::report::Results;
use crate::report::table::Table;
use crate::resource::rule::Fence;

/// The line above the tables.
const START: &str = "<!-- `palisade-lab run` writes these tables. -->";
/// The line below them.
const END: &str = "<!-- The tables end here. -->";

const HEAD: [&str; 9] = [
    "backend",
    "stale write after a pause, no fence: [pause](pause.md)",
    "the same with the fence: [pause](pause.md)",
    "a former owner's release: [release](release.md)",
    "order of arrivals 250 ms apart: [fairness](fairness.md)",
    "held lock when a server is killed: [failover](failover.md)",
    "no grants after the leader's kill, s, median (least to greatest): [failover](failover.md)",
    "tokens over the failover: [failover](failover.md)",
    "wall clocks jump: [clocks](clocks.md)",
];

/// Writes the tables into the README.md of a directory of pages, if it has one.
///
/// # Errors
/// README.md has no place for the tables, or a file cannot be read or written.
pub(super) fn write(out: &Path) -> Result<(), String> {
    let path = out.join("README.md");
    if !path.exists() {
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let tables = Kept::load(out)?.tables();
    let text = with_tables(&text, &tables)
        .ok_or_else(|| format!("{} lacks the lines around the tables: {START} and {END}", path.display()))?;
    std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// The text with these tables between the two lines; none if it lacks them.
fn with_tables(text: &str, tables: &str) -> Option<String> {
    let (before, rest) = text.split_once(START)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{START}\n\n{tables}\n{END}{after}"))
}

/// The results that the tables are made of.
struct Kept {
    pause: Results<pause::Figures>,
    release: Results<release::Figures>,
    fairness: Results<fairness::Figures>,
    failover: Results<failover::Figures>,
    redlock: Results<redlock::Figures>,
    clocks: Results<clocks::Figures>,
    contention: Results<contention::Figures>,
    work: Results<work::Figures>,
    renew: Results<renew::Figures>,
    ttl: Results<ttl::Figures>,
    fenced_stores: Results<fenced_stores::Figures>,
    prediction: Results<prediction::Figures>,
    ten_million: Results<ten_million::Figures>,
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
            contention: Results::load(out, "contention")?,
            work: Results::load(out, "work")?,
            renew: Results::load(out, "renew")?,
            ttl: Results::load(out, "ttl")?,
            fenced_stores: Results::load(out, "fenced-stores")?,
            prediction: Results::load(out, "prediction")?,
            ten_million: Results::load(out, "ten-million")?,
        })
    }

    fn tables(&self) -> String {
        let (mut table, mut numbers) = (Table::new(&HEAD), Table::new(&numbers::HEAD));
        for backend in Backend::ALL {
            table.row(self.row(backend));
            numbers.row(self.numbers(backend));
        }
        format!("{}\n{}\n{}", table.markdown(), numbers::TEXT, numbers.markdown())
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
