//! Bugs that a test of the workspace must notice: what the stories of docs/bug-ledger.md tell of, each by its story's command
//! (`conformance/tests/ledger.rs`).

use serde::Deserialize;

use super::mutants::Mutant;
use super::{Error, Verdict};

/// How a bug is found.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finder {
    /// What `cargo test` is told: the package, the file, and at last the name of one test.
    test: String,
    /// What the test says when it fails, in part.
    says: String,
}

impl super::Finder for Finder {
    fn part(&self) -> &'static str {
        "test"
    }

    fn hunt(&self, mutant: &Mutant<'_>) -> Result<Verdict, Error> {
        let said = |mutant: &Mutant<'_>| {
            let output = mutant.test(&self.test).output()?;
            let [told, trouble] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            match passes(&told, &self.test) {
                Some(passes) => Ok((passes, told.into_owned())),
                None => Err(Error::Hunt(format!("`cargo test {}` broke off:\n{told}{trouble}", self.test))),
            }
        };
        let (passes, told) = said(mutant)?;
        if passes {
            return Ok(Verdict::Survived(format!("`cargo test {}`", self.test)));
        }
        let how = format!("its test: {}", complaint(&told));
        let (passes, told) = said(&mutant.sound())?;
        Ok(match passes {
            true if how.contains(&self.says) => Verdict::Caught(how),
            true => Verdict::Otherwise(how),
            false => Verdict::Otherwise(format!("{how}, and without the bug: {}", complaint(&told))),
        })
    }
}

/// Whether the one test passed; `None` if it was not run to its end.
fn passes(told: &str, test: &str) -> Option<bool> {
    let name = test.split_whitespace().last()?;
    told.lines().find_map(|line| {
        let (path, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let is_it = path == name || path.ends_with(&format!("::{name}"));
        is_it.then_some(result == "ok")
    })
}

/// What a test that failed says, in a line.
fn complaint(told: &str) -> &str {
    let mut lines = told.lines().skip_while(|line| !line.contains("panicked at"));
    lines.nth(1).unwrap_or("it failed and did not say why").trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_says_is_understood() {
        let told = "running 1 test\ntest some::story ... FAILED\n\nfailures:\n\n---- some::story stdout ----\n\n\
                    thread 'some::story' (7) panicked at a.rs:1:2:\nthe lock is gone\nstack backtrace:\n";
        assert_eq!(passes(told, "-p x --test y some::story"), Some(false));
        assert_eq!(complaint(told), "the lock is gone");
        assert_eq!(passes("test some::story ... ok\n", "-p x --test y some::story"), Some(true));
        assert_eq!(
            passes("test some::story ... ok\n", "-p x --test y story"),
            Some(true),
            "the module need not be told"
        );
        assert_eq!(passes("test another_story ... ok\n", "-p x --test y story"), None);
        assert_eq!(passes("running 0 tests\n", "-p x --test y some::story"), None, "no test is no test that passed");
    }
}
