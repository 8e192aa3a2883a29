//! What the host attaches to an order.

use std::{
    any::Any,
    sync::{Arc, OnceLock},
};

/// A value of the host's that stays with an order: for as long as anybody holds the order, through its
/// removal and its return after a reorg. Set once, read without a lock; a value that must change brings
/// a lock or an atomic of its own. Not counted in the order's size.
#[derive(Clone, Debug, Default)]
pub struct Extension(OnceLock<Arc<dyn Any + Send + Sync>>);

impl Extension {
    /// Sets the value. The first one stays.
    ///
    /// # Errors
    /// Hands the value back if there is one already.
    pub fn set(&self, value: Arc<dyn Any + Send + Sync>) -> Result<(), Arc<dyn Any + Send + Sync>> {
        self.0.set(value)
    }

    /// The value, if there is one and it is a `T`.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.get()?).downcast().ok()
    }

    /// The value, made now if there is none; `None` if there is one and it is no `T`. Of several who make
    /// one at the same time all get the same.
    pub fn get_or_init<T: Send + Sync + 'static>(
        &self,
        make: impl FnOnce() -> T,
    ) -> Option<Arc<T>> {
        Arc::clone(self.0.get_or_init(|| Arc::new(make()))).downcast().ok()
    }
}
