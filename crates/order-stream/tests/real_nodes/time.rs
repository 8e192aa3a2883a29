//! Machines and builders whose clocks differ: only stream time is compared.

use order_pool::{
    Bundle, BundleParts, Cancellation, Holder, InsertOutcome, PrivateTerms, ReplacementKey,
};
use order_stream::WallClock;

use super::{fleet::SIGNER, *};

const HOUR: Duration = Duration::from_secs(3_600);

/// How long a machine is cut off. Its publisher gives a silent connection up after four seconds.
const CUT: Duration = Duration::from_secs(13);

/// A machine that ingests, with its own clock and its publisher of the private flow.
struct Machine {
    pool: OrderPool,
    clock: WallClock,
    publisher: Publisher,
}

impl Machine {
    async fn start(fixture: &Fixture, name: &str, clock: WallClock) -> Self {
        Self::start_at(fixture.config(), name, clock).await
    }

    async fn start_at(server: ServerConfig, name: &str, clock: WallClock) -> Self {
        let pool = pool();
        let config = configured(PublisherConfig::new(server, CHAIN, name), |config| {
            config.flow = Flow::Private
        });
        let publisher = Publisher::with_clock(&pool, config, clock).expect("a publisher");
        wait_until_live(&publisher).await;
        Self { pool, clock, publisher }
    }

    /// Waits until the stream has everything that this machine has accepted.
    async fn wait_until_stored(&self, count: u64) {
        wait_until("it is stored", || {
            let stats = self.publisher.stats();
            stats.published == count && stats.unfinished == 0
        })
        .await;
    }

    fn send_private(&self, tx: &Transaction) {
        let tx = Transaction::private(tx.recovered().clone(), TERMS, self.clock.now());
        assert_eq!(self.pool.insert_transaction(tx.held_by(HOLDER)), InsertOutcome::Added);
    }

    fn cancel_private(&self, tx: &Transaction) {
        self.pool.cancel_private(tx.hash(), SIGNER, HOLDER, self.clock.now());
    }

    /// Sends a bundle of the key without a nonce. Without a transaction it is an empty bundle,
    /// which cancels.
    fn send_bundle(&self, key: ReplacementKey, tx: Option<&Transaction>) {
        let parts = BundleParts {
            txs: tx.into_iter().cloned().collect(),
            block: tx.map(|_| 50),
            uuid: Some(key.uuid),
            signer: Some(key.signer),
            holder: HOLDER,
            first_seen: Some(self.clock.now()),
            ..BundleParts::default()
        };
        self.pool.insert_bundle(Bundle::new(parts).expect("a bundle"));
    }
}

const HOLDER: Holder = Holder::Signer(SIGNER);

const TERMS: PrivateTerms = PrivateTerms { signer: Some(SIGNER), max_block: 1_000 };

fn key(n: u128) -> ReplacementKey {
    ReplacementKey { uuid: uuid::Uuid::from_u128(n), signer: SIGNER }
}

/// A builder with its own clock that reads the private stream.
fn builder(fixture: &Fixture, name: &str, clock: WallClock) -> (OrderPool, Source) {
    let pool = pool();
    let config = configured(SourceConfig::new(fixture.config(), CHAIN, name), |config| {
        config.flow = Flow::Private
    });
    let source = Source::with_clock(&pool, config, clock).expect("a source");
    (pool, source)
}

async fn wait_until_read(source: &Source, count: u64) {
    wait_until("all is read", || source.stats().received == count).await;
}

/// The hashes of the orders that a pool holds; for a bundle, the hash of its first transaction.
fn order_hashes(pool: &OrderPool) -> BTreeSet<B256> {
    let mut events = pool.subscribe_all();
    let mut found = BTreeSet::new();
    while events.is_replaying() {
        if let Some(Ok(Event::Added(order))) = events.try_next() {
            let tx = order.as_bundle().map(|bundle| *bundle.txs()[0].hash());
            found.insert(tx.unwrap_or_else(|| *order.id().hash()));
        }
    }
    found
}

/// A machine neither remembered nor published the 65th cancellation of a signer within a minute,
/// although the machine knew the orders of all others.
#[tokio::test]
async fn many_cancellations_do_not_prevent_one_of_another_machines_order() {
    let fixture = Fixture::new().await;
    let a = Machine::start(&fixture, "a", WallClock::default()).await;
    let b = Machine::start(&fixture, "b", WallClock::default()).await;
    let (built, source) = builder(&fixture, "one", WallClock::default());
    let txs = transactions(71, 65, 0);
    for tx in &txs[..64] {
        a.send_private(tx);
        a.cancel_private(tx);
    }
    b.send_private(&txs[64]);
    a.wait_until_stored(128).await;
    b.wait_until_stored(1).await;
    wait_until_read(&source, 129).await;
    a.cancel_private(&txs[64]);
    a.wait_until_stored(129).await;
    wait_until_read(&source, 130).await;
    assert_eq!(order_hashes(&built), BTreeSet::new());
    finish_all([a.publisher, b.publisher], [source]).await;
}

/// Each machine had accepted its cancellations. The builder counted them together and forgot the
/// latest.
#[tokio::test]
async fn cancellations_of_several_machines_hold_for_an_order_that_arrives_late() {
    let fixture = Fixture::new().await;
    let a = Machine::start(&fixture, "a", WallClock::default()).await;
    let b = Machine::start(&fixture, "b", WallClock::default()).await;
    let c = Machine::start(&fixture, "c", WallClock::default()).await;
    let (built, source) = builder(&fixture, "one", WallClock::default());
    let txs = transactions(72, 2_001, 0);
    // The orders of the third machine were sent a second earlier, and arrive after their
    // cancellations.
    let sent_at = c.clock.now() - Duration::from_secs(1);
    for tx in &txs[..1_000] {
        a.cancel_private(tx);
    }
    for tx in &txs[1_000..2_000] {
        b.cancel_private(tx);
    }
    a.wait_until_stored(1_000).await;
    b.wait_until_stored(1_000).await;
    wait_until_read(&source, 2_000).await;
    let late = [&txs[0], &txs[999], &txs[1_000], &txs[1_999], &txs[2_000]];
    for tx in late {
        let tx = Transaction::private(tx.recovered().clone(), TERMS, sent_at);
        c.pool.insert_transaction(tx.held_by(HOLDER));
    }
    c.wait_until_stored(5).await;
    wait_until_read(&source, 2_005).await;
    assert_eq!(
        order_hashes(&built),
        BTreeSet::from([*txs[2_000].hash()]),
        "nobody cancelled this one"
    );
    finish_all([a.publisher, b.publisher, c.publisher], [source]).await;
}

/// Two builders held different bundles, and the machine whose clock was ahead won.
#[tokio::test]
async fn builders_agree_on_the_newest_message_whatever_clocks_say() {
    let fixture = Fixture::new().await;
    let clocks = [Duration::from_secs(2), Duration::from_secs(60), HOUR].map(WallClock::ahead_by);
    let right = Machine::start(&fixture, "right", WallClock::default()).await;
    let builders = [
        builder(&fixture, "right", WallClock::default()),
        builder(&fixture, "behind", WallClock::behind_by(Duration::from_secs(5))),
        builder(&fixture, "far-behind", WallClock::behind_by(Duration::from_secs(70))),
        builder(&fixture, "ahead", WallClock::ahead_by(Duration::from_secs(70))),
    ];
    let txs = transactions(73, 30, 0);
    let (mut expected, mut received) = (BTreeSet::new(), 0);
    for (n, clock) in clocks.into_iter().enumerate() {
        let ahead = Machine::start(&fixture, &format!("ahead-{n}"), clock).await;
        let mut stored_by_right = right.publisher.stats().published;
        let mut stored_by_ahead = 0;
        let txs = &txs[10 * n..];
        let key = |kind: u128| key(100 * n as u128 + kind);
        // Bundles are replaced from the right machine to the one that is ahead, back, and there and
        // back.
        for (kind, messages) in [
            (1, &[(false, 0), (true, 1)][..]),
            (2, &[(true, 2), (false, 3)]),
            (3, &[(false, 4), (true, 5), (false, 6)]),
        ] {
            for (is_right, tx) in messages {
                let (machine, count) = if *is_right {
                    (&right, &mut stored_by_right)
                } else {
                    (&ahead, &mut stored_by_ahead)
                };
                machine.send_bundle(key(kind), Some(&txs[*tx]));
                *count += 1;
                machine.wait_until_stored(*count).await;
                received += 1;
            }
        }
        expected.extend([1, 3, 6].map(|tx| *txs[tx].hash()));
        // An empty bundle at the right machine cancels the bundle of the other one.
        ahead.send_bundle(key(4), Some(&txs[7]));
        ahead.send_private(&txs[8]);
        stored_by_ahead += 2;
        ahead.wait_until_stored(stored_by_ahead).await;
        right.send_bundle(key(4), None);
        right.cancel_private(&txs[8]);
        stored_by_right += 2;
        right.wait_until_stored(stored_by_right).await;
        received += 4;
        finish(ahead.publisher).await;
    }
    let late = builder(&fixture, "late", WallClock::ahead_by(Duration::from_secs(70)));
    for (built, source) in builders.iter().chain([&late]) {
        wait_until_read(source, received).await;
        assert_eq!(order_hashes(built), expected, "{}", source.stats().received);
    }
    finish(right.publisher).await;
    let sources = builders.into_iter().chain([late]).map(|(_, source)| source);
    for source in sources {
        finish_source(source).await;
    }
}

/// The first machine still held what another machine had cancelled or replaced, so it published
/// nothing when its searcher sent it again. No builder had it, although the searcher was told that
/// it is pooled.
#[tokio::test]
async fn an_order_that_is_sent_again_at_its_first_machine_reaches_the_builders() {
    let fixture = Fixture::new().await;
    let a = Machine::start(&fixture, "a", WallClock::default()).await;
    let b = Machine::start(&fixture, "b", WallClock::ahead_by(HOUR)).await;
    let (built, source) = builder(&fixture, "one", WallClock::default());
    let txs = transactions(76, 4, 0);
    let expected = |txs: &[&Transaction]| txs.iter().map(|tx| *tx.hash()).collect::<BTreeSet<_>>();
    a.send_private(&txs[0]);
    a.send_bundle(key(1), Some(&txs[1]));
    a.send_bundle(key(2), Some(&txs[2]));
    a.wait_until_stored(3).await;
    b.cancel_private(&txs[0]);
    b.send_bundle(key(1), None);
    b.send_bundle(key(2), Some(&txs[3]));
    b.wait_until_stored(3).await;
    wait_until_read(&source, 6).await;
    assert_eq!(order_hashes(&built), expected(&[&txs[3]]));
    let again = Transaction::private(txs[0].recovered().clone(), TERMS, a.clock.now());
    assert_eq!(a.pool.insert_transaction(again.held_by(HOLDER)), InsertOutcome::Known);
    a.send_bundle(key(1), Some(&txs[1]));
    a.send_bundle(key(2), Some(&txs[2]));
    a.wait_until_stored(6).await;
    wait_until_read(&source, 9).await;
    assert_eq!(order_hashes(&built), expected(&[&txs[0], &txs[1], &txs[2]]));
    b.cancel_private(&txs[0]);
    b.send_bundle(key(1), None);
    b.wait_until_stored(5).await;
    wait_until_read(&source, 11).await;
    assert_eq!(order_hashes(&built), expected(&[&txs[2]]));
    finish_all([a.publisher, b.publisher], [source]).await;
}

/// A machine sends a burst of replacements, and the server gets some of them half a second late.
#[tokio::test]
async fn replacements_of_one_machine_keep_their_sequence_if_some_are_late() {
    let fixture = Fixture::new().await;
    let mut published = 0;
    let url = proxy::start(&fixture.server, move |subject| {
        let is_order = subject.starts_with("mempool.");
        published += usize::from(is_order);
        !is_order || !(5..=8).contains(&published)
    });
    let pool = pool();
    let config = configured(PublisherConfig::new(ServerConfig::new(url), CHAIN, "a"), |config| {
        config.flow = Flow::Private
    });
    let publisher = Publisher::start(&pool, config).expect("a publisher");
    wait_until_live(&publisher).await;
    let machine = Machine { pool, clock: WallClock::default(), publisher };
    let (built, source) = builder(&fixture, "one", WallClock::default());
    let txs = transactions(74, 10, 0);
    for tx in &txs {
        machine.send_bundle(key(1), Some(tx));
    }
    machine.wait_until_stored(10).await;
    wait_until_read(&source, 10).await;
    assert_eq!(order_hashes(&built), BTreeSet::from([*txs[9].hash()]));
    finish_all([machine.publisher], [source]).await;
}

/// A message that was on its way for longer than a later one of another machine counted as the
/// later one. So a cancellation had no effect, the older bundle won, and an order that was sent
/// again was cancelled.
#[tokio::test]
async fn messages_keep_their_sequence_although_the_first_is_long_on_its_way() {
    let fixture = Fixture::new().await;
    let url = proxy::start(&fixture.server, |subject| {
        if subject.starts_with("mempool.") {
            std::thread::sleep(Duration::from_millis(300));
        }
        true
    });
    let slow = Machine::start_at(ServerConfig::new(url), "slow", WallClock::default()).await;
    let fast = Machine::start(&fixture, "fast", WallClock::ahead_by(HOUR)).await;
    let (built, source) = builder(&fixture, "one", WallClock::default());
    let txs = transactions(77, 4, 0);
    let mut expected = BTreeSet::new();
    let pause = Duration::from_millis(50);

    slow.send_private(&txs[0]);
    tokio::time::sleep(pause).await;
    fast.cancel_private(&txs[0]);
    slow.wait_until_stored(1).await;

    slow.send_bundle(key(1), Some(&txs[1]));
    tokio::time::sleep(pause).await;
    fast.send_bundle(key(1), Some(&txs[2]));
    expected.insert(*txs[2].hash());
    slow.wait_until_stored(2).await;

    slow.cancel_private(&txs[3]);
    tokio::time::sleep(pause).await;
    fast.send_private(&txs[3]);
    expected.insert(*txs[3].hash());
    slow.wait_until_stored(3).await;

    fast.wait_until_stored(3).await;
    wait_until_read(&source, 6).await;
    assert_eq!(order_hashes(&built), expected);
    finish_all([slow.publisher, fast.publisher], [source]).await;
}

/// A message that was written to a connection which was then cut for more than ten seconds counted
/// as sent when the cut ended. So what another machine had cancelled meanwhile was there again.
#[tokio::test]
async fn a_message_that_a_cut_delays_keeps_its_time() {
    let fixture = Fixture::new().await;
    let mut cut_until = None;
    let url = proxy::start(&fixture.server, move |subject| {
        // The first order finds every connection of its machine cut.
        if cut_until.is_some() || subject.starts_with("mempool.") {
            let cut_until = *cut_until.get_or_insert_with(|| Instant::now() + CUT);
            std::thread::sleep(cut_until.saturating_duration_since(Instant::now()));
        }
        true
    });
    let cut = Machine::start_at(ServerConfig::new(url), "cut", WallClock::default()).await;
    let other = Machine::start(&fixture, "other", WallClock::ahead_by(HOUR)).await;
    let (built, source) = builder(&fixture, "one", WallClock::default());
    let tx = &transactions(78, 1, 0)[0];
    cut.send_private(tx);
    tokio::time::sleep(Duration::from_millis(50)).await;
    other.cancel_private(tx);
    other.wait_until_stored(1).await;
    cut.wait_until_stored(1).await;
    wait_until_read(&source, 2).await;
    assert_eq!(order_hashes(&built), BTreeSet::new());
    finish_all([cut.publisher, other.publisher], [source]).await;
}

/// A permanent cancellation needs no time.
#[tokio::test]
async fn a_permanent_cancellation_holds_against_a_machine_that_is_ahead() {
    let fixture = Fixture::new().await;
    let a = Machine::start(&fixture, "a", WallClock::default()).await;
    let b = Machine::start(&fixture, "b", WallClock::ahead_by(HOUR)).await;
    let (built, source) = builder(&fixture, "one", WallClock::default());
    a.pool.cancel_bundle(Cancellation { key: key(1), nonce: None, holder: HOLDER, sent_at: None });
    a.wait_until_stored(1).await;
    b.send_bundle(key(1), Some(&transactions(75, 1, 0)[0]));
    b.wait_until_stored(1).await;
    wait_until_read(&source, 2).await;
    assert_eq!(order_hashes(&built), BTreeSet::new());
    finish_all([a.publisher, b.publisher], [source]).await;
}
