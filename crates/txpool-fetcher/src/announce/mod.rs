//! Subscribes to a node's announcements and reads them.

pub(crate) mod objects;
pub(crate) mod subscription;
