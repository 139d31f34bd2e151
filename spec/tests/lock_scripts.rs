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
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Payload, Stamp, StateMachine};
use support::locks::Watch;
use support::machine::{Applied, Scripted};

#[test]
fn lock_scripts() {
    support::run::scripts("lock", TableScript::default);
}

/// Runs a script over one table, without Raft.
#[derive(Default)]
struct TableScript {
    table: LockTable,
    watch: Watch,
    now: Stamp,
}

impl TableScript {
    fn apply(&mut self, payload: &Payload<palisade_spec::lock::Command>) -> Result<String, Box<dyn Error>> {
        let before = self.table.clone();
        let outcome = self.table.apply_payload(self.now, payload);
        let step = Applied { before: &before, at: self.now, payload, outcome: &outcome, after: &self.table };
        LockTable::watch(&mut self.watch, &step).map_err(|violation| violation.to_string())?;
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
                (self.table, self.watch) = (LockTable::sweeping(most), Watch::default());
                Ok(String::new())
            }
            "noop" => self.apply(&Payload::Noop),
            _ => self.apply(&LockTable::parse_payload(&command.to_string())?),
        }
    }
}
