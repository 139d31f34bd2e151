//! The page of `peers`, and the short tables that docs/performance.md quotes.

use super::drivers::{INSTANCE_TIMEOUT, System};
use super::record::CLIENTS;
use super::tables::{Against, DISTURBED, bounded, comparison, disturbances, promises, rates, systems};
use super::window::{Cell, Use, WARM_UP_MOST, Window};
use super::{Figures, HOT, OWN, ROUNDS, SHARED, WINDOW};
use crate::dlock;
use crate::event::micros;
use crate::report::plot::{Axes, Series, series};
use crate::report::table::{Table, ms};
use crate::report::{Page, Results};

/// A window in one line.
#[must_use]
pub fn line(system: System, window: &Window) -> String {
    let Window { cell, rate, p50_us, p99_us, errors, sync_us, cores, .. } = window;
    let error = window.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
    let own = window.own.map_or_else(String::new, |own| format!(" own {:.0} %", own * 100.0));
    let steady = if window.steady { "" } else { " NOT STEADY" };
    format!(
        "{:<14} {:>4} {:<6} {rate:>9.1}/s{own}{steady} p50 {} ms p99 {} ms, sync {} ms, cores: generator {:.2} servers {:.2} others {:.2} stolen {:.2}; {errors} errors{error}",
        system.name(),
        cell.clients,
        format!("{:?}", cell.how).to_lowercase(),
        ms(*p50_us),
        ms(*p99_us),
        ms(*sync_us),
        cores.generator,
        cores.servers,
        cores.others,
        cores.stolen,
    )
}

/// Says that a run was shorter than that of a committed comparison.
fn few(results: &Results<Figures>) -> String {
    let rounds = rounds(results);
    let window = results.runs.iter().map(|run| run.figures.window_us).min().unwrap_or(0);
    if rounds >= ROUNDS && window >= micros(WINDOW) {
        return String::new();
    }
    let window = window as f64 / 1e6;
    let rounds = if rounds == 1 { "one round".to_owned() } else { format!("{rounds} rounds") };
    format!("\n**A trial of {rounds} with windows of {window} s: no basis for a comparison.**\n")
}

fn rounds(results: &Results<Figures>) -> u64 {
    let of = |figures: &Figures| figures.windows.iter().map(|window| window.round).max().unwrap_or(0);
    results.runs.iter().map(|run| of(&run.figures)).min().unwrap_or(0)
}

/// The tables that docs/performance.md quotes.
fn summary(results: &Results<Figures>) -> String {
    format!(
        "Each client has its own connection and its own key; pairs a second, by the number of clients:\n\n{}\n\
         All clients share four connections; pairs a second, by the number of requests in flight:\n\n{}\n\
         One hot lock; hand-overs a second, by the number of waiters:\n\n{}{}",
        rates(results, Use::Own, &OWN, false),
        rates(results, Use::Shared, &SHARED, false),
        rates(results, Use::Hot, &HOT, false),
        few(results)
    )
}

/// What is judged of the runs.
fn judged(results: &Results<Figures>) -> String {
    let mut table = Table::of(" | clients | operations | violations");
    let mut missing = Vec::new();
    for figures in systems(results).into_iter().filter(|figures| figures.system.hands_over()) {
        let name = figures.system.name();
        match &figures.judged {
            None => missing.push(name),
            Some(judged) => table.row([
                name.to_owned(),
                CLIENTS.to_string(),
                judged.operations.to_string(),
                judged.service.len().to_string(),
            ]),
        }
    }
    let mut text = "- The measured windows record no history: that would take processor time from the servers. After\n  \
                    the last round, each system whose clients can wait runs one more window of the hot lock, which is\n  \
                    not measured; its history is recorded, and the checkers of histories judge it. Redlock has no\n  \
                    fencing token that orders its grants; they are numbered in the order in which the client saw them.\n"
        .to_owned();
    if missing.len() < systems(results).iter().filter(|figures| figures.system.hands_over()).count() {
        text += &format!("\n{}\n", table.markdown());
    }
    if !missing.is_empty() {
        text += &format!("- These runs are older than the histories, and have none: {}.\n", missing.join(", "));
    }
    text
}

/// Renders the page.
#[must_use]
pub fn page(results: &Results<Figures>) -> Page {
    let (setups, commands, predictions) = (results.setups(), results.commands(), results.predictions());
    let rounds = rounds(results);
    let window = results.runs.first().map_or(0.0, |run| run.figures.window_us as f64 / 1e6);
    let few = few(results);
    let own = rates(results, Use::Own, &OWN, true);
    let shared = rates(results, Use::Shared, &SHARED, true);
    let hot = rates(results, Use::Hot, &HOT, true);
    let (losses, wins) = (comparison(results, Against::Faster), comparison(results, Against::Slower));
    let undecided = comparison(results, Against::Undecided);
    let warm_up = WARM_UP_MOST.as_secs();
    let instance_timeout = INSTANCE_TIMEOUT.as_secs();
    let options = dlock::Options::default();
    let (usual, spin_max) = (options.instance_timeout.as_millis(), options.spin_max.as_millis());
    let (promises, disturbances, bounded) = (promises(results), disturbances(results), bounded(results));
    let judged = judged(results);
    let markdown = format!(
        "# Palisade beside its peers

Pairs of acquire and release a second, and hand-overs of one hot lock, of systems that promise
different things: read the table of promises first.
{few}
**Question.** How many pairs does each system make with 1 to 256 clients that have connections of
their own, with up to 1024 requests in flight on four connections, and how often does one hot lock
change hands?

## What is compared

{promises}
A system that syncs on one server, or on none, promises less than one that syncs on a majority. One
without a queue may let a waiter starve.

## Set-up

{setups}
{commands}
The systems take turns: each round has the reverse order of the one before, so that a drift of the
machine falls on all alike. In its turn a system is measured in all cells. All servers are started
once; those that are not measured are stopped by SIGSTOP, so that they use no processor and
ZooKeeper's compiled program stays. After SIGCONT the run waits until all nodes serve, and 64
clients warm the servers up. A window lasts {window} s, after at least 0.3 s of load that is not
counted: 1 ms more for each client, and until as many pairs as clients were complete, so that a
queue of that length has moved once. A cell that is not so far after {warm_up} s is *not steady*: it is not
ranked, and later rounds leave it out. Rounds: {rounds}.

All clients of a window are tasks of one thread, in a closed loop; each has a key of its own, except
at the hot lock. Leases and sessions are opened once for each client, except by etcd-txn at the hot
lock: one for each acquire, which costs it two more rounds of agreement. Leases are 20 to 120 s
long, so none ends in a window. Clients of etcd are connected to the leader, as Palisade's are;
those of ZooKeeper to any server. `palisade-raw` is to Palisade what `etcd-txn` and `zookeeper-node`
are to etcd and ZooKeeper: the requests alone, which nothing numbers, repeats or renews.

An instance of Redlock may take {instance_timeout} s to answer here, and {usual} ms by default. An
instance that answers late gives no vote: with the shorter time, the throughput would measure the
timeout. The longer one favours Redlock.

## Figures

Pairs a second: the median of the rounds, the least and the greatest in parentheses, and the
median of the ratios to Palisade in the same round. †: the generator may be what bounds the cell.
‡: beside a window of the cell, other processes used more than {DISTURBED} cores.

**Each client has its own connection**, by the number of clients:

{own}
![Pairs a second](peers/own.svg)

**All clients share four connections**, by the number of clients; those of ZooKeeper share four
sessions, those of etcd have a lease each. HTTP/1.1 has one request at a time on a connection.

{shared}
**One hot lock**: hand-overs a second by the number of waiters. A holder releases at once, and asks
again. Only pairs whose lock went to another client than in the pair before are hand-overs; *own* is
the share of the pairs in which a client took the lock again that it had itself released.

{hot}
## Where the others are faster

{losses}
## Where the others are slower

{wins}
## Where no difference was shown

In the cells above, every round of one system was faster than every round of the other. In these,
the ranges over the rounds overlap:

{undecided}
## What disturbed the windows

A probe of the disk before each window: the median of 15 appends of 512 bytes with `fdatasync`.
*Others* are processes that are neither the measured servers nor the load generator; *stolen* is
what the hypervisor took. Medians over the windows of a system; the least and the greatest in
parentheses.

{disturbances}
{bounded}

## Predicted and seen

{predictions}
## What bounds it

- Servers and load generator share the machine's cores. Three nodes on one machine do three times
  the work of one; on machines of their own they would share nothing, and a network would be
  between them.
- The clients differ: a client that needs more processor leaves less to the servers. The column
  *generator* says how much.
- Waiters of Redis spin, and a client that has just released is often the first to ask again: *own*
  says how often the lock went nowhere. Such pairs are not hand-overs, and are not counted.
- A waiter of Redis or Redlock pauses for up to {spin_max} ms between two attempts. The lab chooses this
  limit (the default of its `--spin-max`), and the hand-overs of the hot lock depend on it.
{judged}"
    );
    let files = vec![
        ("own.svg".to_owned(), plot(results)),
        ("windows.csv".to_owned(), csv(results)),
        ("summary.md".to_owned(), summary(results)),
    ];
    Page { markdown, files }
}

fn plot(results: &Results<Figures>) -> String {
    let lines = systems(results).into_iter().map(|figures| {
        let point = |&clients: &usize| {
            let (_, median, _) = figures.rate(Cell { how: Use::Own, clients })?;
            (median > 0.0).then_some((clients as f64, median))
        };
        Series { name: figures.system.name().to_owned(), points: OWN.iter().filter_map(point).collect(), line: true }
    });
    let lines: Vec<_> = lines.collect();
    let rates = || lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let (least, most) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
    let axes = Axes {
        x: "clients".to_owned(),
        y: "pairs a second".to_owned(),
        x_range: (0.2, 400.0),
        y_range: if most > 0.0 { (least / 1.5, most * 1.5) } else { (1.0, 10.0) },
        logarithmic: true,
    };
    series(&axes, &lines)
}

fn csv(results: &Results<Figures>) -> String {
    let mut table = Table::of(
        "system | round | use | clients | steady | pairs_per_second | own_share | p50_us | p99_us | errors | sync_us | \
         generator_cores | servers_cores | others_cores | stolen_cores",
    );
    for figures in systems(results) {
        for window in &figures.windows {
            let cores = [window.cores.generator, window.cores.servers, window.cores.others, window.cores.stolen];
            let [generator, servers, others, stolen] = cores.map(|cores| format!("{cores:.3}"));
            table.row([
                figures.system.name().to_owned(),
                window.round.to_string(),
                format!("{:?}", window.cell.how).to_lowercase(),
                window.cell.clients.to_string(),
                window.steady.to_string(),
                format!("{:.1}", window.rate),
                window.own.map_or_else(String::new, |own| format!("{own:.3}")),
                window.p50_us.to_string(),
                window.p99_us.to_string(),
                window.errors.to_string(),
                window.sync_us.to_string(),
                generator,
                servers,
                others,
                stolen,
            ]);
        }
    }
    table.csv()
}
