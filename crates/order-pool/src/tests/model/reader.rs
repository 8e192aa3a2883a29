//! A reader of the pool, and the events that it must see.

use super::*;

/// A subscription, and the events that it must show next.
pub(super) struct Reader {
    pub(super) real: Subscription,
    pub(super) block: Option<u64>,
    /// The rest of its replay.
    pub(super) replay: VecDeque<(usize, String)>,
    pub(super) next: usize,
}

impl Reader {
    pub(super) fn resync(&mut self, model: &Model) {
        self.real.resync();
        self.replay = model.snapshot(self.block);
        self.next = model.log.len();
    }

    pub(super) fn read(&mut self, model: &Model, max: usize) {
        for _ in 0..max {
            let is_others = |(_, only): &Line| !concerns(*only, self.block);
            while self.replay.is_empty() && model.log.get(self.next).is_some_and(is_others) {
                self.next += 1;
            }
            match self.real.try_next() {
                Some(Err(lagged)) => {
                    let left = self.next;
                    // The count is exact, and the log has wrapped before.
                    self.next = model.log.len() - self.real.behind() as usize;
                    assert!(lagged.missed > 0);
                    assert!(model.log.len() - self.next >= LOG_EVENTS, "it forgot too early");
                    if lagged.replay_unfinished {
                        // The replay continues, as of the oldest event in the log.
                        let head = self.replay.pop_front_if(|(_, line)| line.starts_with('h'));
                        let left = self.replay.front().map_or(left, |(seq, _)| *seq);
                        let live = model.live(left..self.next, self.block);
                        self.replay = head.into_iter().chain(live).collect();
                    }
                }
                found => {
                    let expected = self.replay.pop_front().map(|(_, line)| line).or_else(|| {
                        let (line, _) = model.log.get(self.next)?;
                        self.next += 1;
                        Some(line.clone())
                    });
                    assert_eq!(found.map(|event| line(event.expect("no lag"))), expected);
                }
            }
        }
    }
}

pub(super) fn head_line(head: &Head) -> String {
    format!("h{head:?}")
}

pub(super) fn line(event: Event) -> String {
    match event {
        Event::Added(order) => format!("+{}", order.id().hash()),
        Event::Removed { order, reason } => format!("-{} {reason:?}", order.id().hash()),
        Event::BecamePublic(order) => format!("p{}", order.id().hash()),
        Event::Held { order, holder, .. } => format!("o{} {holder:?}", order.id().hash()),
        Event::Cancelled(x) => format!("x{} {:?}", key_number(x.key), x.nonce),
        Event::CancelledPrivate(x) => format!("w{} {}", x.hash, x.signer),
        Event::CancellationForgotten(key) => format!("f{}", key_number(key)),
        Event::Head(head) => head_line(&head),
        Event::FeedEnded => "e".to_owned(),
    }
}
