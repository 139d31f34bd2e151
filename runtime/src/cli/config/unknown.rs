//! Variables of the environment that look like an option of `palisade serve` and are none. A node
//! ignores them, so a misspelt name would leave an option at its default without a word.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use clap::CommandFactory;

use super::super::{Arguments, claim::enclosing, proclaim};
use super::{FILE_OPTION, options, serve, similar, variable};

/// The variable in which `palisade lock` and `palisade acquire` give a command the name of its lock.
const KEY: &str = "PALISADE_KEY";

/// A sentence about each variable that begins with `PALISADE_` and that no command reads or sets. An
/// empty variable counts as none.
pub(in super::super) fn unknown_variables(environment: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    let (serve, known) = (serve(), known_variables());
    let named = environment.filter(|(_, value)| !value.is_empty());
    let named = named.map(|(name, value)| (name.to_string_lossy().into_owned(), value));
    let unknown = named.filter(|(name, value)| !known.contains(name) && !is_of_a_service(name, value));
    let sentences = unknown.filter_map(|(name, _)| {
        let option = name.strip_prefix("PALISADE_")?.to_ascii_lowercase().replace('_', "-");
        // A name in lower case is that of an option, and of no variable.
        let exact = options(&serve).map(|(known, _)| known.to_owned()).find(|known| *known == option);
        let advice = match exact.or_else(|| similar(&serve, &option)) {
            Some(meant) => format!("is it {}? Correct it or unset it", variable(&meant)),
            None => "correct it or unset it".to_owned(),
        };
        Some(format!("the variable {name} is ignored: no option of `palisade serve` has this name; {advice}"))
    });
    let mut sentences: Vec<String> = sentences.collect();
    sentences.sort_unstable();
    sentences
}

/// The variables of the options of `palisade serve`, those that other commands read, and those that
/// `palisade lock` gives to its command, which may start a node.
fn known_variables() -> BTreeSet<String> {
    let serve = serve();
    let of_serve = options(&serve).map(|(option, _)| option).chain([FILE_OPTION]).map(variable);
    let mut known: BTreeSet<String> =
        of_serve.chain([KEY, enclosing::VARIABLE, proclaim::VARIABLE].map(str::to_owned)).collect();
    add_variables_of(&Arguments::command(), &mut known);
    known
}

/// Adds the variables that a command and its subcommands read.
fn add_variables_of(command: &clap::Command, known: &mut BTreeSet<String>) {
    let read = command.get_arguments().filter_map(|arg| arg.get_env());
    known.extend(read.map(|name| name.to_string_lossy().into_owned()));
    command.get_subcommands().for_each(|subcommand| add_variables_of(subcommand, known));
}

/// Whether Kubernetes makes such a variable in a pod, for a Service whose name begins with `palisade`:
/// `…_SERVICE_HOST`, `…_SERVICE_PORT`, `…_SERVICE_PORT_CLIENTS`, `…_PORT=tcp://…`,
/// `…_PORT_7400_TCP` and so on.
fn is_of_a_service(name: &str, value: &OsStr) -> bool {
    let is_number = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && value.to_string_lossy().contains("://"))
        || name.split("_PORT_").skip(1).any(is_number)
}
