//! `palisade completions` and `palisade man`: for shells and for `man`, from the same description as
//! `--help`.

#[cfg(test)]
mod document;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

use super::{Arguments, print_error, print_line};

/// Exit code: the directory cannot be written (EX_CANTCREAT).
const EXIT_CANNOT_WRITE: u8 = 73;

/// Print what lets a shell complete the words of this program
///
/// bash: palisade completions bash > /etc/bash_completion.d/palisade; zsh: the file _palisade in a directory
/// of $fpath; fish: ~/.config/fish/completions/palisade.fish
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    shell: KnownShell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KnownShell {
    Bash,
    Zsh,
    Fish,
}

/// Write the manual pages, one for each command, into a directory
#[derive(Debug, Args)]
pub(super) struct Man {
    /// The directory, for instance /usr/local/share/man/man1; created if there is none
    directory: PathBuf,
}

impl Completions {
    pub(super) fn run(self) -> ExitCode {
        print_line(script(self.shell).trim_end());
        ExitCode::SUCCESS
    }
}

impl Man {
    pub(super) fn run(self) -> ExitCode {
        match write_pages(&self.directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                print_error(format!("cannot write manual pages into {}: {error}", self.directory.display()));
                ExitCode::from(EXIT_CANNOT_WRITE)
            }
        }
    }
}

/// The completions of a shell.
fn script(shell: KnownShell) -> String {
    let shell = match shell {
        KnownShell::Bash => Shell::Bash,
        KnownShell::Zsh => Shell::Zsh,
        KnownShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut public(&Arguments::command()), "palisade", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

fn write_pages(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Arguments::command(), directory)
}

/// The command without its hidden options and commands, which the scripts would complete.
fn public(command: &clap::Command) -> clap::Command {
    let shown = clap::Command::new(command.get_name().to_owned());
    let shown = match command.get_about() {
        Some(about) => shown.about(about.clone()),
        None => shown,
    };
    shown
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|command| !command.is_hide_set()).map(public))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of all commands, as `palisade-members-add`, and whether each is hidden.
    fn commands() -> Vec<(String, bool)> {
        let mut found = Vec::new();
        let mut open = vec![(String::new(), false, Arguments::command())];
        while let Some((prefix, is_hidden, command)) = open.pop() {
            let name = format!("{prefix}{}", command.get_name());
            let inner = command.get_subcommands().cloned();
            open.extend(inner.map(|inner| (format!("{name}-"), is_hidden || inner.is_hide_set(), inner)));
            found.push((name, is_hidden));
        }
        found
    }

    /// Goal: no command is forgotten in the completions, and none that only this program uses is offered.
    #[test]
    fn completions_name_every_command_that_help_shows() {
        for shell in [KnownShell::Bash, KnownShell::Zsh, KnownShell::Fish] {
            let script = script(shell);
            let words: Vec<&str> = script.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).collect();
            for (name, is_hidden) in commands() {
                let last = name.rsplit('-').next().unwrap();
                let is_named = words.iter().any(|word| *word == last || word.ends_with(&format!("-{last}")));
                assert!(is_hidden || is_named, "{shell:?}: {name}");
            }
            for hidden in ["watchdog", "run-with-parent", "segment-bytes"] {
                assert!(!script.contains(hidden), "{shell:?}: {hidden}");
            }
            assert!(script.contains("snapshot-interval"), "{shell:?}");
        }
    }

    /// Goal: every command has a manual page, and every option of `serve` that help shows is on its page.
    #[test]
    fn every_command_has_a_manual_page() {
        let directory = tempfile::tempdir().unwrap();
        let pages = directory.path().join("man1");
        write_pages(&pages).unwrap();
        for (name, is_hidden) in commands() {
            assert_eq!(pages.join(format!("{name}.1")).exists(), !is_hidden, "{name}");
        }
        let page = std::fs::read_to_string(pages.join("palisade-serve.1")).unwrap().replace('\\', "");
        assert!(page.contains("--snapshot-interval") && page.contains("PALISADE_CLIENT_ADDR"), "{page}");
        assert!(!page.contains("--segment-bytes"), "{page}");
    }
}
