//! The core's thread: drives the driver with channels and the monotonic clock.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Sender, bounded, select};

use super::channel::CoreInbox;
use super::driver::{Batch, Driver, DriverParts};
use super::transport::Transport;
use crate::limits;
use crate::stopwatch::Stopwatch;
use crate::storage::StorageError;

/// Starts the core's thread, and waits until the node has recovered: before that, there is no state
/// that a client could be shown. The thread ends with [`Event::Stop`](super::Event::Stop), or with
/// the error of a failed write; then the process must end too, because the content of the disk is
/// unknown.
///
/// # Errors
/// If the thread cannot be started.
pub fn start<T>(inbox: CoreInbox, parts: DriverParts<T>) -> std::io::Result<JoinHandle<Result<(), StorageError>>>
where
    T: Transport + Send + 'static,
{
    let (recovered, has_recovered) = bounded(1);
    let thread = std::thread::Builder::new().name("core".into()).spawn(move || run(&inbox, parts, &recovered))?;
    // An error means that the thread has panicked: its caller joins it.
    let _ = has_recovered.recv();
    Ok(thread)
}

/// Runs the node until it is stopped or a write fails.
fn run<T: Transport>(inbox: &CoreInbox, parts: DriverParts<T>, recovered: &Sender<()>) -> Result<(), StorageError> {
    let metrics = Arc::clone(&parts.metrics);
    let mut driver = Driver::new(parts, Instant::now());
    let _ = recovered.send(());
    let mut batch = Batch::default();
    while !driver.may_stop() && batch.fill(inbox, driver.next_alarm()) {
        let began = Instant::now();
        driver.iterate(&mut batch, began)?;
        Stopwatch::since(began).observe(&metrics.core_iteration_seconds);
    }
    driver.shut_down();
    Ok(())
}

impl Batch {
    /// Waits for an input or the alarm, then takes all inputs there are, within limits. Returns
    /// `false` when no sender is left.
    fn fill(&mut self, inbox: &CoreInbox, alarm: Instant) -> bool {
        let first = select! {
            recv(inbox.messages) -> messages => messages.map(|messages| self.messages.extend(messages)).is_ok(),
            recv(inbox.events) -> event => event.map(|event| self.events.push(event)).is_ok(),
            default(alarm.saturating_duration_since(Instant::now())) => true,
        };
        let messages = inbox.messages.try_iter().take(limits::CORE_BATCH);
        messages.for_each(|messages| self.messages.extend(messages));
        self.events.extend(inbox.events.try_iter().take(limits::CORE_BATCH));
        first
    }
}
