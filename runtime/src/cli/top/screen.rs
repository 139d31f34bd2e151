//! The terminal: a screen of its own, without echo, and as it was before when this ends.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The other screen of the terminal, without a cursor; long lines are cut off.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// The opposite of [`ENTER`].
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Rows and columns if the terminal does not say.
const USUAL_SIZE: (usize, usize) = (24, 80);

/// The terminal while it shows frames. Restores it when dropped.
#[derive(Debug)]
pub(super) struct Screen(Arc<Taken>);

/// A terminal, and the modes to which it is restored.
#[derive(Debug)]
struct Taken {
    terminal: File,
    modes: Mutex<Option<Termios>>,
}

impl Screen {
    /// Takes the terminal of standard output.
    pub(super) fn enter() -> io::Result<Screen> {
        Screen::take(File::from(io::stdout().as_fd().try_clone_to_owned()?))
    }

    fn take(mut terminal: File) -> io::Result<Screen> {
        let modes = tcgetattr(&terminal)?;
        let mut raw = modes.clone();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        let written = terminal.write_all(ENTER.as_bytes());
        let screen = Screen(Arc::new(Taken { terminal, modes: Mutex::new(Some(modes)) }));
        written.map(|()| screen)
    }

    /// Lets a panic's message be printed on the restored terminal: it would be lost with the other
    /// screen.
    pub(super) fn restore_before_panics(&self) {
        let (taken, report) = (Arc::clone(&self.0), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            taken.restore();
            report(panic);
        }));
    }

    /// Rows and columns.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(&self.0.terminal) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
            _ => USUAL_SIZE,
        }
    }

    /// Shows these lines, and nothing else. One write, so that no half of a frame is seen.
    pub(super) fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut frame = String::from("\x1b[H");
        for (at, line) in lines.iter().enumerate() {
            frame.push_str(if at == 0 { "" } else { "\r\n" });
            frame.push_str(line);
            frame.push_str("\x1b[K");
        }
        frame.push_str("\x1b[J");
        (&self.0.terminal).write_all(frame.as_bytes())
    }
}

impl Taken {
    /// Restores the terminal, once.
    fn restore(&self) {
        if let Some(modes) = self.modes.lock().take() {
            let _ = (&self.terminal).write_all(LEAVE.as_bytes());
            let _ = tcsetattr(&self.terminal, OptionalActions::Drain, &modes);
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.0.restore();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::LocalModes;

    use super::*;

    fn terminal() -> (File, File) {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&person).unwrap();
        unlockpt(&person).unwrap();
        let name = ptsname(&person, Vec::new()).unwrap().into_string().unwrap();
        (person.into(), File::options().read(true).write(true).open(name).unwrap())
    }

    fn echoes(terminal: &File) -> bool {
        tcgetattr(terminal).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    /// Goal: a panic leaves the terminal as it was: its own screen, its cursor, echo and lines.
    #[test]
    fn panic_restores_the_terminal() {
        let (mut person, program) = terminal();
        let watched = program.try_clone().unwrap();
        assert!(echoes(&watched));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let screen = Screen::take(program).unwrap();
            assert!(!echoes(&watched));
            screen.draw(&["one".into(), "two".into()]).unwrap();
            // As the panic hook does; the drop after it changes nothing more.
            screen.0.restore();
            panic!("on purpose");
        }));
        assert!(panicked.is_err() && echoes(&watched));
        let mut seen = [0; 1024];
        let length = person.read(&mut seen).unwrap();
        let seen = String::from_utf8_lossy(&seen[..length]);
        assert_eq!(seen, format!("{ENTER}\x1b[Hone\x1b[K\r\ntwo\x1b[K\x1b[J{LEAVE}"));
    }
}
