//! The smallest state machine that shows order and time: a list of words, some of which expire.

use palisade_spec::checker::{Checked, Execution};
use palisade_spec::invariants::Check;
use palisade_spec::raft::{Stamp, StateMachine};

use super::machine::Scripted;

/// Words in the order in which they were written, each with the last moment at which it is
/// readable, if it expires.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Slate {
    words: Vec<(String, Option<Stamp>)>,
}

/// Writes a word; with a time-to-live in milliseconds, the word expires. In scripts: `a`, `a/100`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    word: String,
    ttl: Option<u64>,
}

impl StateMachine for Slate {
    type Command = Write;
    /// The words that expired.
    type Outcome = Vec<String>;

    fn apply(&mut self, at: Stamp, command: &Write) -> Vec<String> {
        self.words.push((command.word.clone(), command.ttl.map(|ttl| at.plus(ttl))));
        Vec::new()
    }

    /// One word expires per entry: as in the lock table, several no-ops may be needed for
    /// everything that is due.
    fn advance(&mut self, at: Stamp) -> Vec<String> {
        let due = self.words.iter().enumerate().filter_map(|(index, &(_, last))| Some((last?, index)));
        let first = due.min().filter(|(last, _)| *last < at);
        first.map(|(_, index)| self.words.remove(index).0).into_iter().collect()
    }

    fn next_deadline(&self) -> Option<Stamp> {
        self.words.iter().filter_map(|&(_, last)| last).min()
    }
}

/// A slate has no invariants of its own.
impl Checked for Slate {
    type Observer = ();

    fn observer(&self) {}

    fn size(&self) -> usize {
        self.words.len()
    }

    fn check_entry(_: &mut (), _: &Execution<'_, Slate>, _: bool) -> Check {
        Ok(())
    }

    fn check_state(&self) -> Check {
        Ok(())
    }
}

impl Scripted for Slate {
    fn parse(text: &str) -> Result<Write, String> {
        let (word, ttl) = match text.split_once('/') {
            Some((word, ttl)) => (word, Some(ttl.parse().map_err(|_| format!("{ttl} is not a time-to-live"))?)),
            None => (text, None),
        };
        Ok(Write { word: word.into(), ttl })
    }

    fn show_command(command: &Write) -> String {
        command.ttl.map_or(command.word.clone(), |ttl| format!("{}/{ttl}", command.word))
    }

    fn show_outcome(faded: &Vec<String>) -> String {
        if faded.is_empty() { String::new() } else { format!("{} faded", faded.join(" ")) }
    }

    fn show(&self) -> String {
        let words: Vec<String> =
            self.words.iter().map(|(word, last)| last.map_or(word.clone(), |last| format!("{word}≤{last}"))).collect();
        format!("{{{}}}", words.join(" "))
    }
}
