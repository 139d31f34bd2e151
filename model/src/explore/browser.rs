//! Opens an address in the browser of a person at a terminal.

use std::env;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;

/// Opens an address with the system's program for that, if standard output is a terminal, and the system has such a
/// program and a screen. Otherwise the person opens the address, which has been printed.
pub fn open(address: &str) {
    let has_screen =
        ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| env::var_os(name).is_some_and(|at| !at.is_empty()));
    let Some(program) = opener(io::stdout().is_terminal(), has_screen) else { return };
    let mut command = Command::new(program);
    command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Ctrl-C ends this process, and not a browser that the program has started.
    if let Ok(mut child) = command.process_group(0).spawn() {
        thread::spawn(move || child.wait());
    }
}

/// The name of the program. Without a screen, xdg-open would start a browser for text, on this terminal.
fn opener(is_terminal: bool, has_screen: bool) -> Option<&'static str> {
    match (is_terminal, cfg!(target_os = "macos")) {
        (true, true) => Some("open"),
        (true, false) if has_screen => Some("xdg-open"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a script that reads the address, and a person without a screen, get no browser.
    #[test]
    fn browser_is_for_a_person_at_a_screen() {
        assert_eq!([opener(false, true), opener(false, false)], [None, None]);
        let (program, without_screen) =
            if cfg!(target_os = "macos") { ("open", Some("open")) } else { ("xdg-open", None) };
        assert_eq!([opener(true, true), opener(true, false)], [Some(program), without_screen]);
    }
}
