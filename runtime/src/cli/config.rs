//! The options of `palisade serve` from a file and from the environment, and `palisade config check`.
//!
//! The command line's own description (clap) is the only list of options. A key of the file is the
//! option's name without its dashes, and a variable is `PALISADE_` and the name in upper case with
//! underscores. A value that the command line does not give is taken from the environment, then from
//! the file, and is put on the command line: so it is parsed, and compared with the other options,
//! exactly as if an operator had typed it. Before that, each value is parsed alone, so that a
//! refusal names the variable, or the file and the line.
//!
//! A value is left out if clap refuses its option beside one that a higher source gives: `--join`
//! overrules the `peers` of a file. Options of one source that exclude one another are refused.

mod file;
mod print;
mod unknown;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, CommandFactory, Id, Parser, Subcommand};

use super::{Arguments, Command, block_on, print_error};
pub(super) use print::print;
pub(super) use unknown::unknown_variables;

/// Exit code: the file cannot be used (EX_CONFIG).
pub(super) const EXIT_CONFIG: u8 = 78;

/// The option that names the file.
const FILE_OPTION: &str = "config";
/// Options that only the command line has.
const COMMAND_LINE_ONLY: [&str; 4] = [FILE_OPTION, "print-config", "help", "version"];

/// Variables that mean the same for every node, so that `palisade dev` passes them on to its nodes.
const FOR_EVERY_NODE: [&str; 2] = ["PALISADE_LOG", "PALISADE_RECORD"];

/// Where an option's value stands, if not on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// In this variable of the environment.
    Variable(String),
    /// In this line of the file.
    Line(PathBuf, usize),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Variable(name) => f.write_str(name),
            Origin::Line(file, line) => write!(f, "{}:{line}", file.display()),
        }
    }
}

/// The values of one option.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Values {
    /// Whether a flag is given.
    Flag(bool),
    /// The values of an option.
    Texts(Vec<OsString>),
}

impl Values {
    /// The arguments of the command line that say the same.
    fn arguments(&self, option: &str) -> Vec<OsString> {
        match self {
            Values::Flag(false) => Vec::new(),
            Values::Flag(true) => vec![format!("--{option}").into()],
            Values::Texts(texts) => texts.iter().map(|text| word(option, text)).collect(),
        }
    }
}

fn word(option: &str, text: &OsStr) -> OsString {
    let mut word = OsString::from(format!("--{option}="));
    word.push(text);
    word
}

/// The values of one source, the environment or the file, by their options.
type Layer = BTreeMap<String, (Origin, Values)>;

/// A command line, with the options that the environment and the file add to it.
#[derive(Debug)]
pub(super) struct Layered {
    /// All arguments, the program's name first.
    pub(super) arguments: Vec<OsString>,
    /// Where the added options stand.
    origins: BTreeMap<String, Origin>,
}

impl Layered {
    /// Adds to a command line what the environment and the file of `--config` say. A command line of
    /// another command than `serve` stays as it is.
    ///
    /// # Errors
    /// A sentence for each value that cannot be used, with its source.
    pub(super) fn of(
        arguments: Vec<OsString>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Layered, Vec<String>> {
        let unchanged = |arguments| Ok(Layered { arguments, origins: BTreeMap::new() });
        if arguments.get(1).is_none_or(|command| command != "serve") {
            return unchanged(arguments);
        }
        let serve = serve();
        // Help was asked for: parsing prints it.
        let Ok(given) = lenient(&serve).try_get_matches_from(&arguments[1..]) else { return unchanged(arguments) };
        // An empty variable counts as none: files of variables have lines without a value.
        let environment = |option: &str| {
            let name = variable(option);
            environment(&name).filter(|value| !value.is_empty()).map(|value| (Origin::Variable(name), value))
        };
        let file = given.get_one::<PathBuf>(FILE_OPTION).cloned();
        let file = file.or_else(|| environment(FILE_OPTION).map(|(_, file)| PathBuf::from(file)));
        let (in_file, mut refusals) = file.map(|file| file::read(&file, &serve)).unwrap_or_default();
        let mut in_environment = Layer::new();
        for (option, arg) in options(&serve).filter(|(_, arg)| !is_on_command_line(&given, arg)) {
            let Some((origin, text)) = environment(option) else { continue };
            match of_variable(arg, text) {
                Ok(values) => drop(in_environment.insert(option.to_owned(), (origin, values))),
                Err(refusal) => refusals.push(format!("{origin}: {refusal}")),
            }
        }
        let (mut origins, mut added) = (BTreeMap::new(), Vec::new());
        let mut higher: Vec<&Arg> = options(&serve).map(|(_, arg)| arg).collect();
        higher.retain(|arg| is_on_command_line(&given, arg));
        for mut layer in [in_environment, in_file] {
            let mut here = Vec::new();
            for (option, arg) in options(&serve) {
                let Some((origin, values)) = layer.remove(option) else { continue };
                let is_overruled = is_on_command_line(&given, arg) || origins.contains_key(option);
                if is_overruled || is_excluded(&serve, arg, &higher) {
                    continue;
                }
                let arguments = values.arguments(option);
                // A flag that is false excludes nothing.
                here.extend((!arguments.is_empty()).then_some(arg));
                added.extend(arguments);
                origins.insert(option.to_owned(), origin);
            }
            higher.extend(here);
        }
        if !refusals.is_empty() {
            return Err(refusals);
        }
        let mut arguments = arguments;
        arguments.splice(2..2, added);
        Ok(Layered { arguments, origins })
    }

    /// Reports that the arguments cannot be parsed, and where the options stand that clap names.
    pub(super) fn refuse(&self, error: &clap::Error) -> ExitCode {
        let sources = self.sources(&summary(error));
        let _ = error.print();
        if let Some(sources) = sources {
            print_error(sources);
        }
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_CONFIG))
    }

    /// Where the options stand that a message names.
    fn sources(&self, message: &str) -> Option<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let mut named: Vec<&str> = message.split(|c| !is_part(c)).filter_map(|word| word.strip_prefix("--")).collect();
        named.sort_unstable();
        named.dedup();
        let sources = named.into_iter().filter_map(|option| Some((option, self.origins.get(option)?)));
        let sources: Vec<String> = sources.map(|(option, origin)| format!("--{option} is given by {origin}")).collect();
        (!sources.is_empty()).then(|| sources.join("; "))
    }
}

/// The description of `palisade serve`.
fn serve() -> clap::Command {
    let program = Arguments::command();
    program.find_subcommand("serve").cloned().unwrap_or_default()
}

/// The same, which ignores what it cannot parse and demands nothing: it tells what is given.
fn lenient(serve: &clap::Command) -> clap::Command {
    serve.clone().mut_args(free).ignore_errors(true)
}

/// The option without its relations to others.
fn free(arg: Arg) -> Arg {
    arg.required(false).requires(Resettable::<Id>::Reset).conflicts_with(Resettable::<Id>::Reset)
}

/// The options that may stand in the file and in the environment, by their names.
fn options(serve: &clap::Command) -> impl Iterator<Item = (&str, &Arg)> {
    let named = serve.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    named.filter(|(name, _)| !COMMAND_LINE_ONLY.contains(name))
}

fn is_on_command_line(given: &ArgMatches, arg: &Arg) -> bool {
    given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
}

/// Whether clap refuses the option beside one of those that a higher source gives.
fn is_excluded(serve: &clap::Command, arg: &Arg, higher: &[&Arg]) -> bool {
    let are_exclusive = |one: &Arg, other: &Arg| {
        let excluded = serve.get_arg_conflicts_with(one);
        excluded.iter().any(|excluded| excluded.get_id() == other.get_id())
    };
    higher.iter().any(|given| are_exclusive(given, arg) || are_exclusive(arg, given))
}

fn is_flag(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

fn is_repeatable(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// The variable of an option.
fn variable(option: &str) -> String {
    format!("PALISADE_{}", option.to_ascii_uppercase().replace('-', "_"))
}

/// The variables that set options of `palisade serve` for one node, and must not reach all nodes of
/// `palisade dev`.
pub(super) fn variables_of_one_node() -> Vec<String> {
    let serve = serve();
    let options = options(&serve).map(|(option, _)| option).chain([FILE_OPTION]);
    options.map(variable).filter(|name| !FOR_EVERY_NODE.contains(&name.as_str())).collect()
}

/// The values of an option in a variable: of a repeatable one, separated by commas.
fn of_variable(arg: &Arg, text: OsString) -> Result<Values, String> {
    let values = if is_flag(arg) {
        match text.to_str() {
            Some("true" | "1") => Values::Flag(true),
            Some("false" | "0") => Values::Flag(false),
            _ => return Err(format!("`{}` is neither true nor false", text.display())),
        }
    } else if let (true, Some(list)) = (is_repeatable(arg), text.to_str()) {
        Values::Texts(list.split(',').map(|item| item.trim().into()).collect())
    } else {
        Values::Texts(vec![text])
    };
    parse_alone(arg, &values).map(|()| values)
}

/// Parses the values as this option's, without regard to others.
fn parse_alone(arg: &Arg, values: &Values) -> Result<(), String> {
    let alone = clap::Command::new("serve").no_binary_name(true).disable_help_flag(true).arg(free(arg.clone()));
    let arguments = values.arguments(arg.get_long().unwrap_or_default());
    alone.try_get_matches_from(arguments).map(drop).map_err(|error| summary(&error))
}

/// The name that an unknown one is probably meant to be.
fn similar(serve: &clap::Command, option: &str) -> Option<String> {
    let strict = serve.clone().mut_args(free);
    let error = strict.try_get_matches_from([OsString::from("serve"), word(option, OsStr::new(""))]).err()?;
    let suggested = match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(suggested) => suggested.clone(),
        ContextValue::Strings(suggested) => suggested.first()?.clone(),
        _ => return None,
    };
    let name = suggested.trim_start_matches('-').to_owned();
    let may_be_shown = options(serve).any(|(option, arg)| option == name && !arg.is_hide_set());
    may_be_shown.then_some(name)
}

/// What clap says is wrong, in one line, without its hints.
fn summary(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.trim_start_matches("error: ").lines().take_while(|line| !line.trim().is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Check a configuration file of `palisade serve`
#[derive(Debug, Args)]
pub(super) struct Config {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check that `palisade serve --config FILE` accepts the file, with the PALISADE_* variables of this
    /// environment, and that its options fit one another and the files that they name. The data
    /// directory and the ports are not touched. The exit code is 78 if they do not, and 71 if the host of
    /// an address cannot be looked up. A variable that sets no option is reported and ignored
    Check {
        /// The file
        file: PathBuf,
    },
}

impl Config {
    pub(super) fn run(self) -> ExitCode {
        let Action::Check { file } = self.action;
        unknown_variables(std::env::vars_os()).iter().for_each(print_error);
        match check(&file, |name| std::env::var_os(name)) {
            Ok(()) => {
                outln!("{}: these options are accepted", file.display());
                ExitCode::SUCCESS
            }
            Err(Refused { exit_code, refusals }) => {
                refusals.iter().for_each(print_error);
                ExitCode::from(exit_code)
            }
        }
    }
}

/// Reports what is wrong with the file and the environment.
pub(super) fn refuse(refusals: &[String]) -> ExitCode {
    refusals.iter().for_each(print_error);
    ExitCode::from(EXIT_CONFIG)
}

/// Why no node can start with a file, and the exit code that `palisade serve` has for this reason.
#[derive(Debug, PartialEq, Eq)]
struct Refused {
    exit_code: u8,
    refusals: Vec<String>,
}

impl From<Vec<String>> for Refused {
    fn from(refusals: Vec<String>) -> Refused {
        Refused { exit_code: EXIT_CONFIG, refusals }
    }
}

fn check(file: &std::path::Path, environment: impl Fn(&str) -> Option<OsString>) -> Result<(), Refused> {
    let arguments = ["palisade".into(), "serve".into(), word(FILE_OPTION, file.as_os_str())];
    let layered = Layered::of(arguments.into(), environment)?;
    let refused = |message: String| {
        let sources = layered.sources(&message).map(|sources| format!(" ({sources})")).unwrap_or_default();
        vec![format!("{}: {message}{sources}", file.display())]
    };
    let arguments = Arguments::try_parse_from(&layered.arguments).map_err(|error| refused(summary(&error)))?;
    let Command::Serve(serve) = arguments.command else { return Ok(()) };
    block_on(serve.check())
        .map_err(|error| Refused { exit_code: error.exit_code(), refusals: refused(error.to_string()) })
}

#[cfg(test)]
mod tests;
