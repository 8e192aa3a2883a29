//! Answers that are held back, each for its own time, on a thread with a finer clock than tokio's millisecond.

use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Instant,
};

/// When something is due, and how it is delivered.
pub(crate) type Held = (Instant, Box<dyn FnOnce() + Send>);

/// Delivers until the sender is gone; what is held then is not delivered.
pub(crate) fn deliver(receiver: &Receiver<Held>) {
    // The number keeps equals in their order.
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
            Err(RecvTimeoutError::Timeout) => held.pop_first().expect("just seen").1(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
