//! Publishes a message once more if its acknowledgement does not come soon. The stream recognises
//! the copy by its message id.

use std::{pin::pin, time::Duration};

use futures::future::{Either, select};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::response::Response;

/// The shortest and the longest pause before a message is published once more: some hundred times
/// an acknowledgement within a region. A leader that steps down drops messages without a response,
/// and its successor gets the later messages meanwhile. Without a leader the server responds at
/// once that the message was not stored.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(500);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Returns the response to a message that was published now. `first` is the response to the first
/// copy; `publish_again` publishes the second one, after a pause, unless the first one is answered
/// for good before. `jitter` is between 0 and 1, so that many messages do not come again at once.
///
/// A message is published twice at most, so a slow server gets no more than twice the load. The
/// futures that are passed in have timeouts.
pub(crate) async fn with_one_retry<F: Future<Output = Response>>(
    first: impl Future<Output = Response>,
    publish_again: impl FnOnce() -> F,
    jitter: f64,
) -> Response {
    let pause = MIN_RETRY_DELAY + (MAX_RETRY_DELAY - MIN_RETRY_DELAY).mul_f64(jitter);
    let retry_at = Instant::now() + pause;
    let mut first = pin!(first);
    match timeout_at(retry_at, &mut first).await {
        Ok(response) if response.is_final() => return response,
        Ok(_) => {
            sleep_until(retry_at).await;
            return publish_again().await;
        }
        Err(_) => {}
    }
    match select(first, pin!(publish_again())).await {
        Either::Left((response, _)) | Either::Right((response, _)) if response.is_final() => {
            response
        }
        Either::Left((_, second)) => second.await,
        Either::Right((_, first)) => first.await,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::sleep;

    use super::*;
    use crate::state::State;

    const STORED: Response = Response::Stored { sequence: 1, is_duplicate: false };
    const DUPLICATE: Response = Response::Stored { sequence: 1, is_duplicate: true };
    const UNAVAILABLE: Response = Response::RetryLater(State::Unavailable);

    /// A response, and after how many milliseconds it comes.
    type Delayed = (u64, Response);

    async fn respond((after_ms, response): Delayed) -> Response {
        sleep(Duration::from_millis(after_ms)).await;
        response
    }

    /// Returns the response to a message, after how many milliseconds it came, and whether the
    /// message was published twice.
    async fn run(first: Delayed, second: Delayed) -> (Response, u128, bool) {
        let began = Instant::now();
        let is_repeated = Cell::new(false);
        let publish_again = || {
            is_repeated.set(true);
            respond(second)
        };
        let response = with_one_retry(respond(first), publish_again, 0.0).await;
        (response, began.elapsed().as_millis(), is_repeated.get())
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_is_published_once_more_if_it_may_have_been_dropped() {
        assert_eq!(run((3, STORED), (3, DUPLICATE)).await, (STORED, 3, false));
        // The first copy is lost.
        assert_eq!(run((5_000, UNAVAILABLE), (3, STORED)).await, (STORED, 503, true));
        // The server is slow, and both copies arrive.
        assert_eq!(run((800, STORED), (800, DUPLICATE)).await, (STORED, 800, true));
        // The server has no leader for a moment, or has the message of another machine in process.
        assert_eq!(run((3, UNAVAILABLE), (3, STORED)).await, (STORED, 503, true));
        assert_eq!(run((3, Response::InProcess), (3, DUPLICATE)).await, (DUPLICATE, 503, true));
        // One copy is refused for the time being, and the other one is stored late.
        assert_eq!(run((900, STORED), (100, UNAVAILABLE)).await, (STORED, 900, true));
        assert_eq!(run((600, UNAVAILABLE), (200, STORED)).await, (STORED, 700, true));
        assert_eq!(run((5_000, UNAVAILABLE), (5_000, UNAVAILABLE)).await.0, UNAVAILABLE);
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_is_random_and_at_most_a_second() {
        for (jitter, pause_ms) in [(0.0, 500), (0.5, 750), (1.0, 1_000)] {
            let began = Instant::now();
            let publish_again = || respond((0, STORED));
            with_one_retry(respond((5_000, UNAVAILABLE)), publish_again, jitter).await;
            assert_eq!(began.elapsed().as_millis(), pause_ms);
        }
    }
}
