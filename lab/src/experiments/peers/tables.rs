//! Medians and ratios of the windows, and what the page says of them.

use super::drivers::System;
use super::window::{Cell, Use, Window};
use super::{Figures, HOT, OWN, SHARED};
use crate::report::Results;
use crate::report::table::{Table, median, median_of};

/// Cores of the generator's one thread above which it may be what bounds a window.
const FULL: f64 = 0.9;
/// Cores of other processes above which they disturb a window.
pub(super) const DISTURBED: f64 = 0.1;

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

    /// Whether the cell was steady in all windows so far.
    pub(super) fn steady(&self, cell: Cell) -> bool {
        self.of(cell).all(|window| window.steady)
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
        median_of(self.of(cell).filter_map(ratio))
    }

    /// Whether it is faster or slower than Palisade in a cell that is steady with both: the ranges over the rounds tell.
    fn against(&self, palisade: &Figures, cell: Cell) -> Option<Against> {
        if !(self.steady(cell) && palisade.steady(cell)) {
            return None;
        }
        let ((least, _, most), (its_least, _, its_most)) = (self.rate(cell)?, palisade.rate(cell)?);
        Some(match () {
            () if least > its_most => Against::Faster,
            () if most < its_least => Against::Slower,
            () => Against::Undecided,
        })
    }

    /// What may have bounded or disturbed a cell.
    fn marks(&self, cell: Cell) -> String {
        let bounded = if self.full(cell) { "†" } else { "" };
        let disturbed = if self.of(cell).any(|window| window.cores.others > DISTURBED) { "‡" } else { "" };
        format!("{bounded}{disturbed}")
    }

    /// Whether the generator's thread was full in the median window.
    fn full(&self, cell: Cell) -> bool {
        let cores = median_of(self.of(cell).map(|window| window.cores.generator));
        cores.is_some_and(|cores| cores >= FULL)
    }
}

/// A system against Palisade in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Against {
    /// Faster in every round than Palisade in any.
    Faster,
    /// Slower in every round than Palisade in any.
    Slower,
    /// The ranges overlap.
    Undecided,
}

/// A number of pairs a second: `12,345` or `8.3`.
fn rate(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
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
            if !figures.steady(cell) {
                return Some("not steady".to_owned());
            }
            let palisade = palisade.filter(|palisade| figures.system != System::Palisade && palisade.steady(cell));
            let ratio = palisade.and_then(|palisade| figures.ratio(palisade, cell));
            let ratio = ratio.map_or_else(String::new, |ratio| format!(", × {ratio:.2}"));
            let range = format!(" ({} to {})", rate(least), rate(most));
            let own = median_of(figures.of(cell).filter_map(|window| window.own));
            let own = own.map_or_else(String::new, |own| format!(", own {:.0} %", own * 100.0));
            let details = if detailed { format!("{range}{own}") } else { String::new() };
            Some(format!("{}{}{details}{ratio}", rate(median), figures.marks(cell)))
        };
        let values: Vec<Option<String>> = clients.iter().map(value).collect();
        if values.iter().any(Option::is_some) {
            let values = values.into_iter().map(Option::unwrap_or_default);
            table.cells(std::iter::once(figures.system.name().to_owned()).chain(values).collect());
        }
    }
    table.markdown()
}

/// Where another system was faster than Palisade, or slower, or where no difference was shown.
pub(super) fn comparison(results: &Results<Figures>, against: Against) -> String {
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
                let marks = figures.marks(cell);
                (figures.against(palisade, cell)? == against).then(|| format!("{}{marks} (× {ratio:.2})", cell.clients))
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
    let mut table = Table::of(" | a pair | servers, and what an answer stands for | fencing token | queue in order");
    for figures in systems(results) {
        let [pair, servers, token, queue] = figures.system.promise();
        table.row([figures.system.name(), pair, servers, token, queue].map(str::to_owned));
    }
    table.markdown()
}

/// What happened beside the windows.
pub(super) fn disturbances(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        " | windows | disk probe, ms | generator, cores, at most | servers, cores | others, cores | others, at most | \
         windows beside which others used more than 0.1 | stolen, at most | pairs that failed",
    );
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
            figures.windows.iter().filter(|window| window.cores.others > DISTURBED).count().to_string(),
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
            if figures.full(cell) {
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
            steady: true,
            rate,
            own: None,
            p50_us: 1,
            p99_us: 1,
            errors: 0,
            error: None,
            sync_us: 1,
            cores: Cores { generator: 0.95, ..Cores::default() },
        });
        Figures { system, window_us: 1, windows: windows.collect(), judged: None }
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
    fn ranges_that_overlap_show_no_difference() {
        let palisade = figures(System::Palisade, &[100.0, 120.0]);
        let cell = Cell { how: Use::Own, clients: 1 };
        let against = |rates: &[f64]| figures(System::Redis, rates).against(&palisade, cell);
        assert_eq!(against(&[121.0, 300.0]), Some(Against::Faster));
        assert_eq!(against(&[119.0, 300.0]), Some(Against::Undecided));
        assert_eq!(against(&[80.0, 99.0]), Some(Against::Slower));
        let mut unsteady = figures(System::Redis, &[500.0, 500.0]);
        unsteady.windows[1].steady = false;
        assert_eq!(unsteady.against(&palisade, cell), None);
    }

    #[test]
    fn wins_and_losses_are_both_listed() {
        let run = |figures: Figures| crate::report::Run {
            backend: figures.system.name().to_owned(),
            setup: crate::report::setup::Setup {
                commit: String::new(),
                dirty: false,
                outdated: false,
                leader_only: false,
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
        let list = |against| comparison(&results, against);
        assert_eq!(list(Against::Faster), "- **redis**\n  - own connections: 1† (× 3.00)\n");
        assert_eq!(list(Against::Slower), "- **etcd-txn**\n  - own connections: 1† (× 0.50)\n");
        assert_eq!(list(Against::Undecided), "- In no cell.\n");
        assert!(
            rates(&results, Use::Own, &OWN, false).contains("| etcd-txn | 50.0†, × 0.50 |  |  |  |\n"),
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
