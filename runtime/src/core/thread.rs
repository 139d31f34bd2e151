//! The core's thread: drives the driver with channels and the monotonic clock.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::select;

use super::CoreInbox;
use super::driver::{Batch, Driver, DriverParts};
use super::transport::Transport;
use crate::limits;
use crate::stopwatch::Stopwatch;
use crate::storage::StorageError;

/// Runs the node until it is stopped or a write fails.
pub(super) fn run<T: Transport>(inbox: &CoreInbox, parts: DriverParts<T>) -> Result<(), StorageError> {
    let metrics = Arc::clone(&parts.metrics);
    let mut driver = Driver::new(parts, Instant::now());
    let mut batch = Batch::default();
    while !driver.may_stop() && batch.fill(inbox, driver.next_alarm()) {
        let began = Instant::now();
        driver.round(&mut batch, began)?;
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
