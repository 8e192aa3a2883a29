//! A value of the host's, attached to an order.

use std::{
    any::Any,
    sync::{Arc, OnceLock},
};

/// A value of the host's that stays with an order for as long as any handle to the order exists,
/// through its removal and its return after a reorg. Set once, read without a lock; for a value
/// that changes, use a type with a lock or an atomic. Not counted in the order's size.
#[derive(Clone, Debug, Default)]
pub struct Extension(OnceLock<Arc<dyn Any + Send + Sync>>);

impl Extension {
    /// Sets the value. Only the first call has an effect.
    ///
    /// # Errors
    /// Returns `value` if there is one already.
    pub fn set(&self, value: Arc<dyn Any + Send + Sync>) -> Result<(), Arc<dyn Any + Send + Sync>> {
        self.0.set(value)
    }

    /// The value, if there is one and it is a `T`.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.get()?).downcast().ok()
    }

    /// The value, created now if there is none; `None` if there is one of another type. Concurrent
    /// callers all get the same value.
    pub fn get_or_init<T: Send + Sync + 'static>(
        &self,
        make: impl FnOnce() -> T,
    ) -> Option<Arc<T>> {
        Arc::clone(self.0.get_or_init(|| Arc::new(make()))).downcast().ok()
    }
}
