//! Subscribers learn that nothing feeds the pool any more.

use order_pool::{Event, OrderPool, Subscription};

use crate::common::{insert_all, pool};

/// Reads everything that there is now: how many orders were added, and how often the feed ended.
fn read(subscription: &mut Subscription) -> (usize, usize) {
    let (mut added, mut ended) = (0, 0);
    while let Some(event) = subscription.try_next() {
        match event.expect("no lag") {
            Event::Added(_) => added += 1,
            Event::FeedEnded => ended += 1,
            other => panic!("{other:?}"),
        }
    }
    (added, ended)
}

#[test]
fn subscribers_learn_when_the_last_source_has_ended() {
    let pool: OrderPool = pool();
    let mut subscription = pool.subscribe(1);
    let feeds = [pool.feed(), pool.feed()];
    insert_all(&pool, 0..1);
    let [first, second] = feeds;
    drop(first);
    assert_eq!(read(&mut subscription), (1, 0), "the second source still feeds it");
    drop(second);
    assert_eq!(read(&mut subscription), (0, 1));
    // Also one that joins later, or starts again after it was too slow.
    assert_eq!(read(&mut pool.subscribe(1)), (1, 1));
    subscription.resync();
    assert_eq!(read(&mut subscription), (1, 1));
    // One by one: no event is lost between two reads.
    let mut slow = pool.subscribe_all();
    let mut ended = 0;
    while slow.visit(1, |event| ended += usize::from(matches!(event, Event::FeedEnded))) != Ok(0) {}
    assert_eq!(ended, 1);
    // Until another source starts.
    let third = pool.feed();
    assert_eq!(read(&mut pool.subscribe(1)), (1, 0));
    drop(third);
    assert_eq!(read(&mut subscription), (0, 1));
}

#[test]
fn a_source_keeps_no_pool_alive() {
    let pool: OrderPool = pool();
    let mut subscription = pool.subscribe_all();
    let feed = pool.feed();
    drop(pool);
    assert!(subscription.next_blocking().is_none(), "the pool is gone");
    drop(feed);
    assert!(subscription.next_blocking().is_none());
}
