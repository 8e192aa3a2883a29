//! The states of the load, and their order.

crate::labels! {
    /// The load of the process: the worst state of its queues. The gauge shows a state as its
    /// number.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum LoadState {
        /// All work runs.
        #[default]
        Normal = "normal",
        /// Deferrable work is deferred.
        Elevated = "elevated",
        /// Deferrable work is deferred, and a queue is about to overflow.
        Critical = "critical",
    }
}
