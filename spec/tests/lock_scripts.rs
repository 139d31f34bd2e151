//! The lock table's rules, one behaviour a script: `tests/scripts/lock/<area>/<behaviour>`. After
//! every command all the table's invariants are checked.
//!
//! A command's prefix is the stamp of its entry; without a prefix the entry has the stamp of the
//! one before. The commands are those of [`support::locks`]; `noop`, which sweeps; `dump`, which
//! prints the table; and `sweep N`, which restarts with an empty table whose sweeps do at most N
//! units of work.

mod support;

use std::error::Error;

use goldenscript::{Command, Context, Runner};
use palisade_spec::checker::{Checked, Execution};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Payload, Stamp, StateMachine};
use support::machine::Scripted;

#[test]
fn lock_scripts() {
    support::run::scripts("lock", TableScript::default);
}

/// Runs a script over one table, without Raft.
#[derive(Default)]
struct TableScript {
    table: LockTable,
    /// The observer of the entries since the table was empty.
    observer: Option<<LockTable as Checked>::Observer>,
    now: Stamp,
}

impl TableScript {
    fn apply(&mut self, payload: &Payload<palisade_spec::lock::Command>) -> Result<String, Box<dyn Error>> {
        let before = self.table.clone();
        let outcome = self.table.apply_payload(self.now, payload);
        let entry = Execution::new(&before, self.now, payload, &outcome, &self.table);
        let observer = self.observer.get_or_insert_with(|| before.observer());
        LockTable::check_entry(observer, &entry, true).map_err(|violation| violation.to_string())?;
        Ok(LockTable::show_outcome(&outcome))
    }
}

impl Runner for TableScript {
    type Command = Command;

    fn run(&mut self, command: &Command, context: &Context) -> Result<String, Box<dyn Error>> {
        if let Some(prefix) = &context.prefix {
            let stamp = Stamp(prefix.parse()?);
            if stamp < self.now {
                return Err("stamps never decrease".into());
            }
            self.now = stamp;
        }
        match command.name.as_str() {
            "dump" => Ok(self.table.show()),
            "sweep" => {
                let most = command.to_string().trim_start_matches("sweep ").parse()?;
                (self.table, self.observer) = (LockTable::sweeping(most), None);
                Ok(String::new())
            }
            "noop" => self.apply(&Payload::Noop),
            _ => self.apply(&LockTable::parse_payload(&command.to_string())?),
        }
    }
}
