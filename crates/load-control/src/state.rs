//! How high the load is.

/// The load of the process: the worst state of its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LoadState {
    /// All work runs.
    #[default]
    Normal = 0,
    /// Deferrable work is deferred.
    Elevated = 1,
    /// As [`Self::Elevated`], and the queue is about to overflow.
    Critical = 2,
}

impl LoadState {
    /// In the order of their numbers, which are the values of the gauge.
    pub const ALL: [Self; 3] = [Self::Normal, Self::Elevated, Self::Critical];

    /// Its metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Elevated => "elevated",
            Self::Critical => "critical",
        }
    }
}
