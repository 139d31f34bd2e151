//! Resources that several tests use at the same time: made for the first of them, dropped with the
//! last.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A thing that tests share. A static is never dropped, and what it held would stay behind: so this
/// holds a reference that keeps nothing alive. The tests of a module run one after the other, and
/// overlap, so that it is rarely made twice.
pub struct Shared<T>(Mutex<Weak<T>>);

impl<T> Shared<T> {
    /// Nothing is made yet.
    pub const fn new() -> Shared<T> {
        Shared(Mutex::new(Weak::new()))
    }

    /// What the others use, or else what `make` makes.
    pub fn get_or_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let mut shared = self.0.lock();
        if let Some(made) = shared.upgrade() {
            return Ok(made);
        }
        let made = Arc::new(make()?);
        *shared = Arc::downgrade(&made);
        Ok(made)
    }
}
