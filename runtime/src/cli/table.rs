//! Tables for people: columns as wide as their content, and colour on a terminal only.
//!
//! A table that is piped has the same words without control sequences, with spaces and never tabs
//! between the columns, so that `awk` and `cut` read it. `NO_COLOR` and `TERM=dumb` mean what they
//! mean elsewhere. Programs should read the JSON of `--json` instead.
//!
//! Cells hold keys, owners and what nodes answered: control characters in them are escaped.

use std::io::IsTerminal;

use palisade_client::escaped;

use super::print_line;

/// Spaces between two columns.
const GAP: &str = "  ";

/// To which side of its column a text moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Texts.
    Left,
    /// Numbers.
    Right,
}

/// What a cell says about the health of what it shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    /// Nothing.
    #[default]
    Plain,
    /// It is as it should be.
    Good,
    /// It deserves attention.
    Warn,
    /// It does not work.
    Bad,
}

impl Tone {
    /// The control sequence (SGR) that begins the tone.
    fn code(self) -> &'static str {
        match self {
            Tone::Plain => "",
            Tone::Good => "\x1b[32m",
            Tone::Warn => "\x1b[33m",
            Tone::Bad => "\x1b[1;31m",
        }
    }
}

/// Begins a heading.
const BOLD: &str = "\x1b[1m";
/// Ends any of the above.
const PLAIN: &str = "\x1b[0m";

/// A text between two control sequences.
pub(super) fn painted(code: &str, text: &str) -> String {
    if code.is_empty() || text.is_empty() { text.to_owned() } else { format!("{code}{text}{PLAIN}") }
}

/// Whether standard output shows colours.
pub(super) fn has_colour() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// One cell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A text in a tone.
    pub(super) fn new(text: impl ToString, tone: Tone) -> Cell {
        Cell { text: escaped(&text.to_string()).into_owned(), tone }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::new(text, Tone::Plain)
    }
}

/// A table whose rows may come in parts: each part is printed below the ones before it.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<Cell>>,
    /// The width of each column so far: it never shrinks from one part to the next.
    widths: Vec<usize>,
    has_heading: bool,
}

impl Table {
    /// A table with these columns.
    pub(super) fn new(columns: &[(&'static str, Side)]) -> Table {
        let widths = columns.iter().map(|(title, _)| title.len()).collect();
        Table { columns: columns.to_vec(), rows: Vec::new(), widths, has_heading: false }
    }

    /// Adds a row. The last cell of a row with fewer cells than columns reaches to the end of the line.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints the rows that were added since the last call; before the first of them, the heading.
    pub(super) fn print(&mut self) {
        self.lines(has_colour()).iter().for_each(|line| print_line(line));
    }

    /// The lines of [`print`](Table::print).
    pub(super) fn lines(&mut self, colour: bool) -> Vec<String> {
        let rows = std::mem::take(&mut self.rows);
        for row in &rows {
            let is_short = row.len() < self.columns.len();
            let counted = if is_short { row.len().saturating_sub(1) } else { row.len() };
            for (width, cell) in self.widths.iter_mut().zip(&row[..counted]) {
                *width = (*width).max(cell.width());
            }
        }
        let heading: Vec<Cell> = self.columns.iter().map(|(title, _)| (*title).into()).collect();
        let heading = (!std::mem::replace(&mut self.has_heading, true)).then(|| self.line(&heading, false));
        let heading = heading.map(|heading| painted(if colour { BOLD } else { "" }, &heading));
        heading.into_iter().chain(rows.iter().map(|row| self.line(row, colour))).collect()
    }

    fn line(&self, cells: &[Cell], colour: bool) -> String {
        let mut line = String::new();
        for (at, (cell, (width, (_, side)))) in cells.iter().zip(self.widths.iter().zip(&self.columns)).enumerate() {
            let space = " ".repeat(width.saturating_sub(cell.width()));
            let text = painted(if colour { cell.tone.code() } else { "" }, &cell.text);
            line.push_str(if at == 0 { "" } else { GAP });
            match side {
                // Nothing follows the last cell.
                Side::Left if at + 1 == cells.len() => line.push_str(&text),
                Side::Left => line.extend([text, space]),
                Side::Right => line.extend([space, text]),
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[("KEY", Side::Left), ("N", Side::Right), ("OWNER", Side::Left)]);
        table.row(["a".into(), 1.into(), "x y".into()]);
        table.row(["long-key\u{1b}[2J".into(), 12_345.into(), Cell::new("z", Tone::Bad)]);
        table.row(["b".into(), Cell::new("unreachable: for a long reason", Tone::Bad)]);
        table
    }

    /// Goal: columns are aligned whatever their content, control characters are escaped, a short row's
    /// reason widens no column, and a pipe gets neither tabs nor control sequences.
    #[test]
    fn piped_table_is_aligned_plain_text() {
        assert_eq!(
            table().lines(false),
            [
                "KEY                    N  OWNER",
                "a                      1  x y",
                "long-key\\u{1b}[2J  12345  z",
                "b                  unreachable: for a long reason",
            ]
        );
    }

    /// Goal: on a terminal the heading is bold and states have colours, at the same columns.
    #[test]
    fn colours_do_not_move_columns() {
        let coloured = table().lines(true);
        assert!(coloured[0].starts_with(BOLD) && coloured[2].ends_with("\x1b[1;31mz\x1b[0m"), "{coloured:?}");
        let stripped = coloured.iter().map(|line| {
            let codes = [BOLD, PLAIN, Tone::Bad.code()];
            codes.iter().fold(line.clone(), |line, code| line.replace(code, ""))
        });
        assert_eq!(stripped.collect::<Vec<_>>(), table().lines(false));
    }

    /// Goal: a table that comes in parts has one heading, and its columns do not jump back.
    #[test]
    fn later_parts_keep_the_widths() {
        let mut table = table();
        table.lines(false);
        table.row(["c".into(), 2.into(), "w".into()]);
        assert_eq!(table.lines(false), ["c                      2  w"]);
    }
}
