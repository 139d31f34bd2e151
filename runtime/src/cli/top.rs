//! `palisade top`: the cluster and its locks, live, on the whole terminal.
//!
//! It polls: the status of every node, and one page of locks as the most current node has them
//! (a stale read, which costs the cluster no round). The [`frame`] is computed from what was read
//! and from the [`view`] alone; [`screen`] is the terminal, which is restored however this ends.

mod frame;
mod keys;
mod picture;
mod screen;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use palisade_client::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use self::picture::Picture;
use self::screen::Screen;
use self::view::View;
use super::connect::{self, Endpoints};
use super::signals::StopSignals;
use super::{block_on, print_error, print_line, table};

/// How often the frame is drawn anew, so that the times to live go down.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// Show the cluster's nodes and locks live, on the whole terminal
///
/// Keys: arrows, PageUp, PageDown, Home and End choose a lock, whose waiters are then shown; / filters by
/// keys and holders, Escape ends the filter; q quits. If standard output is no terminal, one picture is
/// printed. The exit code is then 69 if no node answered.
#[derive(Debug, Args)]
pub(super) struct Top {
    /// Show only locks whose keys begin with this prefix
    #[arg(long, value_name = "PREFIX", default_value = "")]
    prefix: String,
    /// The pause between two readings
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    #[command(flatten)]
    endpoints: Endpoints,
}

impl Top {
    pub(super) fn run(self) -> ExitCode {
        let ended = block_on(async {
            let endpoints = self.endpoints.parse()?;
            match std::io::stdout().is_terminal() {
                true => Ok(self.live(endpoints).await),
                false => Ok(self.once(endpoints).await),
            }
        });
        ended.unwrap_or_else(|error: Error| connect::fail(&error))
    }

    async fn read(&self, endpoints: &[String]) -> Picture {
        Picture::take(endpoints, &self.endpoints.security(), &self.prefix).await
    }

    /// Prints one picture.
    async fn once(&self, endpoints: Vec<String>) -> ExitCode {
        let mut view = View::default();
        view.update(self.read(&endpoints).await);
        frame::whole(&view).iter().for_each(|line| print_line(line));
        ExitCode::from(if view.has_answer() { 0 } else { 69 })
    }

    /// Shows pictures until the person at the terminal or a signal ends it.
    async fn live(&self, endpoints: Vec<String>) -> ExitCode {
        let failed = |what: &str, error: std::io::Error| {
            print_error(format!("cannot {what}: {error}"));
            ExitCode::from(71)
        };
        let mut signals = match StopSignals::listen() {
            Ok(signals) => signals,
            Err(error) => return failed("listen for signals", error),
        };
        let mut resized = match signal(SignalKind::window_change()) {
            Ok(resized) => resized,
            Err(error) => return failed("listen for changes of the window", error),
        };
        let screen = match Screen::enter() {
            Ok(screen) => screen,
            Err(error) => return failed("use the terminal", error),
        };
        screen.restore_before_panics();
        let mut pressed = keys::listen();
        let mut view = View::with_colour(table::has_colour());
        let reading = self.read(&endpoints);
        tokio::pin!(reading);
        let next = sleep(Duration::ZERO);
        tokio::pin!(next);
        let mut is_reading = true;
        loop {
            // A terminal that is gone shows nothing: end.
            if screen.draw(&frame::live(&mut view, screen.size())).is_err() {
                break;
            }
            tokio::select! {
                picture = &mut reading, if is_reading => {
                    view.update(picture);
                    is_reading = false;
                    next.set(sleep(self.interval));
                }
                () = &mut next, if !is_reading => {
                    reading.set(self.read(&endpoints));
                    is_reading = true;
                }
                Some(key) = pressed.recv() => if view.press(key) { break },
                Some(()) = resized.recv() => {}
                _ = signals.next() => break,
                () = sleep(REDRAW_INTERVAL) => {}
            }
        }
        ExitCode::SUCCESS
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if interval < Duration::from_millis(100) { Err("the interval must be at least 100ms".into()) } else { Ok(interval) }
}
