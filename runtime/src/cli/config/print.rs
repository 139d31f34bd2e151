//! `palisade serve --print-config`: the options in effect, as a file for `--config`.

use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory};
use palisade_client::escaped_json;

use super::super::{Arguments, print_error, print_line};
use super::{Layered, is_flag, is_repeatable, options, serve, unknown_variables};

/// Prints the effective options of `palisade serve`.
pub(in super::super) fn print(layered: &Layered) -> ExitCode {
    unknown_variables(std::env::vars_os()).iter().for_each(print_error);
    match Arguments::command().try_get_matches_from(&layered.arguments) {
        Ok(matches) => {
            let given = matches.subcommand_matches("serve");
            given.into_iter().flat_map(|given| lines(layered, given)).for_each(|line| print_line(&line));
            ExitCode::SUCCESS
        }
        Err(error) => layered.refuse(&error),
    }
}

/// A line for each option. Of the hidden ones, only those that are given.
pub(super) fn lines(layered: &Layered, given: &ArgMatches) -> Vec<String> {
    let serve = serve();
    let lines = options(&serve).filter_map(|(option, arg)| {
        let is_default = given.value_source(arg.get_id().as_str()) != Some(ValueSource::CommandLine);
        let origin = match layered.origins.get(option) {
            Some(origin) => palisade_client::escaped(&origin.to_string()).into_owned(),
            None if is_default => "default".to_owned(),
            None => "command line".to_owned(),
        };
        if arg.is_hide_set() && origin == "default" {
            return None;
        }
        Some(match value(arg, given) {
            Some(value) => format!("{option} = {value}  # {origin}"),
            None => format!("# {option}: not given"),
        })
    });
    lines.collect()
}

/// The option's value as TOML.
fn value(arg: &Arg, given: &ArgMatches) -> Option<String> {
    let id = arg.get_id().as_str();
    if is_flag(arg) {
        return Some(given.get_flag(id).to_string());
    }
    let texts: Vec<String> = given.get_raw(id)?.map(|text| text.to_string_lossy().into_owned()).collect();
    match (is_repeatable(arg), &texts[..]) {
        (true, texts) => Some(format!("[{}]", texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", "))),
        (false, [text]) if id == "peers" => Some(table(text)),
        (false, [text]) => Some(scalar(text)),
        (false, _) => None,
    }
}

fn table(peers: &str) -> String {
    let peers = peers.split(',').filter_map(|peer| peer.split_once('='));
    let peers = peers.map(|(id, address)| format!("{} = {}", id.trim(), quoted(address.trim())));
    format!("{{ {} }}", peers.collect::<Vec<_>>().join(", "))
}

/// A number without quotes, if TOML reads it as the same text.
fn scalar(text: &str) -> String {
    match text.parse::<i64>() {
        Ok(number) if number.to_string() == text => text.to_owned(),
        _ => quoted(text),
    }
}

/// A basic string of TOML, whose escapes are those of JSON.
fn quoted(text: &str) -> String {
    escaped_json(&serde_json::Value::from(text).to_string()).into_owned()
}
