//! `palisade-model`: the models of Palisade's protocol, explored to the end.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
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
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::List => {
            for Named { name, about, tier, .. } in models() {
                println!("{name:<18} {about}{}", if tier == Tier::Deep { " (deep)" } else { "" });
            }
            ExitCode::SUCCESS
        }
        Command::Check { names, deep, threads } => check(&names, deep, threads),
    }
}

fn check(names: &[String], deep: bool, threads: usize) -> ExitCode {
    let models = models();
    if let Some(unknown) = names.iter().find(|name| models.iter().all(|model| model.name != **name)) {
        eprintln!("palisade-model: there is no model {unknown}; `palisade-model list` names them all");
        return ExitCode::from(64);
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
