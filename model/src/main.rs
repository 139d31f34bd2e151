//! `palisade-model`: the models of Palisade's protocol, explored to the end.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use palisade_model::facts::columns;
use palisade_model::models::{Named, Tier, models};

/// Explores the models of Palisade's protocol
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Name every model and what it explores
    List,
    /// Explore models to their end; without names, all that are quick
    Check {
        /// Which models
        names: Vec<String>,
        /// Those that take long, too
        #[arg(long)]
        deep: bool,
        /// How many threads
        #[arg(long, value_name = "N", default_value_t = 2)]
        threads: usize,
    },
    /// Tell a shortest path to where a property is violated, or met if it is about what must be possible
    Trace {
        /// Of which model
        name: String,
        /// Which property; without, all of them are named
        #[arg(long)]
        property: Option<String>,
        /// As JSON, a line for each step
        #[arg(long)]
        json: bool,
    },
}

/// A command that cannot be carried out as it was given.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::List => {
            let rows = models().into_iter().map(|model| [model.name, model.tier.name(), model.about].map(String::from));
            println!("{}", columns(&rows.collect::<Vec<_>>()));
            ExitCode::SUCCESS
        }
        Command::Check { names, deep, threads } => check(&names, deep, threads),
        Command::Trace { name, property, json } => trace(&name, property.as_deref(), json),
    }
}

fn refuse(message: &str) -> ExitCode {
    eprintln!("palisade-model: {message}");
    ExitCode::from(USAGE)
}

fn unknown_model(name: &str) -> ExitCode {
    let known: Vec<_> = models().iter().map(|model| model.name).collect();
    refuse(&format!("there is no model {name}; there are {}", known.join(", ")))
}

fn check(names: &[String], deep: bool, threads: usize) -> ExitCode {
    let models = models();
    if let Some(unknown) = names.iter().find(|name| models.iter().all(|model| model.name != **name)) {
        return unknown_model(unknown);
    }
    let chosen = |model: &&Named| match names {
        [] => deep || model.tier != Tier::Deep,
        names => names.iter().any(|name| name == model.name),
    };
    let mut passes = true;
    for model in models.iter().filter(chosen) {
        let verdict = model.model.check(threads);
        println!("{:<18} {verdict}", model.name);
        passes &= verdict.passes();
    }
    if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn trace(name: &str, property: Option<&str>, json: bool) -> ExitCode {
    let models = models();
    let Some(model) = models.iter().find(|model| model.name == name) else { return unknown_model(name) };
    let properties = model.model.properties();
    let Some(&(property, possible)) = properties.iter().find(|(known, _)| Some(*known) == property) else {
        let asked = property.map_or(String::new(), |asked| format!("{name} has no property \"{asked}\"; "));
        let known: Vec<_> = properties.iter().map(|(known, _)| format!("\n  {known}")).collect();
        return refuse(&format!("{asked}name one with --property; the properties of {name} are{}", known.concat()));
    };
    let Some(trace) = model.model.trace(property) else {
        let never = if possible { "is never met" } else { "is never violated" };
        eprintln!("palisade-model: {name}: \"{property}\" {never}, in no state that the model can reach");
        return ExitCode::FAILURE;
    };
    if json {
        trace.lines(name).iter().for_each(|line| println!("{line}"));
    } else {
        println!("{name}: {}\n\n{}\n\n{trace}", trace.title(), trace.initial);
    }
    ExitCode::SUCCESS
}
