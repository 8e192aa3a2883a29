//! What callers may have at once, and how much work they may cause.

pub(crate) mod active;
pub(crate) mod budget;
pub(crate) mod callers;
pub(crate) mod deferral;
pub(crate) mod quota;
