//! SQL of the clients' documents, on SQLite, which understands this much of PostgreSQL's language.

use std::process::Command;

use super::{Wrapper, succeeds, wrapped};
use crate::clients::{python, unless_missing};

/// A resource that keeps the greatest token takes a token that it has seen, and refuses an earlier one.
const FENCES: Wrapper = Wrapper {
    begins: "INSERT INTO fences",
    before: r#"
import sqlite3
database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE fences (name TEXT PRIMARY KEY, token INTEGER NOT NULL)")
statement = """"#,
    after: r#""""
changed = [database.execute(statement, (token,)).rowcount for token in (17, 16, 17, 18, 17)]
assert changed == [1, 0, 1, 1, 0], changed
assert database.execute("SELECT * FROM fences").fetchall() == [("report", 18)]
update = "UPDATE fences SET token = $1 WHERE name = 'report' AND token <= $1"
changed = [database.execute(update, (token,)).rowcount for token in (17, 18, 19)]
assert changed == [0, 1, 1], changed
"#,
};

/// Rows that are there already are below every token.
const COLUMN: Wrapper = Wrapper {
    begins: "ALTER TABLE report",
    before: r#"
import sqlite3
database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE report (id INTEGER PRIMARY KEY, body TEXT)")
database.execute("INSERT INTO report VALUES (7, 'old')")
statement = """"#,
    after: r#""""
database.execute(statement)
assert database.execute("UPDATE report SET fence = 1 WHERE id = 7 AND fence <= 1").rowcount == 1
"#,
};

#[test]
fn sql_statements_run_as_printed() {
    unless_missing(python(), |python| {
        for (block, program) in wrapped("sql", &[FENCES, COLUMN]) {
            succeeds(&block, Command::new(&python).arg("-c").arg(program));
        }
    });
}
