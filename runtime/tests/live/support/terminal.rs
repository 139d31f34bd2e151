//! A terminal for a program, and the person before it.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// The person's side of a terminal.
pub struct Terminal {
    keyboard: File,
    screen: Receiver<String>,
    seen: String,
}

impl Terminal {
    /// A new terminal, and the side of the program.
    pub fn open() -> (Terminal, File) {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&person).unwrap();
        unlockpt(&person).unwrap();
        let name = ptsname(&person, Vec::new()).unwrap().into_string().unwrap();
        let mut reader: File = person.into();
        let keyboard = reader.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails when no program has the terminal open any more.
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                let _ = sender.send(String::from_utf8_lossy(&bytes[..length]).into_owned());
            }
        });
        let program = File::options().read(true).write(true).open(name).unwrap();
        (Terminal { keyboard, screen, seen: String::new() }, program)
    }

    /// Types something.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until everything that was written is `enough`, and returns it.
    #[track_caller]
    pub fn read(&mut self, enough: impl Fn(&str) -> bool) -> String {
        while !enough(&self.seen) {
            match self.screen.recv_timeout(Duration::from_secs(30)) {
                Ok(more) => self.seen += &more,
                Err(error) => panic!("{error}: {:?}", self.seen),
            }
        }
        self.seen.clone()
    }
}
