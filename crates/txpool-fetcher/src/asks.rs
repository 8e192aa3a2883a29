//! Which connections there are to ask.

use std::sync::Arc;

use tokio::sync::watch;

use crate::link::Link;

/// The asking connections of all sources.
#[derive(Debug)]
pub(crate) struct Asks {
    links: watch::Sender<Vec<Vec<Arc<Link>>>>,
}

impl Asks {
    pub(crate) fn new(sources: usize) -> Self {
        Self { links: watch::Sender::new(vec![Vec::new(); sources]) }
    }

    pub(crate) fn set(&self, source: usize, links: Vec<Arc<Link>>) {
        self.links.send_modify(|all| all[source] = links);
    }

    pub(crate) fn is_up(&self, source: usize) -> bool {
        !self.links.borrow()[source].is_empty()
    }

    /// Those of `untried` that are connected, in their order; else the others, `first` before
    /// them. Waits until there is one.
    pub(crate) async fn up(&self, untried: &[usize], first: usize) -> Vec<usize> {
        let find = |all: &Vec<Vec<Arc<Link>>>| {
            let up = |source: &usize| !all[*source].is_empty();
            let mut found: Vec<usize> = untried.iter().copied().filter(up).collect();
            if found.is_empty() {
                let any = std::iter::once(first).chain((0..all.len()).filter(|i| *i != first));
                found.extend(any.filter(up));
            }
            found
        };
        let found = find(&self.links.borrow());
        if !found.is_empty() {
            return found;
        }
        let mut changes = self.links.subscribe();
        loop {
            let found = find(&changes.borrow_and_update());
            if !found.is_empty() {
                return found;
            }
            changes.changed().await.expect("the sender lives as long as this");
        }
    }

    /// A connection of `source`, else of another one. Waits until there is one.
    pub(crate) async fn pick(&self, source: usize) -> Arc<Link> {
        loop {
            let up = self.up(&[source], source).await;
            if let Some(link) = self.of(up[0]) {
                return link;
            }
        }
    }

    /// The connection of `source` with the fewest unanswered calls, if it has one.
    pub(crate) fn of(&self, source: usize) -> Option<Arc<Link>> {
        self.links.borrow()[source].iter().min_by_key(|link| link.unanswered()).cloned()
    }

    /// Takes a connection that proved dead out of use, before its source has noticed.
    pub(crate) fn lost(&self, source: usize, link: &Arc<Link>) {
        self.links.send_if_modified(|all| {
            let before = all[source].len();
            all[source].retain(|other| !Arc::ptr_eq(other, link));
            all[source].len() != before
        });
    }
}
