//! Figures as CSV and JSON, plots as SVG, pages as Markdown.
//!
//! An experiment measures ([`Run`]), and renders its page from the results alone, so that a page can
//! be made again from the committed JSON: `palisade-lab run NAME --render`. Results of one backend
//! replace the earlier results of the same backend, and leave the others.
//!
//! | module | contents |
//! |---|---|
//! | [`setup`] | what a run ran on: commit, machine, servers |
//! | [`table`] | tables for pages and files |
//! | `records` | the form of results.json |
//! | [`plot`] | plots that read on light and on dark pages |

pub mod plot;
mod records;
pub mod setup;
pub mod table;

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::setup::Setup;
use self::table::Table;

/// The results of an experiment, as they are kept in docs/lab/NAME/results.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results<T> {
    /// One run per backend, in the order of their names.
    pub runs: Vec<Run<T>>,
}

/// A run of an experiment on one backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run<T> {
    /// The backend.
    pub backend: String,
    /// What it ran on.
    pub setup: Setup,
    /// What was measured.
    pub figures: T,
    /// What was predicted, and what was seen.
    pub predictions: Vec<Prediction>,
}

/// A prediction and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// What was predicted.
    pub predicted: String,
    /// What was seen.
    pub seen: String,
    /// Whether they agree.
    pub holds: bool,
}

impl Prediction {
    /// A prediction about a number of cases out of all.
    #[must_use]
    pub fn all(predicted: impl Into<String>, of: usize, seen: usize) -> Prediction {
        // Without a case, the prediction was not tested, and does not hold.
        Prediction { predicted: predicted.into(), seen: format!("{seen} of {of}"), holds: of > 0 && seen == of }
    }

    /// A prediction that something is seen at least once.
    #[must_use]
    pub fn some(predicted: impl Into<String>, of: usize, seen: usize) -> Prediction {
        Prediction { predicted: predicted.into(), seen: format!("{seen} of {of}"), holds: seen > 0 }
    }

    /// A prediction that something is never seen.
    #[must_use]
    pub fn none(predicted: impl Into<String>, of: usize, seen: usize) -> Prediction {
        Prediction { predicted: predicted.into(), seen: format!("{seen} of {of}"), holds: of > 0 && seen == 0 }
    }
}

/// A rendered experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The text of NAME.md.
    pub markdown: String,
    /// The files in NAME/, by name.
    pub files: Vec<(String, String)>,
}

impl<T: Serialize + DeserializeOwned> Results<T> {
    /// Reads the results in a directory of pages; none if there are none yet.
    ///
    /// # Errors
    /// The file cannot be read, or has another form.
    pub fn load(out: &Path, name: &str) -> Result<Results<T>, String> {
        let path = out.join(name).join("results.json");
        if !path.exists() {
            return Ok(Results { runs: Vec::new() });
        }
        let text =
            std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| {
            format!("{} has another form ({error}); remove it and run the experiment again", path.display())
        })
    }

    /// Adds a run, in place of the backend's earlier one.
    pub fn put(&mut self, run: Run<T>) {
        self.runs.retain(|earlier| earlier.backend != run.backend);
        self.runs.push(run);
        self.runs.sort_by(|one, other| one.backend.cmp(&other.backend));
    }

    /// Writes the results, and the page rendered from them.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn save(&self, out: &Path, name: &str, page: &Page) -> Result<(), String> {
        let json = records::encode(self)?;
        let directory = out.join(name);
        let write = |path: &Path, text: &str| {
            std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        std::fs::create_dir_all(&directory)
            .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
        write(&directory.join("results.json"), &json)?;
        for (file, text) in &page.files {
            write(&directory.join(file), text)?;
        }
        write(&out.join(format!("{name}.md")), &format!("{}\n", page.markdown.trim_end()))
    }
}

impl<T> Results<T> {
    /// What was run on what, as a table.
    #[must_use]
    pub fn setups(&self) -> String {
        let mut table = Table::of("backend | servers | commit | machine | disk of the servers");
        for run in &self.runs {
            let setup = &run.setup;
            let dirty = if setup.dirty { ", dirty" } else { "" };
            let outdated = if setup.outdated { ", with a program that was built before it" } else { "" };
            let commit = format!("`{}`{dirty}{outdated}", setup.commit);
            table.row([run.backend.clone(), setup.servers.clone(), commit, setup.machine.clone(), setup.disk.clone()]);
        }
        let at_leader = self.runs.iter().filter(|run| run.setup.leader_only).map(|run| run.backend.as_str());
        match at_leader.collect::<Vec<_>>()[..] {
            [] => table.markdown(),
            ref names => format!(
                "{}\nThe clients of {} connect to the leader alone; those of Palisade find it by themselves.\n",
                table.markdown(),
                names.join(" and ")
            ),
        }
    }

    /// The commands that were run.
    #[must_use]
    pub fn commands(&self) -> String {
        let mut commands: Vec<_> = self.runs.iter().map(|run| run.setup.command.as_str()).collect();
        commands.dedup();
        format!("```sh\n{}\n```\n", commands.join("\n"))
    }

    /// All predictions with their outcomes, as a table.
    #[must_use]
    pub fn predictions(&self) -> String {
        let mut table = Table::of("backend | predicted | seen | ");
        for run in &self.runs {
            for Prediction { predicted, seen, holds } in &run.predictions {
                let holds = if *holds { "as predicted" } else { "**not as predicted**" };
                table.row([run.backend.clone(), predicted.clone(), seen.clone(), holds.to_owned()]);
            }
        }
        table.markdown()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_observed_confirms_no_prediction() {
        assert!(
            !Prediction::all("", 0, 0).holds && !Prediction::none("", 0, 0).holds && !Prediction::some("", 0, 0).holds
        );
        assert!(
            Prediction::all("", 2, 2).holds && Prediction::none("", 2, 0).holds && Prediction::some("", 2, 1).holds
        );
        assert!(
            !Prediction::all("", 2, 1).holds && !Prediction::none("", 2, 1).holds && !Prediction::some("", 2, 0).holds
        );
    }
}
