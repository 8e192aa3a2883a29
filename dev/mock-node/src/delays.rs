//! Delays answers, each by its own time, on a thread whose clock is finer than tokio's millisecond.

use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Instant,
};

/// A delayed answer: when it is due, and the function that delivers it.
pub(crate) type Held = (Instant, Box<dyn FnOnce() + Send>);

/// Delivers answers until the sender is dropped. Answers that are still delayed then are lost.
pub(crate) fn deliver(receiver: &Receiver<Held>) {
    // The number keeps the order of answers that are due at the same time.
    let mut held = BTreeMap::new();
    for number in 0_u64.. {
        let received = match held.first_key_value() {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(((due, _), _)) => {
                receiver.recv_timeout(Instant::saturating_duration_since(due, Instant::now()))
            }
        };
        match received {
            Ok((due, deliver)) => _ = held.insert((due, number), deliver),
            Err(RecvTimeoutError::Timeout) => held.pop_first().expect("an answer was due").1(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
