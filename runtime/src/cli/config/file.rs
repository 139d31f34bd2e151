//! A configuration file: TOML whose keys are the names of options.

use std::path::Path;

use clap::Arg;
use toml::de::{DeTable, DeValue};

use super::{Layer, Origin, Values, is_flag, is_repeatable, options, parse_alone, similar};

/// Reads a file. Returns what can be used of it, and a sentence about everything else.
pub(super) fn read(file: &Path, serve: &clap::Command) -> (Layer, Vec<String>) {
    match std::fs::read_to_string(file) {
        Ok(text) => parse(file, &text, serve),
        Err(error) => {
            let refusal = format!("cannot read the configuration file {}: {error} (--config)", file.display());
            (Layer::new(), vec![refusal])
        }
    }
}

fn parse(file: &Path, text: &str, serve: &clap::Command) -> (Layer, Vec<String>) {
    let line_of = |offset: usize| text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1;
    let (mut values, mut refusals) = (Layer::new(), Vec::new());
    let table = match DeTable::parse(text) {
        Ok(table) => table.into_inner(),
        Err(error) => {
            let line = line_of(error.span().unwrap_or_default().start);
            refusals.push(format!("{}:{line}: this is not TOML: {}", file.display(), error.message()));
            return (values, refusals);
        }
    };
    for (key, value) in &table {
        let (name, origin) = (key.get_ref().as_ref(), Origin::Line(file.to_owned(), line_of(key.span().start)));
        let arg = options(serve).find(|(option, _)| *option == name).map(|(_, arg)| arg);
        let parsed = match arg {
            Some(arg) => of_option(arg, value.get_ref()),
            None => Err(unknown(serve, name)),
        };
        match parsed {
            Ok(parsed) => drop(values.insert(name.to_owned(), (origin, parsed))),
            Err(refusal) => refusals.push(format!("{origin}: {name}: {refusal}")),
        }
    }
    (values, refusals)
}

fn unknown(serve: &clap::Command, name: &str) -> String {
    let hint = similar(serve, name).map(|name| format!("; is it `{name}`?")).unwrap_or_default();
    format!("`palisade serve` has no option --{name}{hint}")
}

fn of_option(arg: &Arg, value: &DeValue<'_>) -> Result<Values, String> {
    let values = match value {
        DeValue::Boolean(given) if is_flag(arg) => Values::Flag(*given),
        _ if is_flag(arg) => return Err("give true or false".into()),
        DeValue::Array(items) if is_repeatable(arg) => {
            Values::Texts(items.iter().map(|item| Ok(text(item.get_ref())?.into())).collect::<Result<_, String>>()?)
        }
        DeValue::Array(_) => return Err("give one value, not a list".into()),
        DeValue::Table(table) if arg.get_id() == "peers" => Values::Texts(vec![peers(table)?.into()]),
        DeValue::Table(_) => return Err("this option is no table".into()),
        value => Values::Texts(vec![text(value)?.into()]),
    };
    parse_alone(arg, &values).map(|()| values)
}

/// A table of addresses by node IDs, in the form of the command line.
fn peers(table: &DeTable<'_>) -> Result<String, String> {
    let peers = table.iter().map(|(id, address)| Ok(format!("{}={}", id.get_ref(), text(address.get_ref())?)));
    Ok(peers.collect::<Result<Vec<_>, String>>()?.join(","))
}

fn text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map(|number| number.to_string())
            .map_err(|error| error.to_string()),
        _ => Err("give text in quotes, or an integer".into()),
    }
}
