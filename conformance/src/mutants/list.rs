//! Reads the lists of mutants in `conformance/mutants/`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::Error;
use super::mutant::Entry;

/// The mutants that one part must find: all lists in the folder of that name, file by file.
///
/// # Errors
/// If a list cannot be read.
pub(crate) fn entries<F: DeserializeOwned>(part: &str) -> Result<Vec<(Entry, F)>, Error> {
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("mutants").join(part))?;
    let mut lists = files.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    lists.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    lists.sort_unstable();
    let mut mutants = Vec::new();
    for path in lists {
        let list = parse(&fs::read_to_string(&path)?);
        mutants.extend(list.map_err(|source| Error::List { path, source: Box::new(source) })?);
    }
    Ok(mutants)
}

fn parse<F: DeserializeOwned>(text: &str) -> Result<Vec<(Entry, F)>, toml::de::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct List {
        mutant: Vec<toml::Table>,
    }
    let list: List = toml::from_str(text)?;
    let mutant = |mut fields: toml::Table| {
        let is_common = |key: &str| ["name", "why", "package", "file", "replace", "with"].contains(&key);
        let keys: Vec<String> = fields.keys().filter(|key| is_common(key)).cloned().collect();
        let entry: toml::Table =
            keys.into_iter().filter_map(|key| fields.remove(&key).map(|value| (key, value))).collect();
        Ok((entry.try_into()?, fields.try_into()?))
    };
    list.mutant.into_iter().map(mutant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_field_of_a_list_is_rejected() {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only parsed")]
        struct Seeds {
            breaks: Vec<String>,
            seeds: u64,
        }
        let parsed = |more: &str| {
            let text = format!(
                "[[mutant]]\nname = 'n'\nwhy = 'w.'\nfile = 'f'\nreplace = 'r'\nwith = 'v'\nbreaks = ['p']\nseeds = 1\n{more}"
            );
            parse::<Seeds>(&text).map(|mutants| mutants.len()).map_err(|error| error.to_string())
        };
        assert_eq!(parsed(""), Ok(1));
        assert!(parsed("weather = 'fair'").unwrap_err().contains("weather"));
    }
}
