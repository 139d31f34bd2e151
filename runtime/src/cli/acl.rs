//! `palisade acl`: who may do what.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use palisade_client::wire::{AccessRules, AccessVerdict, TestAccess};
use palisade_client::{Client, Error, escaped_json};

use super::connect::{self, Endpoints};
use super::{block_on, print_error, print_line};

/// Exit code: the file cannot be read, or is no document of access rules.
const EXIT_BAD_FILE: u8 = 65;

/// Show and replace the access rules, and ask what they permit
#[derive(Debug, Args)]
pub(super) struct Acl {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the access rules as JSON, with their revision
    Get {
        #[command(flatten)]
        endpoints: Endpoints,
    },
    /// Replace the access rules by those of a file, as `palisade acl get` prints them. If the file has a
    /// revision, only the rules of that revision are replaced; otherwise the present ones
    Set {
        /// The file; - for standard input
        #[arg(required_unless_present = "off", conflicts_with = "off")]
        file: Option<PathBuf>,
        /// End access control: each client may do everything
        #[arg(long)]
        off: bool,
        #[command(flatten)]
        endpoints: Endpoints,
    },
    /// Ask whether the access rules permit something, and print the rule that decides. The exit code is
    /// 0 if they do, 1 if they do not
    Test {
        /// The name of a client; admin/NAME for an administrator
        principal: String,
        /// The right
        right: Right,
        /// The key; admin is about none
        #[arg(required_if_eq_any([("right", "read"), ("right", "acquire"), ("right", "break"), ("right", "write")]))]
        key: Option<String>,
        #[command(flatten)]
        endpoints: Endpoints,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Right {
    Read,
    Acquire,
    Break,
    Admin,
    Write,
}

impl From<Right> for palisade_client::wire::Right {
    fn from(right: Right) -> Self {
        match right {
            Right::Read => Self::Read,
            Right::Acquire => Self::Acquire,
            Right::Break => Self::Break,
            Right::Admin => Self::Admin,
            Right::Write => Self::Write,
        }
    }
}

impl Acl {
    pub(super) fn run(self) -> ExitCode {
        let done = match self.action {
            Action::Get { endpoints } => {
                block_on(async { endpoints.connect().await?.access_rules().await }).map(|rules| {
                    print_rules(&rules);
                    ExitCode::SUCCESS
                })
            }
            Action::Set { file, endpoints, .. } => {
                let document = match file.as_deref().map(read).transpose() {
                    Ok(document) => document,
                    Err(error) => {
                        print_error(error);
                        return ExitCode::from(EXIT_BAD_FILE);
                    }
                };
                block_on(set(&endpoints, document)).map(|rules| {
                    print_set(&rules);
                    ExitCode::SUCCESS
                })
            }
            Action::Test { principal, right, key, endpoints } => {
                let test = TestAccess { principal, right: right.into(), key: key.unwrap_or_default() };
                block_on(async { endpoints.connect().await?.test_access(test).await }).map(|verdict| {
                    let AccessVerdict { permitted, why } = verdict;
                    outln!("{}: {why}", if permitted { "yes" } else { "no" });
                    ExitCode::from(u8::from(!permitted))
                })
            }
        };
        done.unwrap_or_else(|error| connect::fail(&error))
    }
}

/// A document, and whether it has the revision that it replaces.
struct Document {
    rules: AccessRules,
    has_revision: bool,
}

fn read(path: &Path) -> Result<Document, String> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text).map(drop),
        _ => std::fs::read_to_string(path).map(|content| text = content),
    };
    read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    parse(&text).map_err(|error| format!("{} is no document of access rules: {error}", path.display()))
}

fn parse(text: &str) -> Result<Document, serde_json::Error> {
    let mut value: serde_json::Value = serde_json::from_str(text)?;
    let has_revision = value.get("revision").is_some();
    if let (false, Some(fields)) = (has_revision, value.as_object_mut()) {
        fields.insert("revision".into(), 0.into());
    }
    Ok(Document { rules: serde_json::from_value(value)?, has_revision })
}

/// Replaces the rules; without a document they end.
async fn set(endpoints: &Endpoints, document: Option<Document>) -> Result<AccessRules, Error> {
    let client: Client = endpoints.connect().await?;
    let off = Document { rules: AccessRules::default(), has_revision: false };
    let Document { mut rules, has_revision } = document.unwrap_or(off);
    if !has_revision {
        rules.revision = client.access_rules().await?.revision;
    }
    client.set_access_rules(rules).await
}

fn print_rules(rules: &AccessRules) {
    match serde_json::to_string_pretty(rules) {
        Ok(text) => text.lines().for_each(|line| print_line(&escaped_json(line))),
        Err(error) => print_error(error),
    }
}

fn print_set(AccessRules { revision, enabled, rules, .. }: &AccessRules) {
    match enabled {
        true => {
            let rules = if rules.len() == 1 { "1 rule".to_owned() } else { format!("{} rules", rules.len()) };
            outln!("access control is on with {rules} (revision {revision})");
        }
        false => outln!("access control is off (revision {revision}): each client may do everything"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each right but `admin` is about a key.
    #[test]
    fn test_of_a_right_needs_its_key() {
        #[derive(Debug, clap::Parser)]
        struct Arguments {
            #[command(subcommand)]
            _action: Action,
        }
        for right in Right::value_variants() {
            let name = right.to_possible_value().unwrap();
            let parse = |key: &[&str]| {
                let words = ["acl", "test", "worker", name.get_name()];
                <Arguments as clap::Parser>::try_parse_from(words.iter().chain(key))
            };
            assert_eq!(parse(&[]).is_ok(), matches!(right, Right::Admin), "{right:?}");
            assert!(parse(&["k"]).is_ok(), "{right:?}");
        }
    }

    #[test]
    fn document_may_leave_out_the_revision() {
        let Document { rules, has_revision } = parse(r#"{"rules": []}"#).unwrap();
        assert!(!has_revision && rules.enabled && rules.revision == 0);
        let Document { rules, has_revision } = parse(r#"{"revision": 7, "enabled": false}"#).unwrap();
        assert!(has_revision && !rules.enabled && rules.revision == 7);
        for bad in ["", "[]", r#"{"rule": []}"#, r#"{"rules": [{"subject": "a", "prefix": "", "rights": ["own"]}]}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
