//! The lines of one frame, computed from a [`View`] alone.

use std::time::Duration;

use palisade_client::escaped;
use palisade_client::wire::{DiskView, LockView};

use super::super::nodes::NodeAnswer;
use super::super::show::{claim, name, role_tone};
use super::super::table::{Cell, Side, Table, Tone, painted};
use super::picture::{LOCKS, Picture};
use super::view::View;

/// Cells of a bar.
const BAR: usize = 10;
/// How many waiters of the chosen lock are named.
const WAITERS: usize = 5;
/// Colours of text and background, exchanged.
const REVERSED: &str = "\x1b[7m";
/// Bold.
const BOLD: &str = "\x1b[1m";

/// Everything, for a reader that is no terminal.
pub(super) fn whole(view: &View) -> Vec<String> {
    let Some(picture) = &view.picture else { return Vec::new() };
    let mut lines = head(picture, false);
    lines.extend(locks(view, &view.locks(), false, false));
    lines.extend(notes(picture));
    lines
}

/// As much as fits on a terminal of this size.
pub(super) fn live(view: &mut View, (rows, columns): (usize, usize)) -> Vec<String> {
    let Some(picture) = &view.picture else { return vec!["asking the nodes …".into()] };
    let mut lines = head(picture, view.colour);
    let notes = notes(picture);
    // Beside the locks: their heading, the waiters of the chosen one, and the last line.
    let room = rows.saturating_sub(lines.len() + notes.len() + 3).max(1);
    view.scroll(room);
    let (view, at) = (&*view, view.position());
    let all = view.locks();
    let shown = &all[view.first.min(all.len())..(view.first + room).min(all.len())];
    let mut table = locks(view, shown, view.colour, true);
    let plain = locks(view, shown, false, true);
    // A lock that several sessions hold has a row for each.
    let chosen = 1 + shown.iter().take(at - view.first).map(|lock| lock.holders.len().max(1)).sum::<usize>();
    if let (false, Some(line)) = (shown.is_empty(), table.get_mut(chosen)) {
        *line = painted(REVERSED, &format!("{:<columns$}", plain[chosen]));
    }
    table.truncate(room + 1);
    table.resize(room + 1, String::new());
    lines.extend(table);
    lines.extend(notes);
    lines.push(all.get(at).map_or_else(String::new, |lock| waiters(lock)));
    lines.push(last_line(view, all.len()));
    lines.truncate(rows);
    lines
}

/// The cluster in one line, and the nodes.
fn head(picture: &Picture, colour: bool) -> Vec<String> {
    let summary = picture.current().map_or_else(
        || "no node answers".to_owned(),
        |status| {
            let leader = match &status.leader {
                Some(leader) => format!("node {}", leader.id),
                None => "none".to_owned(),
            };
            let (cluster, term, sessions) = (&status.cluster_name, status.term, status.sessions);
            format!("cluster {cluster}  leader {leader}  term {term}  sessions {sessions}  locks {}", status.locks)
        },
    );
    let mut lines = vec![painted(if colour { BOLD } else { "" }, &escaped(&summary)), String::new()];
    lines.extend(nodes(picture).lines(colour));
    lines.push(String::new());
    lines
}

fn nodes(picture: &Picture) -> Table {
    let mut table = Table::new(&[
        ("NODE", Side::Right),
        ("ENDPOINT", Side::Left),
        ("ROLE", Side::Left),
        ("TERM", Side::Right),
        ("COMMIT", Side::Right),
        ("LAG", Side::Right),
        ("DISK FREE", Side::Right),
        ("VERSION", Side::Left),
    ]);
    let statuses = picture.nodes.iter().filter_map(|answer| answer.status.as_ref());
    let committed = statuses.map(|status| status.commit).max().unwrap_or(0);
    for NodeAnswer { endpoint, node, status, error } in &picture.nodes {
        let node = node.map_or_else(|| "-".to_owned(), |node| node.to_string());
        let named = [node.into(), endpoint.as_deref().unwrap_or("-").into()];
        let rest = match status {
            Some(status) => {
                let lag = committed.saturating_sub(status.applied);
                vec![
                    Cell::new(&status.role, role_tone(&status.role)),
                    status.term.into(),
                    status.commit.into(),
                    lag.into(),
                    disk(&status.disk),
                    version(&status.version),
                ]
            }
            None => {
                let error = error.as_deref().unwrap_or("no answer");
                vec![Cell::new(format!("unreachable: {error}"), Tone::Bad)]
            }
        };
        table.row(named.into_iter().chain(rest));
    }
    table
}

/// The version of a node's program. Nodes of an earlier version do not tell it.
fn version(version: &str) -> Cell {
    if version.is_empty() { "-".into() } else { version.into() }
}

fn disk(disk: &DiskView) -> Cell {
    let free = disk.free_bytes.map_or_else(|| "-".to_owned(), binary);
    if disk.low { Cell::new(format!("{free} LOW"), Tone::Bad) } else { free.into() }
}

/// A number of bytes with its unit.
fn binary(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, power)| bytes >> power > 0) {
        Some((unit, power)) => {
            let tenths = (bytes >> (power - 10)) * 10 / 1024;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

/// The heading, and a line for each holder. A lock that is only waited for has a line, too.
fn locks(view: &View, locks: &[&LockView], colour: bool, with_bars: bool) -> Vec<String> {
    let bar_column = ("TTL LEFT  ", Side::Left);
    let time_column = (if with_bars { "" } else { "TTL LEFT" }, Side::Right);
    let columns = [("KEY", Side::Left), ("TOKEN", Side::Right), ("WAITING", Side::Right)].into_iter();
    let columns = columns.chain(with_bars.then_some(bar_column)).chain([time_column, ("HOLDER", Side::Left)]);
    let mut table = Table::new(&columns.collect::<Vec<_>>());
    for lock in locks {
        let waiting = || Cell::new(lock.queue.len(), if lock.queue.is_empty() { Tone::Plain } else { Tone::Warn });
        for holder in &lock.holders {
            let (left, part) = view.left(holder.session, holder.expires_in_ms);
            let tone = match part {
                part if left.is_zero() || part < 0.2 => Tone::Bad,
                part if part < 0.5 => Tone::Warn,
                _ => Tone::Good,
            };
            let owner = escaped(name(&holder.owner)).into_owned();
            let owner = owner + &claim(holder.mode, holder.permits.zip(holder.of), &holder.keys);
            let bar = with_bars.then(|| Cell::new(bar(part), tone));
            let first = [(&lock.key).into(), holder.token.into(), waiting()].into_iter();
            table.row(first.chain(bar).chain([seconds(left).into(), owner.into()]));
        }
        if lock.holders.is_empty() {
            let first = [(&lock.key).into(), "-".into(), waiting()].into_iter();
            table.row(first.chain(with_bars.then(|| "".into())).chain(["-".into(), "-".into()]));
        }
    }
    table.lines(colour)
}

/// A bar of which this part is full.
fn bar(part: f64) -> String {
    let is_full = |cell: usize| (cell as f64) < part * BAR as f64;
    (0..BAR).map(|cell| if is_full(cell) { '#' } else { '.' }).collect()
}

fn seconds(left: Duration) -> String {
    match left.as_secs() {
        0..60 => format!("{}.{}s", left.as_secs(), left.subsec_millis() / 100),
        seconds @ 60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        seconds => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// What the reader has to know about the list of locks.
fn notes(picture: &Picture) -> Vec<String> {
    match &picture.locks {
        Err(error) => vec![format!("cannot read the locks: {}", escaped(error))],
        Ok(_) if picture.has_more => {
            vec![format!("only the first {LOCKS} locks are read; --prefix reads others")]
        }
        Ok(locks) if locks.is_empty() => vec!["no lock is held".to_owned()],
        Ok(_) => Vec::new(),
    }
}

/// The first waiters of a lock.
fn waiters(lock: &LockView) -> String {
    if lock.queue.is_empty() {
        return format!("{}: no session waits", escaped(&lock.key));
    }
    let names = lock.queue.iter().take(WAITERS).map(|waiter| name(&waiter.owner)).collect::<Vec<_>>().join(", ");
    let others = lock.queue.len().saturating_sub(WAITERS);
    let others = if others > 0 { format!(", and {others} more") } else { String::new() };
    escaped(&format!("{}: waiting: {names}{others}", lock.key)).into_owned()
}

fn last_line(view: &View, shown: usize) -> String {
    if view.is_typing {
        return format!("/{}_  (Enter: keep, Escape: end the filter)", escaped(&view.filter));
    }
    let keys = "q quit  / filter  arrows choose";
    if view.filter.is_empty() {
        keys.to_owned()
    } else {
        format!("{keys}  filter: {} ({shown})", escaped(&view.filter))
    }
}

#[cfg(test)]
mod tests;
