//! Processes with a wall clock of their own, which is set while they run (libfaketime, the Debian
//! package `faketime`). Their monotonic clocks are the machine's.

use std::fs;
use std::path::Path;
use std::process::Command;

use parking_lot::Mutex;
use rustix::process::Pid;
use tempfile::TempDir;

const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// The wall clock of some processes.
#[derive(Debug)]
pub struct WallClock {
    /// Has a file that says how far it is off.
    directory: TempDir,
    processes: Mutex<Vec<Pid>>,
}

impl WallClock {
    /// A clock that is so many seconds ahead, or what is missing for it.
    pub fn ahead(seconds: i64) -> Result<WallClock, String> {
        if !Path::new(FAKETIME).exists() {
            return Err(format!("{FAKETIME} is missing (apt-get install faketime)"));
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let clock = WallClock { directory, processes: Mutex::default() };
        clock.set(seconds);
        Ok(clock)
    }

    /// A process that is started so looks at this clock, whenever it asks for the time of day.
    pub fn show_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", FAKETIME)
            .env("FAKETIME_TIMESTAMP_FILE", self.directory.path().join("clock"))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1");
    }

    /// Sets the clock so many seconds ahead of the machine's.
    pub fn set(&self, seconds: i64) {
        // In one step, so that no process reads half a number.
        let (new, file) = (self.directory.path().join("new"), self.directory.path().join("clock"));
        fs::write(&new, format!("{seconds:+}\n")).expect("the directory can be written to");
        fs::rename(new, file).expect("the directory can be written to");
    }

    /// This process was started so: libfaketime leaves something behind if it is killed.
    pub fn note(&self, process: Pid) {
        self.processes.lock().push(process);
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        for process in self.processes.lock().iter() {
            for name in ["faketime_shm", "sem.faketime_sem"] {
                // Most are there once only; some processes are noted twice.
                let _ = fs::remove_file(format!("/dev/shm/{name}_{}", process.as_raw_nonzero()));
            }
        }
    }
}
