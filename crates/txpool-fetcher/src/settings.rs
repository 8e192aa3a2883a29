//! The configuration of a running fetcher.

use crate::{
    config::{Announcements, Endpoint, FetcherConfig},
    in_process_pool::InProcess,
    limits::{DEFERRABLE_SLOTS, Limits},
};

/// What was configured, with what is derived from it. It never changes.
pub(crate) struct Settings {
    pub(crate) config: FetcherConfig,
    pub(crate) limits: Limits,
}

impl Settings {
    /// The pool of a source, if it is in this process.
    pub(crate) fn in_process_pool(&self, source: usize) -> Option<&InProcess> {
        match &self.config.sources[source] {
            Endpoint::InProcess(pool) => Some(pool),
            Endpoint::Ipc(_) | Endpoint::Ws(_) => None,
        }
    }

    /// Whether a source may announce objects.
    pub(crate) fn has_objects(&self, source: usize) -> bool {
        self.config.announcements != Announcements::Hashes && self.in_process_pool(source).is_none()
    }

    /// Whether this source's announced senders are used without recovery.
    pub(crate) fn trusts_sender_of(&self, source: usize) -> bool {
        let is_ipc = matches!(self.config.sources[source], Endpoint::Ipc(_));
        self.config.trust_node_sender.unwrap_or(is_ipc)
    }

    /// How many of the slots deferrable work may hold: one for each source at least, if that is at most a quarter of them.
    pub(crate) fn deferrable_slots(&self) -> usize {
        let FetcherConfig { fetch_slots: slots, sources, .. } = &self.config;
        let few = || DEFERRABLE_SLOTS.max(sources.len()).min((slots / 4).max(1));
        self.limits.deferrable_slots.unwrap_or_else(few).min(*slots)
    }

    /// How many of a source's request connections carry deferrable fetches too.
    pub(crate) fn deferrable_connections(&self) -> usize {
        self.limits.deferrable_connections.min(self.config.request_connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(config: FetcherConfig) -> Settings {
        Settings { config, limits: Limits::default() }
    }

    #[test]
    fn an_announced_sender_is_trusted_over_ipc_alone_unless_it_is_said_otherwise() {
        let sources = [Endpoint::Ipc("/a".into()), Endpoint::Ws("ws://h:1".into())];
        for (trust, expected) in
            [(None, [true, false]), (Some(false), [false; 2]), (Some(true), [true; 2])]
        {
            let config =
                FetcherConfig { trust_node_sender: trust, ..FetcherConfig::new(sources.clone()) };
            let settings = settings(config);
            assert_eq!([0, 1].map(|source| settings.trusts_sender_of(source)), expected);
        }
    }

    #[test]
    fn deferrable_work_holds_two_slots_or_one_for_each_source_and_at_most_a_quarter() {
        for (fetch_slots, sources, deferrable) in [
            (1, 1, 1),
            (4, 1, 1),
            (7, 1, 1),
            (8, 1, 2),
            (64, 1, 2),
            (64, 2, 2),
            (64, 16, 16),
            (16, 5, 4),
        ] {
            let sources = (0..sources).map(|source| Endpoint::Ipc(source.to_string().into()));
            let config = FetcherConfig { fetch_slots, ..FetcherConfig::new(sources) };
            assert_eq!(settings(config).deferrable_slots(), deferrable);
        }
    }
}
