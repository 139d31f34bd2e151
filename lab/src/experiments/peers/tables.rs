//! Medians and ratios of the windows, and what the page says of them.

use super::drivers::System;
use super::window::{Cell, Use, Window};
use super::{Figures, HOT, OWN, SHARED};
use crate::report::Results;
use crate::report::table::{Table, median};

/// Cores of the generator's one thread above which it may be what bounds a window.
const FULL: f64 = 0.9;

/// Least, median and greatest of some values.
fn spread(values: impl Iterator<Item = f64>) -> Option<(f64, f64, f64)> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (least, most) = (*values.first()?, *values.last()?);
    Some((least, median(&values, f64::midpoint)?, most))
}

impl Figures {
    fn of(&self, cell: Cell) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(move |window| window.cell == cell)
    }

    /// The least, the median and the greatest rate.
    pub(super) fn rate(&self, cell: Cell) -> Option<(f64, f64, f64)> {
        spread(self.of(cell).map(|window| window.rate))
    }

    /// The median rate over Palisade's, in the rounds that both have.
    fn ratio(&self, palisade: &Figures, cell: Cell) -> Option<f64> {
        let ratio = |window: &Window| {
            let same = palisade.of(cell).find(|other| other.round == window.round)?;
            (same.rate > 0.0).then(|| window.rate / same.rate)
        };
        spread(self.of(cell).filter_map(ratio)).map(|(_, median, _)| median)
    }
}

/// A number of pairs a second: `12,345` or `8.3`.
fn rate(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// All systems that were measured, in the order of the tables.
pub(super) fn systems(results: &Results<Figures>) -> Vec<&Figures> {
    let mut all: Vec<_> = results.runs.iter().map(|run| &run.figures).collect();
    all.sort_by_key(|figures| figures.system);
    all
}

fn palisade(results: &Results<Figures>) -> Option<&Figures> {
    systems(results).into_iter().find(|figures| figures.system == System::Palisade)
}

/// The rates of all systems in the cells of one use.
pub(super) fn rates(results: &Results<Figures>, how: Use, clients: &[usize], detailed: bool) -> String {
    let head: Vec<String> = clients.iter().map(|count| format!("{count}")).collect();
    let mut head: Vec<&str> = head.iter().map(String::as_str).collect();
    head.insert(0, "");
    let mut table = Table::new(&head);
    let palisade = palisade(results);
    for figures in systems(results) {
        let value = |&clients: &usize| {
            let cell = Cell { how, clients };
            let (least, median, most) = figures.rate(cell)?;
            let ratio = palisade.and_then(|palisade| figures.ratio(palisade, cell));
            let ratio = ratio.filter(|_| figures.system != System::Palisade);
            let ratio = ratio.map_or_else(String::new, |ratio| format!(", × {ratio:.2}"));
            let range = format!(" ({} to {})", rate(least), rate(most));
            Some(format!("{}{}{ratio}", rate(median), if detailed { &range } else { "" }))
        };
        let values: Vec<Option<String>> = clients.iter().map(value).collect();
        if values.iter().any(Option::is_some) {
            let values = values.into_iter().map(Option::unwrap_or_default);
            table.cells(std::iter::once(figures.system.name().to_owned()).chain(values).collect());
        }
    }
    table.markdown()
}

/// Where another system was faster than Palisade, or slower, by its ratio.
pub(super) fn comparison(results: &Results<Figures>, faster: bool) -> String {
    let Some(palisade) = palisade(results) else { return "Palisade was not measured.\n".to_owned() };
    let cells = |how, clients: &[usize]| clients.iter().map(|&clients| Cell { how, clients }).collect::<Vec<_>>();
    let uses = [
        ("own connections", cells(Use::Own, &OWN)),
        ("shared connections", cells(Use::Shared, &SHARED)),
        ("one hot lock", cells(Use::Hot, &HOT)),
    ];
    let mut text = String::new();
    for figures in systems(results).into_iter().filter(|figures| figures.system != System::Palisade) {
        let mut parts = Vec::new();
        for (name, cells) in &uses {
            let found = cells.iter().filter_map(|&cell| {
                let ratio = figures.ratio(palisade, cell)?;
                ((ratio > 1.0) == faster).then(|| format!("{} (× {ratio:.2})", cell.clients))
            });
            let found: Vec<String> = found.collect();
            if !found.is_empty() {
                parts.push(format!("  - {name}: {}\n", found.join(", ")));
            }
        }
        if !parts.is_empty() {
            text.push_str(&format!("- **{}**\n{}", figures.system.name(), parts.concat()));
        }
    }
    if text.is_empty() { "- In no cell.\n".to_owned() } else { text }
}

pub(super) fn promises(results: &Results<Figures>) -> String {
    let mut table =
        Table::new(&["", "a pair", "servers, and what an answer stands for", "fencing token", "queue in order"]);
    for figures in systems(results) {
        let [pair, servers, token, queue] = figures.system.promise();
        table.row([figures.system.name(), pair, servers, token, queue].map(str::to_owned));
    }
    table.markdown()
}

/// What happened beside the windows.
pub(super) fn disturbances(results: &Results<Figures>) -> String {
    let mut table = Table::new(&[
        "",
        "windows",
        "disk probe, ms",
        "generator, cores, at most",
        "servers, cores",
        "others, cores",
        "others, at most",
        "stolen, at most",
        "pairs that failed",
    ]);
    for figures in systems(results) {
        let of = |value: fn(&Window) -> f64| spread(figures.windows.iter().map(value)).unwrap_or_default();
        let sync = of(|window| window.sync_us as f64 / 1e3);
        let others = of(|window| window.cores.others);
        table.row([
            figures.system.name().to_owned(),
            figures.windows.len().to_string(),
            format!("{:.2} ({:.2} to {:.2})", sync.1, sync.0, sync.2),
            format!("{:.2}", of(|window| window.cores.generator).2),
            format!("{:.2}", of(|window| window.cores.servers).1),
            format!("{:.2}", others.1),
            format!("{:.2}", others.2),
            format!("{:.2}", of(|window| window.cores.stolen).2),
            figures.windows.iter().map(|window| window.errors).sum::<u64>().to_string(),
        ]);
    }
    table.markdown()
}

/// Cells in which the generator's thread was full in the median window.
pub(super) fn bounded(results: &Results<Figures>) -> String {
    let mut found = Vec::new();
    for figures in systems(results) {
        let mut cells: Vec<Cell> = figures.windows.iter().map(|window| window.cell).collect();
        cells.sort_unstable();
        cells.dedup();
        for cell in cells {
            let cores = spread(figures.of(cell).map(|window| window.cores.generator));
            if cores.is_some_and(|(_, median, _)| median >= FULL) {
                let how = format!("{:?}", cell.how).to_lowercase();
                found.push(format!("{} {how} {}", figures.system.name(), cell.clients));
            }
        }
    }
    match found.is_empty() {
        true => format!("In no cell did the generator take {FULL} cores or more."),
        false => format!(
            "In these cells the generator took {FULL} cores or more, and may be what bounds them:\n\n- {}",
            found.join("\n- ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Cores;
    use super::*;

    fn figures(system: System, rates: &[f64]) -> Figures {
        let windows = rates.iter().zip(1..).map(|(&rate, round)| Window {
            round,
            cell: Cell { how: Use::Own, clients: 1 },
            rate,
            p50_us: 1,
            p99_us: 1,
            errors: 0,
            error: None,
            sync_us: 1,
            cores: Cores { generator: 0.95, ..Cores::default() },
        });
        Figures { system, window_us: 1, windows: windows.collect() }
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let palisade = figures(System::Palisade, &[100.0, 200.0, 400.0]);
        let other = figures(System::Redis, &[50.0, 400.0, 400.0, 1.0]);
        let cell = Cell { how: Use::Own, clients: 1 };
        assert_eq!(other.ratio(&palisade, cell), Some(1.0));
        assert_eq!(other.rate(cell), Some((1.0, 225.0, 400.0)));
        assert_eq!(other.rate(Cell { how: Use::Hot, clients: 1 }), None);
    }

    #[test]
    fn wins_and_losses_are_both_listed() {
        let run = |figures: Figures| crate::report::Run {
            backend: figures.system.name().to_owned(),
            setup: crate::report::setup::Setup {
                commit: String::new(),
                dirty: false,
                command: String::new(),
                servers: String::new(),
                machine: String::new(),
                disk: String::new(),
            },
            predictions: Vec::new(),
            figures,
        };
        let all = [(System::Redis, 300.0), (System::EtcdTxn, 50.0), (System::Palisade, 100.0)];
        let results = Results { runs: all.map(|(system, rate)| run(figures(system, &[rate]))).into() };
        assert_eq!(comparison(&results, true), "- **redis**\n  - own connections: 1 (× 3.00)\n");
        assert_eq!(comparison(&results, false), "- **etcd-txn**\n  - own connections: 1 (× 0.50)\n");
        assert!(
            rates(&results, Use::Own, &OWN, false).contains("| etcd-txn | 50.0, × 0.50 |  |  |  |\n"),
            "{}",
            rates(&results, Use::Own, &OWN, false)
        );
        assert!(bounded(&results).ends_with("\n- palisade own 1\n- etcd-txn own 1\n- redis own 1"));
    }

    #[test]
    fn numbers_are_grouped() {
        let cases = [(8.26, "8.3"), (999.4, "999"), (1_234.0, "1,234"), (1_234_567.0, "1,234,567")];
        cases.into_iter().for_each(|(value, text)| assert_eq!(rate(value), text));
    }
}
