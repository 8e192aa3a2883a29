//! Private transactions: kept until a block, cancelled by their sender alone, never taken for public ones.

use std::time::{Duration, SystemTime};

use alloy_primitives::{B256, U256};

use order_pool::{
    BundleParts, CANCELLATION_RETENTION, CancelPrivateOutcome, Clock, DEFAULT_TX_RETENTION, Funds,
    Holder, InsertOutcome, MAX_UNKNOWN_CANCELLATIONS, Order, OrderPool, OrderStatus, Origin,
    PoolConfig, PrivateTerms, RejectReason,
};

use crate::common::{
    Spec, address, bundle, caller, head, journal, journal_with_heads, nth, pool_by_hand,
    private_from, tx_from, upkeep, variant,
};

fn pool(config: PoolConfig) -> (OrderPool, Clock) {
    let (pool, clock) = pool_by_hand(config);
    pool.on_head(head(10, 0, 0, &[]));
    (pool, clock)
}

/// Private until this block, by signer 7.
fn private(sender: u64, max_block: u64) -> order_pool::Transaction {
    let terms = PrivateTerms { signer: Some(address(7)), max_block };
    private_from(Spec { sender, ..Spec::default() }, terms)
}

/// The same, sent by a signer at a time.
fn sent(sender: u64, signer: u64, at: SystemTime) -> order_pool::Transaction {
    let terms = PrivateTerms { signer: Some(address(signer)), max_block: 20 };
    order_pool::Transaction::private(private(sender, 20).recovered().clone(), terms, at)
}

#[test]
fn a_private_transaction_is_kept_until_its_block_and_not_for_the_retention() {
    let (pool, clock) = pool(PoolConfig::default());
    let mut subscription = pool.subscribe_all();
    assert_eq!(pool.insert_transaction(private(1, 12)), InsertOutcome::Added);
    pool.insert_transaction(nth(2));
    let order = pool.get(nth(1).hash()).expect("it is pooled");
    let order = order.as_tx().expect("a transaction");
    assert_eq!((order.origin(), order.is_public()), (Origin::Private, false));
    let terms = PrivateTerms { signer: Some(address(7)), max_block: 12 };
    assert_eq!(order.private_terms(), Some(&terms));
    journal(&mut subscription);
    clock.advance(DEFAULT_TX_RETENTION);
    upkeep(&pool);
    let [one, two] = [1, 2].map(|n| *nth(n).hash());
    assert_eq!(journal(&mut subscription), [format!("-tx {two} Expired")]);
    pool.on_head(head(11, 0, 0, &[]));
    assert!(pool.contains(&one));
    pool.on_head(head(12, 0, 0, &[]));
    assert_eq!(journal(&mut subscription), [format!("-tx {one} BlockPassed")]);
    // Its sender may now try the public way, or once more this one.
    assert_eq!(pool.status(&one), OrderStatus::MayReturn);
    assert_eq!(pool.insert_transaction(private(1, 13)), InsertOutcome::Added);
    let passed = RejectReason::BlockPassed { value: 12, limit: 13 };
    assert_eq!(pool.insert_transaction(private(3, 12)), InsertOutcome::Rejected(passed));
    let too_far = RejectReason::BlockTooFar { value: 1 << 60, limit: 76 };
    assert_eq!(pool.insert_transaction(private(3, 1 << 60)), InsertOutcome::Rejected(too_far));
}

fn tx_of_caller(n: u64) -> order_pool::Transaction {
    tx_from(Spec { sender: n, ..Spec::default() }, Origin::Rpc)
}

#[test]
fn only_who_sent_it_cancels_it_and_only_while_it_is_private() {
    let (pool, _) = pool(PoolConfig::default());
    let mut subscription = pool.subscribe_all();
    let unsigned = PrivateTerms { signer: None, max_block: 20 };
    pool.insert_transaction(private(1, 20));
    pool.insert_transaction(private(2, 20));
    pool.insert_transaction(private_from(Spec { sender: 3, ..Spec::default() }, unsigned));
    pool.insert_transaction(tx_of_caller(4));
    pool.insert_transaction(nth(2));
    journal(&mut subscription);
    let cancel =
        |n, signer| pool.cancel_private(nth(n).hash(), address(signer), Holder::Host, None);
    assert_eq!(cancel(2, 7), CancelPrivateOutcome::Public);
    for (n, signer, why) in
        [(1, 8, "of another"), (3, 7, "of nobody"), (4, 7, "not private"), (5, 7, "not here")]
    {
        assert_eq!(cancel(n, signer), CancelPrivateOutcome::Unknown, "{why}");
    }
    let told = |n| format!("x{}", nth(n).hash());
    let others = [told(1), told(3), told(4), told(5)];
    assert_eq!(journal(&mut subscription), others, "another pool may have them");
    assert_eq!(cancel(1, 7), CancelPrivateOutcome::Cancelled);
    let removed = format!("-tx {} Cancelled", nth(1).hash());
    assert_eq!(journal(&mut subscription), [removed, told(1)]);
    assert_eq!(cancel(1, 7), CancelPrivateOutcome::Unknown, "no more");
    journal(&mut subscription);
    assert_eq!((pool.stats().cancellations, pool.stats().cancelled), (1, 1));
    assert_eq!(
        pool.insert_transaction(sent(1, 7, SystemTime::now())),
        InsertOutcome::Added,
        "sent again"
    );
}

/// Keys are free: by signer they filled everybody's log, and what others had cancelled was forgotten.
#[test]
fn cancellations_of_fresh_keys_displace_nobody_elses_and_fill_nobodys_log() {
    let (pool, _) = pool(PoolConfig::default());
    let sent_at = SystemTime::now();
    let cancel = |n: u64, signer, holder| {
        pool.cancel_private(
            &B256::left_padding_from(&n.to_be_bytes()),
            signer,
            holder,
            Some(sent_at),
        )
    };
    pool.cancel_private(nth(1).hash(), address(7), caller(0), Some(sent_at));
    let mut told = pool.subscribe_all();
    journal(&mut told);
    // More than are remembered, of one caller and of 255.
    (0..20_000).for_each(|n| _ = cancel(n, address(1_000 + n), caller(1)));
    assert_eq!(journal(&mut told).len(), MAX_UNKNOWN_CANCELLATIONS);
    assert_eq!(pool.stats().keys_forgotten, 0);
    (0..20_000).for_each(|n| _ = cancel(n, address(30_000 + n), caller(1 + n % 255)));
    assert!(pool.stats().keys_forgotten > 8_000, "what is displaced is counted");
    let insert = |signer| variant(pool.insert_transaction(sent(1, signer, sent_at)));
    assert_eq!((insert(7), insert(8).as_str()), ("Superseded".to_owned(), "Added"));
}

#[test]
fn a_cancellation_that_overtakes_its_transaction_holds_until_it_is_sent_again_or_forgotten() {
    let (pool, clock) = pool(PoolConfig::default());
    let now = SystemTime::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    let cancel = |n, seconds| {
        pool.cancel_private(nth(n).hash(), address(7), Holder::Host, Some(at(seconds)))
    };
    let insert =
        |n, signer, seconds| variant(pool.insert_transaction(sent(n, signer, at(seconds))));
    assert_eq!(cancel(1, 100), CancelPrivateOutcome::Unknown);
    assert_eq!(insert(1, 7, 100), "Superseded");
    assert_eq!(insert(1, 8, 100), "Added", "of another signer");
    assert_eq!(cancel(2, 100), CancelPrivateOutcome::Unknown);
    assert_eq!(insert(2, 7, 101), "Added", "sent again");
    // The first cancellation once more, as another machine publishes it.
    let mut late = pool.subscribe_all();
    assert_eq!(cancel(2, 100), CancelPrivateOutcome::Unknown);
    assert_eq!(cancel(2, 99), CancelPrivateOutcome::Unknown);
    let orders = [1, 2].map(|n| [format!("x{}", nth(n).hash()), format!("+tx {}", nth(n).hash())]);
    assert_eq!(journal(&mut late), orders.concat(), "a new subscriber is told, nobody twice");
    assert_eq!(cancel(2, 101), CancelPrivateOutcome::Cancelled);
    clock.advance(CANCELLATION_RETENTION);
    upkeep(&pool);
    assert_eq!(insert(2, 7, 101), "Added");
    assert_eq!(journal(&mut pool.subscribe_all()).len(), 2, "no cancellation is told any more");
    // A signer cannot fill the log with what nobody has.
    let mut told = pool.subscribe_all();
    journal(&mut told);
    (1_000..1_200).for_each(|n| _ = cancel(n, 100));
    assert_eq!(journal(&mut told).len(), MAX_UNKNOWN_CANCELLATIONS);
    assert_eq!(cancel(2, 200), CancelPrivateOutcome::Cancelled, "what is here");
    assert_eq!(journal(&mut told).len(), 2);
}

/// Those of the last 15 minutes, which a builder of a fleet reads when it starts, took the place of new ones for a minute: a
/// transaction that came after its cancellation was there.
#[test]
fn a_cancellation_of_more_than_a_minute_ago_is_not_remembered() {
    let (pool, clock) = pool(PoolConfig::default());
    let now = SystemTime::now();
    let cancel = |n, at| pool.cancel_private(nth(n).hash(), address(7), Holder::Host, Some(at));
    let insert = |n, at| variant(pool.insert_transaction(sent(n, 7, at)));
    let before = now - CANCELLATION_RETENTION;
    (1_000..1_200).for_each(|n| _ = cancel(n, before));
    assert_eq!(insert(1, before), "Added");
    assert_eq!(cancel(1, before), CancelPrivateOutcome::Cancelled, "what is here");
    assert_eq!(cancel(2, now), CancelPrivateOutcome::Unknown);
    assert_eq!(insert(2, now), "Superseded");
    let earlier = now - CANCELLATION_RETENTION + Duration::from_secs(30);
    cancel(3, earlier);
    assert_eq!(insert(3, earlier), "Superseded");
    clock.advance(Duration::from_secs(30));
    upkeep(&pool);
    assert_eq!((insert(3, earlier).as_str(), insert(2, now)), ("Added", "Superseded".to_owned()));
}

/// It was put back without a look at the cancellations, and built into the next block.
#[test]
fn one_that_was_cancelled_while_a_block_contained_it_stays_out_when_the_block_is_undone() {
    let (pool, clock) = pool(PoolConfig::default());
    let [cancelled, kept] = [1, 2].map(|n| private(n, 20));
    for tx in [&cancelled, &kept] {
        assert_eq!(pool.insert_transaction(tx.clone()), InsertOutcome::Added);
    }
    pool.on_head(head(11, 0, 0, &[*cancelled.hash(), *kept.hash()]));
    let outcome = pool.cancel_private(cancelled.hash(), address(7), Holder::Host, None);
    assert_eq!(outcome, CancelPrivateOutcome::Unknown);
    pool.on_head(head(11, 1, 0, &[]));
    assert_eq!([&cancelled, &kept].map(|tx| pool.contains(tx.hash())), [false, true]);
    // Nor does it come in when another machine publishes it, as long as the cancellation is known.
    assert_eq!(variant(pool.insert_transaction(cancelled.clone())), "Superseded");
    clock.advance(CANCELLATION_RETENTION);
    upkeep(&pool);
    assert_eq!(pool.insert_transaction(cancelled), InsertOutcome::Added);
}

#[test]
fn what_the_host_vouches_for_is_ranked_with_what_the_node_announced() {
    let (pool, _) = pool(PoolConfig { max_external_txs: 1, ..PoolConfig::default() });
    let of = |sender, max_tip| {
        let spec = Spec { sender, max_fee: 1_000, max_tip, ..Spec::default() };
        tx_from(spec, Origin::Rpc)
    };
    let vouched = of(1, 1).vouched_for();
    assert_eq!(pool.insert_transaction(vouched.clone()), InsertOutcome::Added);
    assert_eq!(pool.insert_transaction(of(2, 500)), InsertOutcome::Added);
    assert_eq!(pool.insert_transaction(of(3, 600)), InsertOutcome::Added);
    assert!(pool.contains(vouched.hash()) && !pool.contains(of(2, 500).hash()));
    assert_eq!((pool.stats().txs, pool.stats().external_txs), (2, 1));
    let order = pool.get(vouched.hash()).expect("it is pooled");
    let order = order.as_tx().expect("a transaction");
    assert!(!order.is_public() && order.origin() == Origin::Rpc, "it is not taken for public");
}

/// One key with nonces 1 to 18,000, or 1,617 transactions of 40 KB, removed everybody's.
#[test]
fn a_flood_of_private_transactions_displaces_none_of_another_holder() {
    let terms = PrivateTerms { signer: Some(address(7)), max_block: 12 };
    for (flood, input_bytes) in [(18_000, 0), (2_000, 40_000)] {
        for keys in [1, 18_000] {
            let (pool, _) = pool(PoolConfig::default());
            let honest: Vec<_> = (0..300_u64)
                .map(|n| {
                    let tx = private_from(Spec { sender: 50_000 + n, ..Spec::default() }, terms);
                    let known = Holder::Signer(address(n));
                    tx.held_by(if n % 2 == 0 { known } else { caller(8 + n % 248) })
                })
                .collect();
            for tx in &honest {
                assert_eq!(pool.insert_transaction(tx.clone()), InsertOutcome::Added);
            }
            for n in 0..flood {
                let (sender, nonce, max_fee, max_tip) = (n % keys, n / keys, 2_000, 1_000);
                let spec = Spec { sender, nonce, max_fee, max_tip, input_bytes, ..Spec::default() };
                pool.insert_transaction(private_from(spec, terms).held_by(caller(n % 8)));
            }
            pool.on_head(head(11, 0, 0, &[]));
            let missing = honest.iter().filter(|tx| !pool.contains(tx.hash())).count();
            assert_eq!(missing, 0, "{flood} of {input_bytes} bytes by {keys} keys");
        }
    }
}

/// Whoever saw it could send it first, fill its own share, and so remove what its owner was told is
/// pooled.
#[test]
fn what_a_stranger_sent_first_stays_for_who_was_answered_with_success() {
    let terms = PrivateTerms { signer: Some(address(7)), max_block: 12 };
    let stranger = caller(9);
    for is_first_raw in [false, true] {
        for is_known in [false, true] {
            let (pool, _) = pool(PoolConfig { max_external_txs: 6_000, ..PoolConfig::default() });
            let spec = |n| Spec { sender: 50_000 + n, ..Spec::default() };
            let raw = |spec| tx_from(spec, Origin::Rpc).held_by(stranger);
            let theirs = PrivateTerms { signer: Some(address(8)), max_block: 12 };
            let private = |spec| private_from(spec, theirs).held_by(stranger);
            let owner = |n: u64| match is_known {
                true => Holder::Signer(address(n % 4)),
                false => caller(n % 4),
            };
            // As many as one caller may have.
            for n in 0..187 {
                let first = if is_first_raw { raw(spec(n)) } else { private(spec(n)) };
                assert_eq!(pool.insert_transaction(first), InsertOutcome::Added);
                let own = private_from(spec(n), terms).held_by(owner(n));
                assert_eq!(pool.insert_transaction(own), InsertOutcome::Known);
            }
            for n in 0..10_000 {
                let spec = Spec { sender: n, max_fee: 2_000, max_tip: 1_000, ..Spec::default() };
                pool.insert_transaction(if is_first_raw { raw(spec) } else { private(spec) });
            }
            // Nor does it leave by a cancellation of who sent it first.
            let hash = |n| *private_from(spec(n), terms).hash();
            let cancelled = pool.cancel_private(&hash(0), address(8), Holder::Host, None);
            assert_ne!(cancelled, CancelPrivateOutcome::Cancelled);
            pool.on_head(head(11, 0, 0, &[]));
            let missing = (0..187).filter(|n| !pool.contains(&hash(*n))).count();
            assert_eq!(missing, 0, "first raw: {is_first_raw}, known: {is_known}");
            (12..17).for_each(|number| _ = pool.on_head(head(number, 0, 0, &[])));
            let left = (0..187).filter(|n| pool.contains(&hash(*n))).count();
            assert_eq!(left, 0, "their last block is over");
        }
    }
}

/// It was answered with success and still removed at the first block.
#[test]
fn one_that_is_sent_again_is_kept_as_long_as_the_latest_message_says() {
    let (pool, _) = pool(PoolConfig::default());
    pool.insert_transaction(private(1, 11));
    pool.insert_transaction(private(2, 11));
    pool.insert_transaction(private(3, 12));
    assert_eq!(pool.insert_transaction(private(1, 14)), InsertOutcome::Known);
    assert_eq!(pool.insert_transaction(tx_of_caller(2)), InsertOutcome::Known, "raw");
    assert_eq!(pool.insert_transaction(private(3, 11)), InsertOutcome::Known, "not shorter");
    let kept = |n| pool.contains(nth(n).hash());
    for (number, expected) in [
        (11, [true, true, true]),
        (12, [true, true, false]),
        (13, [true, true, false]),
        (14, [false, true, false]),
        (15, [false, false, false]),
    ] {
        pool.on_head(head(number, 0, 0, &[]));
        assert_eq!([1, 2, 3].map(kept), expected, "after block {number}");
    }
}

/// As many as the host may hold; each step removes 256 at most, and the head is told after the first.
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

/// Each of the test's transactions costs 2.1 million wei at most.
#[test]
fn a_sender_pays_for_what_is_pooled_and_not_for_what_has_left_or_is_public() {
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
    assert_eq!(insert(private(0), 0), InsertOutcome::Added);
    assert_eq!(insert(bundled(1, 0, false), 0), InsertOutcome::Added);
    assert_eq!(insert(bundled(1, 1, false), 0), InsertOutcome::Added, "one of the two at most");
    assert!(refused(insert(private(2), 0)) && refused(insert(bundled(2, 0, false), 0)));
    assert_eq!(insert(private(0), 0), InsertOutcome::Known);
    // Who need not be paid for does not count.
    assert_eq!(insert(bundled(2, 0, true), 0), InsertOutcome::Added);
    // Nor what is before its next nonce, what has left, and what the node announces.
    assert_eq!(insert(private(2), 1), InsertOutcome::Added);
    pool.cancel_private(private(2).id().hash(), address(7), Holder::Host, None);
    pool.insert_transaction(tx_from(spec(0, 0), Origin::Mempool));
    assert_eq!(insert(private(3), 0), InsertOutcome::Added);
    assert!(refused(insert(private(4), 0)));
    pool.on_head(head(11, 0, 0, &[]));
    pool.on_head(head(12, 0, 0, &[]));
    assert_eq!(pool.stats().external_txs + pool.stats().bundles, 0);
    for nonce in 13..15 {
        let terms = PrivateTerms { max_block: 20, ..terms };
        let tx = Order::Tx(private_from(spec(nonce, 0), terms));
        assert_eq!(insert(tx, 0), InsertOutcome::Added);
    }
}

/// Anybody may send what a sender has signed, for instance as the first transaction of a bundle, or after
/// the sender has replaced it.
#[test]
fn what_a_stranger_sends_of_a_sender_uses_up_nothing_of_its_balance() {
    let (pool, _) = pool(PoolConfig::default());
    let [own, stranger] = [1, 2].map(caller);
    let of = |nonce, holder| {
        let tx = tx_from(Spec { nonce, ..Spec::default() }, Origin::Rpc);
        Order::Tx(tx.held_by(holder))
    };
    // Enough for one.
    let funds = Funds { balance_wei: U256::from(2_100_000), next_nonce: 0, max_nonces_ahead: 16 };
    assert_eq!(pool.insert(of(0, stranger), Some(&funds)), InsertOutcome::Added);
    assert_eq!(pool.insert(of(1, own), Some(&funds)), InsertOutcome::Added);
    let outcome = pool.insert(of(2, own), Some(&funds));
    assert!(matches!(outcome, InsertOutcome::Rejected(RejectReason::InsufficientFunds { .. })));
}

/// The answer was a success, so its time begins anew.
#[test]
fn a_raw_one_that_is_sent_again_is_kept_as_long_as_a_new_one() {
    let (pool, clock) = pool(PoolConfig::default());
    let (id, raw) = (*tx_of_caller(1).hash(), || tx_of_caller(1));
    assert_eq!(pool.insert_transaction(raw()), InsertOutcome::Added);
    clock.advance(DEFAULT_TX_RETENTION - Duration::from_secs(1));
    assert_eq!(pool.insert_transaction(raw()), InsertOutcome::Known);
    clock.advance(Duration::from_secs(2));
    upkeep(&pool);
    assert!(pool.contains(&id));
    for number in 11..16 {
        assert!(pool.contains(&id), "{number}");
        pool.on_head(head(number, 0, 0, &[]));
    }
    assert!(!pool.contains(&id));
}

#[test]
fn a_transaction_with_blobs_finds_room_among_many_small_ones_of_one_holder() {
    let (max_external_txs, max_external_tx_bytes) = (700, 2 << 20);
    let (pool, _) =
        pool(PoolConfig { max_external_txs, max_external_tx_bytes, ..PoolConfig::default() });
    let by = |sender, input_bytes, by| {
        tx_from(Spec { sender, input_bytes, ..Spec::default() }, Origin::Rpc).held_by(caller(by))
    };
    for n in 0..700 {
        pool.insert_transaction(by(n, 2_000, 1));
    }
    let large = by(1_000, 800_000, 2);
    let id = *large.hash();
    assert_eq!(pool.insert_transaction(large), InsertOutcome::Added);
    assert!(pool.contains(&id) && pool.stats().evicted > 64);
}
