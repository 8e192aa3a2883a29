//! Private transactions: only their signer cancels them, within the shares of their holders and the
//! funds of their senders.

use std::time::{Duration, SystemTime};

use alloy_primitives::{B256, U256};

use order_pool::{
    BundleParts, CANCELLATION_RETENTION, CancelPrivateOutcome, Clock, Funds, Holder, InsertOutcome,
    MAX_UNKNOWN_CANCELLATIONS, MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER, Order, OrderPool, Origin,
    PoolConfig, PrivateTerms, RejectReason, Transaction,
};
use testkit::configured;

use crate::common::{
    Spec, address, bundle, caller, head, journal, journal_with_heads, nth, pool_with_clock,
    private_from, tx_from, upkeep, variant,
};

fn pool(config: PoolConfig) -> (OrderPool, Clock) {
    let (pool, clock) = pool_with_clock(config);
    pool.on_head(head(10, 0, 0, &[]));
    (pool, clock)
}

/// Returns a private transaction that a signer sent at a time.
fn sent(sender: u64, signer: u64, sent_at: SystemTime) -> Transaction {
    let terms = PrivateTerms { signer: Some(address(signer)), max_block: 20 };
    Transaction::private(nth(sender).recovered().clone(), terms, sent_at)
}

/// Keys cost nothing. Counted by signer, cancellations filled the log, and those of others were
/// forgotten.
#[test]
fn cancellations_by_fresh_signers_neither_fill_the_log_nor_displace_others() {
    let (pool, _) = pool(PoolConfig::default());
    let sent_at = SystemTime::now();
    let cancel = |n: u64, signer, holder| {
        pool.cancel_private(&B256::left_padding_from(&n.to_be_bytes()), signer, holder, sent_at)
    };
    pool.cancel_private(nth(1).hash(), address(7), caller(0), sent_at);
    let mut subscription = pool.subscribe_all();
    journal(&mut subscription);
    // One caller, and then 255 callers, send more than are remembered.
    (0..20_000).for_each(|n| _ = cancel(n, address(1_000 + n), caller(1)));
    assert_eq!(journal(&mut subscription).len(), MAX_UNKNOWN_CANCELLATIONS);
    assert_eq!(pool.stats().keys_forgotten, 0);
    (0..20_000).for_each(|n| _ = cancel(n, address(30_000 + n), caller(1 + n % 255)));
    assert!(pool.stats().keys_forgotten > 8_000, "displaced cancellations are counted");
    let insert = |signer| variant(pool.insert_transaction(sent(1, signer, sent_at)));
    assert_eq!((insert(7), insert(8).as_str()), ("Superseded".to_owned(), "Added"));
}

#[test]
fn a_cancellation_that_overtakes_its_transaction_refuses_it() {
    let (pool, clock) = pool(PoolConfig::default());
    let now = SystemTime::now();
    let after = |seconds| now + Duration::from_secs(seconds);
    let cancel =
        |n, seconds| pool.cancel_private(nth(n).hash(), address(7), Holder::Host, after(seconds));
    let insert =
        |n, signer, seconds| variant(pool.insert_transaction(sent(n, signer, after(seconds))));
    assert_eq!(cancel(1, 100), CancelPrivateOutcome::Unknown);
    assert_eq!(insert(1, 7, 100), "Superseded");
    assert_eq!(insert(1, 8, 100), "Added", "of another signer");
    assert_eq!(cancel(2, 100), CancelPrivateOutcome::Unknown);
    assert_eq!(insert(2, 7, 101), "Added", "sent again");
    // The first cancellation is sent again, as another machine publishes it.
    let mut late_subscription = pool.subscribe_all();
    assert_eq!(cancel(2, 100), CancelPrivateOutcome::Unknown);
    assert_eq!(cancel(2, 99), CancelPrivateOutcome::Unknown);
    let orders = [1, 2].map(|n| [format!("x{}", nth(n).hash()), format!("+tx {}", nth(n).hash())]);
    assert_eq!(
        journal(&mut late_subscription),
        orders.concat(),
        "a new subscriber reads each once"
    );
    assert_eq!(cancel(2, 101), CancelPrivateOutcome::Cancelled);
    clock.advance(CANCELLATION_RETENTION);
    upkeep(&pool);
    assert_eq!(insert(2, 7, 101), "Added");
    assert_eq!(journal(&mut pool.subscribe_all()).len(), 2, "no cancellation is replayed any more");
    // A signer cannot fill the log with cancellations of unknown transactions.
    let mut subscription = pool.subscribe_all();
    journal(&mut subscription);
    (1_000..3_000).for_each(|n| _ = cancel(n, 100));
    assert_eq!(journal(&mut subscription).len(), MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER);
    assert_eq!(
        cancel(2, 200),
        CancelPrivateOutcome::Cancelled,
        "a pooled transaction is cancelled"
    );
    assert_eq!(journal(&mut subscription).len(), 2);
}

/// Cancellations of pooled transactions counted too: after 64 of them a caller could not cancel a
/// transaction of another machine of a fleet.
#[test]
fn cancellations_of_pooled_transactions_do_not_count_as_unknown() {
    let (pool, _) = pool(PoolConfig::default());
    let now = SystemTime::now();
    let cancel = |n: u64| pool.cancel_private(nth(n).hash(), address(7), caller(1), now);
    for n in 0..2 * MAX_UNKNOWN_CANCELLATIONS as u64 {
        pool.insert_transaction(sent(n, 7, now).held_by(caller(1)));
        assert_eq!(cancel(n), CancelPrivateOutcome::Cancelled);
    }
    let mut subscription = pool.subscribe_all();
    journal(&mut subscription);
    assert_eq!(cancel(9_999), CancelPrivateOutcome::Unknown);
    assert_eq!(journal(&mut subscription), [format!("x{}", nth(9_999).hash())]);
}

/// A caller that cancelled one unknown transaction again and again, and fresh keys behind a front,
/// could fill the log.
#[test]
fn repeated_cancellations_of_unknown_transactions_are_bounded() {
    let (pool, _) = pool(PoolConfig::default());
    let now = SystemTime::now();
    let mut subscription = pool.subscribe_all();
    journal(&mut subscription);
    for n in 0..1_000 {
        let cancelled_at = now + Duration::from_micros(n);
        pool.cancel_private(nth(1).hash(), address(7), caller(1), cancelled_at);
    }
    assert_eq!(journal(&mut subscription).len(), MAX_UNKNOWN_CANCELLATIONS);
    for n in 0..1_000 {
        let signer = address(1_000 + n);
        let holder = Holder::Forwarded { front: [10, 9, 9, 9].into(), signer: Some(signer) };
        pool.cancel_private(nth(2).hash(), signer, holder, now);
    }
    assert_eq!(journal(&mut subscription).len(), 8 * MAX_UNKNOWN_CANCELLATIONS);
}

/// Subscribers heard nothing of it, and a cancellation from before removed it.
#[test]
fn a_private_transaction_that_its_signer_sends_again_counts_as_sent_then() {
    let (pool, _) = pool(PoolConfig::default());
    let began = SystemTime::now();
    let after = |seconds| began + Duration::from_secs(seconds);
    pool.insert_transaction(sent(1, 7, after(0)));
    let mut subscription = pool.subscribe_all();
    journal(&mut subscription);
    let outcome = pool.insert_transaction(sent(1, 7, after(2)));
    assert_eq!((outcome, journal(&mut subscription).len()), (InsertOutcome::Known, 1));
    pool.insert_transaction(sent(1, 7, after(1)));
    assert_eq!(journal(&mut subscription).len(), 0, "it arrives late");
    let cancel =
        |seconds| pool.cancel_private(nth(1).hash(), address(7), Holder::Host, after(seconds));
    assert_eq!(cancel(1), CancelPrivateOutcome::Unknown);
    assert!(pool.contains(nth(1).hash()));
    assert_eq!(cancel(2), CancelPrivateOutcome::Cancelled);
}

/// The cancellations of the last 15 minutes, which a builder of a fleet reads when it starts,
/// displaced new ones for a minute: a transaction that arrived after its cancellation was accepted.
#[test]
fn a_cancellation_older_than_a_minute_is_not_remembered() {
    let (pool, clock) = pool(PoolConfig::default());
    let now = SystemTime::now();
    let cancel = |n, cancelled_at| {
        pool.cancel_private(nth(n).hash(), address(7), Holder::Host, cancelled_at)
    };
    let insert = |n, sent_at| variant(pool.insert_transaction(sent(n, 7, sent_at)));
    let before = now - CANCELLATION_RETENTION;
    (1_000..1_200).for_each(|n| _ = cancel(n, before));
    assert_eq!(insert(1, before), "Added");
    assert_eq!(cancel(1, before), CancelPrivateOutcome::Cancelled, "it is pooled");
    assert_eq!(cancel(2, now), CancelPrivateOutcome::Unknown);
    assert_eq!(insert(2, now), "Superseded");
    let earlier = now - CANCELLATION_RETENTION + Duration::from_secs(30);
    cancel(3, earlier);
    assert_eq!(insert(3, earlier), "Superseded");
    clock.advance(Duration::from_secs(30));
    upkeep(&pool);
    assert_eq!((insert(3, earlier).as_str(), insert(2, now)), ("Added", "Superseded".to_owned()));
}

/// The machine that vouches for a transaction counts it for nobody. The builders of its fleet count
/// it for its senders, and know only those that it publishes.
#[test]
fn further_senders_of_a_vouched_transaction_are_published_until_it_is_public() {
    let (pool, _) = pool(PoolConfig::default());
    let sent_by = |origin, n| tx_from(Spec::default(), origin).held_by(caller(n));
    pool.insert_transaction(sent_by(Origin::Rpc, 1).vouched_for());
    let mut subscription = pool.subscribe_all();
    journal(&mut subscription);
    pool.insert_transaction(sent_by(Origin::Rpc, 1));
    assert_eq!(journal(&mut subscription).len(), 0);
    pool.insert_transaction(sent_by(Origin::Rpc, 2));
    pool.insert_transaction(sent_by(Origin::Mempool, 0));
    pool.insert_transaction(sent_by(Origin::Rpc, 3));
    let events = journal(&mut subscription);
    assert!(events[0].starts_with("Held") && events[1].starts_with("BecamePublic"), "{events:?}");
    assert_eq!(events.len(), 2);
}

/// The host counts it in the node's share, as if the node had announced it. So its signer was told
/// that it had become public, and it stayed.
#[test]
fn a_private_transaction_for_which_the_host_vouches_can_be_cancelled() {
    let (pool, _) = pool(PoolConfig::default());
    let now = SystemTime::now();
    let insert = |n| pool.insert_transaction(sent(n, 7, now).held_by(caller(1)).vouched_for());
    let cancel = |n| pool.cancel_private(nth(n).hash(), address(7), caller(1), now);
    insert(1);
    assert_eq!(cancel(1), CancelPrivateOutcome::Cancelled);
    assert!(pool.is_empty());
    insert(2);
    pool.insert_transaction(sent(2, 8, now).held_by(caller(2)));
    assert_eq!(cancel(2), CancelPrivateOutcome::Public, "another signer has sent it too");
    insert(3);
    pool.insert_transaction(nth(3));
    assert_eq!(cancel(3), CancelPrivateOutcome::Public, "the node has announced it");
}

/// The host holds as many as it may. Each step removes at most 256, and the head is published after
/// the first.
#[test]
fn a_head_waits_for_no_more_than_a_step_of_private_transactions() {
    let (pool, _) = pool(PoolConfig::default());
    let count = 9_000;
    let terms = PrivateTerms { signer: None, max_block: 11 };
    for n in 0..count {
        let tx = private_from(Spec { sender: n / 16, nonce: n % 16, ..Spec::default() }, terms);
        assert_eq!(pool.insert_transaction(tx), InsertOutcome::Added);
    }
    let mut subscription = pool.subscribe_all();
    journal(&mut subscription);
    pool.on_head(head(11, 0, 0, &[]));
    let events = journal_with_heads(&mut subscription);
    let before = events.iter().position(|event| event == "head 11");
    assert_eq!(before, Some(256));
    assert_eq!((events.len(), pool.len()), (count as usize + 1, 0));
}

/// Each of the test's transactions costs at most 2.1 million wei. Anybody may send a transaction
/// that a sender has signed, for instance as the first one of a bundle, or after the sender has
/// replaced it.
#[test]
fn a_sender_needs_funds_for_its_holders_pooled_orders_only() {
    let (pool, _) = pool(PoolConfig::default());
    let terms = PrivateTerms { signer: Some(address(7)), max_block: 12 };
    let spec = |nonce, salt| Spec { nonce, salt, ..Spec::default() };
    let insert = |order: Order, next_nonce| {
        let balance_wei = U256::from(5_000_000);
        let funds = Funds { balance_wei, next_nonce, max_nonces_ahead: 16 };
        pool.insert(order, Some(&funds))
    };
    let private = |nonce| Order::Tx(private_from(spec(nonce, 0), terms));
    let bundled = |nonce, salt, dropping: bool| {
        let tx = tx_from(spec(nonce, salt), Origin::Rpc);
        let dropping_tx_hashes = if dropping { vec![*tx.hash()] } else { Vec::new() };
        let later = nth(nonce + 1);
        let (txs, block) = (vec![tx, later], Some(12));
        Order::Bundle(bundle(BundleParts { txs, block, dropping_tx_hashes, ..Default::default() }))
    };
    let refused = |outcome| {
        let (sender, balance_wei) = (address(0), U256::from(5_000_000));
        let cost_wei = U256::from(6_300_000);
        outcome
            == InsertOutcome::Rejected(RejectReason::InsufficientFunds {
                sender,
                balance_wei,
                cost_wei,
            })
    };
    for nonce in [3, 4] {
        let strangers = tx_from(spec(nonce, 1), Origin::Rpc).held_by(caller(2));
        assert_eq!(insert(Order::Tx(strangers), 0), InsertOutcome::Added);
    }
    assert_eq!(insert(private(0), 0), InsertOutcome::Added);
    assert_eq!(insert(bundled(1, 0, false), 0), InsertOutcome::Added);
    assert_eq!(insert(bundled(1, 1, false), 0), InsertOutcome::Added, "one of the two at most");
    assert!(refused(insert(private(2), 0)) && refused(insert(bundled(2, 0, false), 0)));
    assert_eq!(insert(private(0), 0), InsertOutcome::Known);
    // A transaction that the bundle may omit does not count.
    assert_eq!(insert(bundled(2, 0, true), 0), InsertOutcome::Added);
    // Nor do a used nonce, a removed order, and a transaction that the node announces.
    assert_eq!(insert(private(2), 1), InsertOutcome::Added);
    pool.cancel_private(private(2).id().hash(), address(7), Holder::Host, SystemTime::now());
    pool.insert_transaction(tx_from(spec(0, 0), Origin::Mempool));
    assert_eq!(insert(private(3), 0), InsertOutcome::Added);
    assert!(refused(insert(private(4), 0)));
    pool.on_head(head(11, 0, 0, &[]));
    pool.on_head(head(12, 0, 0, &[]));
    assert_eq!(
        (pool.stats().external_txs, pool.stats().bundles),
        (2, 0),
        "only the stranger's orders are left"
    );
    for nonce in 13..15 {
        let terms = PrivateTerms { max_block: 20, ..terms };
        let tx = Order::Tx(private_from(spec(nonce, 0), terms));
        assert_eq!(insert(tx, 0), InsertOutcome::Added);
    }
}

#[test]
fn a_blob_transaction_finds_room_among_many_small_ones() {
    let (max_external_txs, max_external_tx_bytes) = (1_400, 4 << 20);
    let (pool, _) = pool(configured(PoolConfig::default(), |config| {
        config.max_external_txs = max_external_txs;
        config.max_external_tx_bytes = max_external_tx_bytes;
    }));
    let sized = |sender, input_bytes, holder| {
        tx_from(Spec { sender, input_bytes, ..Spec::default() }, Origin::Rpc).held_by(holder)
    };
    for n in 0..1_400 {
        pool.insert_transaction(sized(n, 2_000, Holder::Host));
    }
    let large = sized(2_000, 800_000, Holder::Signer(address(2)));
    let id = *large.hash();
    assert_eq!(pool.insert_transaction(large), InsertOutcome::Added);
    assert!(pool.contains(&id) && pool.stats().evicted > 64);
}
