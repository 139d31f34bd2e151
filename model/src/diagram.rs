//! Sequence diagrams, as SVG text.
//!
//! A [`Diagram`] has a lifeline for each participant and a row for each moment, from top to bottom.
//! A message is an arrow from its sending to its arrival: level if both are in one row, slanted if
//! other events happened in between. Notes on a lifeline show a participant's state or event.
//!
//! ```
//! use palisade_model::diagram::{Diagram, Fate, Tone};
//!
//! let mut diagram = Diagram::new(["client", "server"]);
//! let sent = diagram.row("1");
//! diagram.note((0, sent), "wants the lock", Tone::Plain);
//! let arrived = diagram.row("2");
//! diagram.arrow((0, sent), (1, arrived), "acquire", Fate::Arrives);
//! diagram.note((1, arrived), "token 1", Tone::Good);
//! assert!(diagram.svg().starts_with("<svg"));
//! ```

use std::fmt::Write;

/// A sequence diagram.
#[derive(Clone, Debug)]
pub struct Diagram {
    lifelines: Vec<String>,
    rows: Vec<String>,
    arrows: Vec<Arrow>,
    notes: Vec<Note>,
    lines: Vec<Line>,
}

/// A lifeline and a row, each counted from 0.
pub type Cell = (usize, usize);

/// The fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Arrives.
    Arrives,
    /// Lost: never arrives at its target.
    Lost,
    /// Still in flight at the end of the diagram.
    OnItsWay,
    /// Its arrival would change nothing, so the diagram leaves it open.
    Spent,
}

/// The meaning of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// An event.
    Plain,
    /// Progress: a leader is elected, an entry is committed, a lock is granted.
    Good,
    /// A failure: a crash, a violation.
    Bad,
}

#[derive(Clone, Debug)]
struct Arrow {
    from: Cell,
    to: Cell,
    label: String,
    detail: String,
    fate: Fate,
}

#[derive(Clone, Debug)]
struct Note {
    at: Cell,
    text: String,
    tone: Tone,
}

/// A line across all lifelines.
#[derive(Clone, Debug)]
struct Line {
    row: usize,
    text: String,
    tone: Tone,
}

const MARGIN: usize = 40;
const HEAD: usize = 34;
const ROW: usize = 30;
const NOTE: usize = 19;
/// The mean width of a letter, in pixels.
const LETTER: usize = 6;
/// The bounds of the space between two lifelines, in pixels.
const GAP: std::ops::RangeInclusive<usize> = 110..=230;
const FONT: &str = "font-family=\"system-ui, sans-serif\" font-size=\"11\"";
const INK: &str = "#1d2b3a";
const FAINT: &str = "#9aa5b1";
const BAD: &str = "#b3261e";

impl Diagram {
    /// A diagram with these lifelines, from left to right.
    pub fn new(lifelines: impl IntoIterator<Item = impl Into<String>>) -> Diagram {
        let lifelines = lifelines.into_iter().map(Into::into).collect();
        Diagram { lifelines, rows: Vec::new(), arrows: Vec::new(), notes: Vec::new(), lines: Vec::new() }
    }

    /// Adds a row. Its label, such as a number, stands in the margin. Returns the row's number.
    pub fn row(&mut self, label: impl Into<String>) -> usize {
        self.rows.push(label.into());
        self.rows.len() - 1
    }

    /// Adds a message. If it does not arrive, `to` is its intended target.
    pub fn arrow(&mut self, from: Cell, to: Cell, label: impl Into<String>, fate: Fate) {
        self.detailed_arrow(from, to, label, "", fate);
    }

    /// Adds a message whose detail appears when the pointer rests on it.
    pub fn detailed_arrow(
        &mut self,
        from: Cell,
        to: Cell,
        label: impl Into<String>,
        detail: impl Into<String>,
        fate: Fate,
    ) {
        assert!(from.1 <= to.1, "messages do not go back in time");
        self.arrows.push(Arrow { from, to, label: label.into(), detail: detail.into(), fate });
    }

    /// Adds a note to a lifeline. Notes in one cell are stacked.
    pub fn note(&mut self, at: Cell, text: impl Into<String>, tone: Tone) {
        self.notes.push(Note { at, text: text.into(), tone });
    }

    /// Adds a line across the diagram, for an event that concerns all participants.
    pub fn line(&mut self, row: usize, text: impl Into<String>, tone: Tone) {
        self.lines.push(Line { row, text: text.into(), tone });
    }

    /// The diagram as the text of an SVG image.
    ///
    /// # Panics
    /// If an element refers to a lifeline or a row that does not exist.
    pub fn svg(&self) -> String {
        let gap = self.gap();
        let tops = self.tops();
        let last = MARGIN + gap * self.lifelines.len().saturating_sub(1) + gap / 2;
        let (width, height) = (last + gap / 2 + 10, tops.last().copied().unwrap_or(HEAD) + 12);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" {FONT} fill=\"{INK}\">\
             <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#fbfcfd\"/>"
        );
        let page = Page { gap, tops: &tops, width, notes: &self.notes };
        page.lifelines(&mut svg, &self.lifelines, height);
        page.margin(&mut svg, &self.rows);
        self.lines.iter().for_each(|line| page.line(&mut svg, line));
        self.arrows.iter().for_each(|arrow| page.arrow(&mut svg, arrow));
        for (index, note) in self.notes.iter().enumerate() {
            let above = self.notes[..index].iter().filter(|other| other.at == note.at).count();
            page.note(&mut svg, note, above);
        }
        self.arrows.iter().for_each(|arrow| page.label(&mut svg, arrow));
        svg.push_str("</svg>");
        svg
    }

    /// The distance of lifelines, so that the longest text fits in between, within [`GAP`].
    fn gap(&self) -> usize {
        let texts = self.arrows.iter().map(|arrow| &arrow.label).chain(self.notes.iter().map(|note| &note.text));
        let longest = texts.chain(&self.lifelines).map(|text| width(text)).max().unwrap_or(0);
        (longest + 26).clamp(*GAP.start(), *GAP.end())
    }

    /// The top of each row, and the bottom of the last one.
    fn tops(&self) -> Vec<usize> {
        let mut tops = vec![HEAD + ROW / 2];
        for row in 0..self.rows.len() {
            let stack = |lifeline| self.notes.iter().filter(|note: &&Note| note.at == (lifeline, row)).count();
            let most = (0..self.lifelines.len()).map(stack).max().unwrap_or(0);
            tops.push(tops[row] + ROW + NOTE * most);
        }
        tops
    }
}

/// The coordinates of the drawing.
struct Page<'a> {
    gap: usize,
    tops: &'a [usize],
    width: usize,
    notes: &'a [Note],
}

impl Page<'_> {
    fn x(&self, lifeline: usize) -> usize {
        MARGIN + self.gap / 2 + self.gap * lifeline
    }

    fn lifelines(&self, svg: &mut String, names: &[String], height: usize) {
        for (lifeline, name) in names.iter().enumerate() {
            let (x, name) = (self.x(lifeline), escape(name));
            add(svg, format_args!("<path d=\"M{x} {HEAD}V{}\" stroke=\"#c9d1d9\"/>", height - 6));
            add(svg, format_args!("<text x=\"{x}\" y=\"22\" text-anchor=\"middle\" font-weight=\"600\">{name}</text>"));
        }
    }

    fn margin(&self, svg: &mut String, labels: &[String]) {
        for (label, top) in labels.iter().zip(self.tops) {
            let (y, label) = (top + 4, escape(label));
            add(svg, format_args!("<text x=\"10\" y=\"{y}\" fill=\"{FAINT}\">{label}</text>"));
        }
    }

    fn line(&self, svg: &mut String, line: &Line) {
        let (y, colour, text) = (self.tops[line.row], colour(line.tone), escape(&line.text));
        let (from, to, middle) = (MARGIN, self.width - 10, MARGIN + (self.width - MARGIN) / 2);
        add(svg, format_args!("<path d=\"M{from} {y}H{to}\" stroke=\"{colour}\" stroke-dasharray=\"2 4\"/>"));
        add(
            svg,
            format_args!(
                "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"{colour}\" {HALO}>{text}</text>",
                y + 4
            ),
        );
    }

    /// Both ends of an arrow. A message starts below the notes at its sender.
    fn ends(&self, arrow: &Arrow) -> [(usize, usize); 2] {
        let (from, to) = (arrow.from, arrow.to);
        let notes = self.notes.iter().filter(|note| note.at == from).count();
        let level = from.1 == to.1 && arrow.fate == Fate::Arrives;
        let leaves = self.tops[from.1] + if level { 0 } else { NOTE * notes };
        let arrives = self.tops[to.1];
        let [begin, end] = [(self.x(from.0), leaves), (self.x(to.0), arrives.max(leaves))];
        if arrow.fate == Fate::Arrives {
            return [begin, end];
        }
        // A lost message ends early, in the gap beside its sender.
        let reach = self.gap * 2 / 5;
        let x = if end.0 > begin.0 { begin.0 + reach } else { begin.0.saturating_sub(reach) };
        [begin, (x, begin.1 + 8)]
    }

    fn arrow(&self, svg: &mut String, arrow: &Arrow) {
        let [(x, y), (to_x, to_y)] = self.ends(arrow);
        let (colour, dashes) = match arrow.fate {
            Fate::Arrives => (INK, ""),
            Fate::Lost => (BAD, ""),
            Fate::OnItsWay | Fate::Spent => (FAINT, " stroke-dasharray=\"4 3\""),
        };
        add(svg, format_args!("<path d=\"M{x} {y}L{to_x} {to_y}\" stroke=\"{colour}\"{dashes}/>"));
        if arrow.fate == Fate::Lost {
            add(
                svg,
                format_args!(
                    "<path d=\"M{} {}l8 8m0 -8l-8 8\" stroke=\"{BAD}\" stroke-width=\"1.6\"/>",
                    to_x - 4,
                    to_y - 4
                ),
            );
        } else {
            let angle = angle((x, y), (to_x, to_y));
            add(
                svg,
                format_args!(
                    "<path d=\"M0 0L-8 -3.4V3.4Z\" fill=\"{colour}\" transform=\"translate({to_x} {to_y}) rotate({angle:.0})\"/>"
                ),
            );
        }
    }

    /// The label stands in the gap beside the arrow's end, where no other arrow that ends in this
    /// row can be.
    fn label(&self, svg: &mut String, arrow: &Arrow) {
        let [(x, y), (to_x, to_y)] = self.ends(arrow);
        let half = self.gap / 2;
        let beside = match arrow.fate {
            Fate::Arrives if to_x > x => to_x - half,
            Fate::Arrives if to_x < x => to_x + half,
            _ => to_x,
        };
        let (span, done) = (x.abs_diff(to_x).max(1), x.abs_diff(beside));
        let at = if arrow.fate == Fate::Arrives { y + (to_y - y) * done / span - 4 } else { to_y + 14 };
        let colour = match arrow.fate {
            Fate::Arrives => INK,
            Fate::Lost => BAD,
            Fate::OnItsWay | Fate::Spent => "#6b7785",
        };
        let title =
            if arrow.detail.is_empty() { String::new() } else { format!("<title>{}</title>", escape(&arrow.detail)) };
        let label = escape(&arrow.label);
        add(
            svg,
            format_args!(
                "<text x=\"{beside}\" y=\"{at}\" text-anchor=\"middle\" fill=\"{colour}\" {HALO}>{label}{title}</text>"
            ),
        );
    }

    fn note(&self, svg: &mut String, note: &Note, above: usize) {
        let (wide, text) = (width(&note.text) + 12, escape(&note.text));
        let (middle, top) = (self.x(note.at.0), self.tops[note.at.1] + 5 + NOTE * above);
        let (x, y) = (middle.saturating_sub(wide / 2), top + 12);
        let (fill, colour) = match note.tone {
            Tone::Plain => ("#e8edf2", INK),
            Tone::Good => ("#d7f0dd", "#14532d"),
            Tone::Bad => ("#fbdedb", BAD),
        };
        add(
            svg,
            format_args!(
                "<rect x=\"{x}\" y=\"{top}\" width=\"{wide}\" height=\"16\" rx=\"3\" fill=\"{fill}\"/>\
                 <text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\" fill=\"{colour}\">{text}</text>"
            ),
        );
    }
}

/// Keeps a text readable above the lines that cross it.
const HALO: &str = "stroke=\"#fbfcfd\" stroke-width=\"4\" paint-order=\"stroke\"";

fn colour(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "#6b7785",
        Tone::Good => "#14532d",
        Tone::Bad => BAD,
    }
}

fn width(text: &str) -> usize {
    text.chars().count() * LETTER
}

/// The angle of a line, in degrees.
#[expect(clippy::cast_precision_loss, reason = "places on a page")]
fn angle(from: (usize, usize), to: (usize, usize)) -> f64 {
    (to.1 as f64 - from.1 as f64).atan2(to.0 as f64 - from.0 as f64).to_degrees()
}

fn add(svg: &mut String, element: std::fmt::Arguments<'_>) {
    svg.write_fmt(element).expect("a String takes everything");
}

/// A text, escaped for SVG.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of the attribute that begins with `before`.
    fn numbers(svg: &str, before: &str) -> Vec<String> {
        svg.split(before).skip(1).map(|rest| rest.split('"').next().unwrap().to_string()).collect()
    }

    #[test]
    fn texts_are_escaped_everywhere() {
        let mut diagram = Diagram::new(["<a>", "b"]);
        let row = diagram.row("1 & 2");
        diagram.note((0, row), "\"n\" < m", Tone::Plain);
        diagram.line(row, "x > y", Tone::Bad);
        diagram.detailed_arrow((0, row), (1, row), "p&q", "it's", Fate::Arrives);
        let svg = diagram.svg();
        for text in ["&lt;a&gt;", "1 &amp; 2", "&quot;n&quot; &lt; m", "x &gt; y", "p&amp;q", "it&#39;s"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        let outside_of_tags = svg.split('>').filter_map(|part| part.split('<').next()).collect::<String>();
        assert!(!outside_of_tags.contains('"'));
    }

    #[test]
    fn arrow_is_level_only_if_the_message_arrives_at_once() {
        let mut diagram = Diagram::new(["a", "b"]);
        let rows = [diagram.row(""), diagram.row("")];
        diagram.arrow((0, rows[0]), (1, rows[0]), "now", Fate::Arrives);
        diagram.arrow((0, rows[0]), (1, rows[1]), "later", Fate::Arrives);
        let svg = diagram.svg();
        let turned: Vec<String> = numbers(&svg, "rotate(").iter().map(|text| text.replace(')', "")).collect();
        assert_eq!(turned[0], "0");
        assert!(turned[1].parse::<f64>().unwrap() > 5.0, "{turned:?}");
    }

    #[test]
    fn only_lost_message_has_a_cross_and_no_head() {
        let count = |fate| {
            let mut diagram = Diagram::new(["a", "b"]);
            let row = diagram.row("");
            diagram.arrow((1, row), (0, row), "m", fate);
            let svg = diagram.svg();
            (svg.matches("l8 8m0 -8l-8 8").count(), svg.matches("rotate(").count())
        };
        assert_eq!(count(Fate::Lost), (1, 0));
        assert_eq!(count(Fate::Arrives), (0, 1));
        assert_eq!(count(Fate::OnItsWay), (0, 1));
    }

    #[test]
    fn notes_at_one_cell_are_stacked_and_enlarge_the_row() {
        let height = |notes: usize| {
            let mut diagram = Diagram::new(["a"]);
            let row = diagram.row("");
            (0..notes).for_each(|_| diagram.note((0, row), "n", Tone::Good));
            let svg = diagram.svg();
            let tops = numbers(&svg, "\" y=\"").into_iter().collect::<std::collections::BTreeSet<_>>().len();
            (numbers(&svg, " height=\"")[0].parse::<usize>().unwrap(), tops)
        };
        assert!(height(3).0 > height(1).0);
        assert_eq!(height(3).1 - height(1).1, 4, "two more notes, each with a box and a text");
    }

    #[test]
    #[should_panic(expected = "back in time")]
    fn messages_do_not_arrive_before_they_are_sent() {
        let mut diagram = Diagram::new(["a", "b"]);
        let (first, second) = (diagram.row(""), diagram.row(""));
        diagram.arrow((0, second), (1, first), "m", Fate::Arrives);
    }
}
