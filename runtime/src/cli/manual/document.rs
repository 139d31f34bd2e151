//! `docs/commands.md`: every command with its options, from the same description as `--help`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Arg, Args, Command, CommandFactory};

use super::super::Arguments;
use super::super::connect::Endpoints;

const START: &str = "\
# The commands

`palisade COMMAND --help` prints what this page says, `palisade man DIRECTORY` writes it as manual
pages, and `palisade completions SHELL` what lets a shell complete it. The exit codes are explained
[together](operations.md#what-each-refusal-means). Do not edit this page: `just bless` writes it.

## Options of the commands that connect to a cluster

";

/// The last lines of a page are those of `just book`.
const END: &str = "\n<!-- `just book` writes what follows. -->\n";
const COLUMNS: usize = 100;

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace").join("docs/commands.md")
}

/// The page without its last lines.
fn page() -> String {
    let mut program = Arguments::command();
    program.build();
    let connection = Endpoints::augment_args(Command::new("palisade"));
    let mut page = START.to_owned();
    table(connection.get_arguments(), &mut page);
    for command in shown(&program) {
        section(command, "##", &connection, &mut page);
    }
    page
}

/// The commands that `--help` lists.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// A command with the commands that it has itself.
fn section(command: &Command, heading: &str, connection: &Command, page: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    writeln!(page, "\n{heading} `{name}`\n").unwrap();
    for paragraph in about.split("\n\n") {
        writeln!(page, "{}\n", wrapped(&sentence(paragraph))).unwrap();
    }
    if command.has_subcommands() {
        return shown(command).for_each(|inner| section(inner, "###", connection, page));
    }
    let usage = command.clone().render_usage().to_string();
    writeln!(page, "```text\n{}\n```", usage.trim_start_matches("Usage: ")).unwrap();
    let arguments = command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help");
    let (of_connection, own): (Vec<_>, Vec<_>) = arguments.partition(|arg| is_one_of(arg, connection));
    if !own.is_empty() {
        page.push('\n');
        table(own.into_iter(), page);
    }
    if !of_connection.is_empty() {
        page.push_str(
            "\nIt takes the [options of a connection](#options-of-the-commands-that-connect-to-a-cluster), too.\n",
        );
    }
}

/// Whether the command has this option, with the same meaning.
fn is_one_of(arg: &Arg, command: &Command) -> bool {
    let same = command.get_arguments().find(|same| same.get_id() == arg.get_id());
    same.is_some_and(|same| help(same) == help(arg))
}

fn table<'a>(arguments: impl Iterator<Item = &'a Arg>, page: &mut String) {
    page.push_str("| option | meaning |\n|---|---|\n");
    for arg in arguments {
        writeln!(page, "| {} | {} |", names(arg), meaning(arg).replace('|', "\\|")).unwrap();
    }
}

/// The argument as it is written in a command, as `-n`, `--wait TIME` or `KEY`.
fn names(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default().join(" ");
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<_> = short.into_iter().chain(long).map(|name| format!("`{name}`")).collect();
    match names.join(", ") {
        positional if positional.is_empty() => format!("`{values}`"),
        names if arg.get_action().takes_values() => format!("{} {values}`", names.trim_end_matches('`')),
        names => names,
    }
}

fn meaning(arg: &Arg) -> String {
    let code = |text: &std::ffi::OsStr| format!("`{}`", text.to_string_lossy());
    let mut meaning = sentence(&help(arg));
    let values: Vec<_> = arg.get_possible_values();
    let values = values.iter().filter(|value| !value.is_hide_set());
    let values: Vec<_> = values.map(|value| format!("`{}`", value.get_name())).collect();
    if !values.is_empty() {
        write!(meaning, " One of {}.", values.join(", ")).unwrap();
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| code(value)).collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        write!(meaning, " Default: {}.", defaults.join(", ")).unwrap();
    }
    if let Some(variable) = arg.get_env() {
        write!(meaning, " Environment: {}.", code(variable)).unwrap();
    }
    meaning
}

/// What `--help` says of the argument, in one line.
fn help(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    help.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The text with the period that `--help` leaves out.
fn sentence(text: &str) -> String {
    let end = if text.is_empty() || text.ends_with(['.', '?', ':']) { "" } else { "." };
    format!("{text}{end}")
}

/// The text in lines of at most `COLUMNS` characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a first line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= COLUMNS {
            write!(line, " {word}").unwrap();
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

/// Goal: the page names every option that `--help` shows.
#[test]
fn committed_page_is_what_help_says() {
    let (path, page) = (path(), page());
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let (before, end) = committed.split_once(END).unwrap_or((&committed, ""));
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        return std::fs::write(&path, format!("{page}{END}{end}")).unwrap();
    }
    let differs = before.lines().zip(page.lines()).position(|(is, should)| is != should);
    assert!(
        before == page,
        "{} is not what `--help` says, from line {:?} on: `just bless` writes it down again",
        path.display(),
        differs.map(|line| line + 1)
    );
    assert!(page.contains("| `--client-addr ADDR` | ") && page.contains("| `-n`, `--no-wait` | "), "{page}");
    assert!(!page.contains("--segment-bytes") && !page.contains("watchdog"), "{page}");
}
