//! A fleet under load: three servers, two machines whose nodes' pools overlap by 70 % and whose
//! clocks differ by an hour, and four builders, one of them a minute behind and one started late.
//! In the end each builder holds exactly what the nodes announced and no block contains, and what
//! the searchers want.
//!
//! `scripts/fleet.sh` runs these tests. `FLEET_SECONDS` (60) is the length of the load.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use order_stream::WallClock;
use testkit::devnet::NatsCluster;
use tokio::time::sleep_until;

use super::{
    searchers::{Differences, LAST_BLOCK, Recipient, Searchers},
    *,
};

/// Transactions/s that nodes announce.
const ANNOUNCED_TPS: f64 = 100.0;

/// Messages/s of searchers.
const SEARCHERS_TPS: f64 = 50.0;

/// The number of the first block. Orders end long after the last one.
const FIRST_BLOCK: u64 = LAST_BLOCK - 60;

/// How many blocks a run has.
const BLOCKS: u64 = 30;

/// Longer than a message can be on its way to the stream while faults last: a machine leaves a
/// server after four seconds of silence.
const PAUSE_WITH_FAULTS: Duration = Duration::from_secs(6);
const PAUSE_WITHOUT_FAULTS: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
enum Fault {
    KillLeader,
    KillFollower,
    /// The process is stopped, and its sockets stay open.
    HangLeader,
    HangFollower,
    RecoverServer,
    /// A machine is shut down, and another process takes its name.
    ReplaceMachine,
    KillBuilder,
    RestartBuilder,
}

/// The faults of a run, and when each comes, in sixtieths of the run.
const FAULTS: [(u32, Fault); 13] = [
    (6, Fault::KillLeader),
    (10, Fault::RecoverServer),
    (16, Fault::HangLeader),
    (21, Fault::RecoverServer),
    (25, Fault::ReplaceMachine),
    (30, Fault::KillBuilder),
    (33, Fault::RestartBuilder),
    (36, Fault::KillFollower),
    (40, Fault::RecoverServer),
    (44, Fault::HangFollower),
    (50, Fault::RecoverServer),
    (53, Fault::KillLeader),
    (57, Fault::RecoverServer),
];

/// Whether the node of a machine announces a transaction: of twenty, fourteen reach both nodes.
const fn is_announced(tx: usize, machine: usize) -> bool {
    tx % 20 < 14 || (tx % 20 < 17) == (machine == 0)
}

const FLOWS: [Flow; 2] = [Flow::Public, Flow::Private];

struct Machine {
    pool: OrderPool,
    publishers: [Publisher; 2],
}

struct Builder {
    pool: OrderPool,
    sources: [Source; 2],
    /// How many orders were added while they were there.
    twice: Arc<AtomicUsize>,
}

struct Fleet {
    server: ServerConfig,
    /// The clocks of the machines.
    clocks: [WallClock; 2],
    txs: Vec<Transaction>,
    /// How many of these were announced.
    announced: usize,
    /// How many of these are in blocks.
    mined: usize,
    latest_block: Option<Block>,
}

/// A pool that expires nothing within a run.
fn lasting_pool() -> OrderPool {
    let set_retention = |config: &mut PoolConfig| config.tx_retention = Duration::from_secs(600);
    OrderPool::new(configured(PoolConfig::default(), set_retention)).expect("a pool")
}

impl Fleet {
    /// Starts a machine, whose pool holds what its node lists.
    fn start_machine(&self, number: usize) -> Machine {
        let pool = lasting_pool();
        let publishers = FLOWS.map(|flow| {
            let config = PublisherConfig::new(self.server.clone(), CHAIN, format!("m{number}"));
            let config = configured(config, |config| config.flow = flow);
            Publisher::with_clock(&pool, config, self.clocks[number]).expect("a publisher")
        });
        for tx in self.mined..self.announced {
            self.announce(tx, number, &pool);
        }
        if let Some(block) = &self.latest_block {
            pool.on_head(block.clone());
        }
        Machine { pool, publishers }
    }

    fn announce(&self, tx: usize, machine: usize, pool: &OrderPool) {
        if is_announced(tx, machine) {
            let recovered = self.txs[tx].recovered().clone();
            let received_at = self.clocks[machine].now();
            pool.insert_transaction(Transaction::new(recovered, Origin::Mempool, received_at));
        }
    }

    fn start_builder(&self, name: &str, clock: WallClock) -> Builder {
        let pool = lasting_pool();
        let sources = FLOWS.map(|flow| {
            let config = SourceConfig::new(self.server.clone(), CHAIN, name);
            let config = configured(config, |config| {
                config.flow = flow;
                config.heads = true;
            });
            Source::with_clock(&pool, config, clock).expect("a source")
        });
        let twice = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&twice);
        let mut events = pool.subscribe_all();
        // The thread ends with the pool.
        thread::spawn(move || {
            let mut held = BTreeSet::new();
            while let Some(event) = events.next_blocking() {
                match event.expect("it keeps up") {
                    Event::Added(order) if !held.insert(order.id()) => {
                        counted.fetch_add(1, SeqCst);
                    }
                    Event::Removed { order, .. } => _ = held.remove(&order.id()),
                    _ => {}
                }
            }
        });
        Builder { pool, sources, twice }
    }

    /// The next block, with a part of the announced transactions.
    fn next_block(&mut self) -> Block {
        let number = self.latest_block.as_ref().map_or(FIRST_BLOCK, |block| block.head.number + 1);
        let mined = self.mined..self.mined + (self.announced - self.mined) / 3;
        self.mined = mined.end;
        let hashes: Vec<_> = self.txs[mined].iter().map(|tx| *tx.hash()).collect();
        let mut block = block(number, 0, 0, &hashes);
        let since_epoch = SystemTime::UNIX_EPOCH.elapsed().expect("after it");
        block.head.timestamp = since_epoch.as_secs();
        self.latest_block = Some(block.clone());
        block
    }

    fn differences(&self, builder: &Builder, searchers: &Searchers) -> Differences {
        let mut differences = searchers.differences(&builder.pool);
        differences.twice = builder.twice.load(SeqCst);
        for (n, tx) in self.txs[..self.announced].iter().enumerate() {
            match (builder.pool.contains(tx.hash()), n < self.mined) {
                (true, true) => differences.stale += 1,
                (false, false) => differences.missing += 1,
                _ => {}
            }
        }
        differences
    }
}

/// The servers of the fleet. At most one fails at a time.
struct Servers {
    cluster: NatsCluster,
    failing: Option<usize>,
}

impl Servers {
    fn begin_fault(&mut self, is_leader: bool) -> usize {
        let leader = self.cluster.stream_leader("MEMPOOL_1_PRIVATE").expect("a leader");
        let index = if is_leader { leader } else { (leader + 1) % 3 };
        self.failing = Some(index);
        index
    }

    fn kill(&mut self, is_leader: bool) {
        let index = self.begin_fault(is_leader);
        self.cluster.server(index).kill9().expect("a dead server");
    }

    fn hang(&mut self, is_leader: bool) {
        let index = self.begin_fault(is_leader);
        self.cluster.server(index).sigstop().expect("a stopped server");
    }

    fn end_fault(&mut self) {
        let index = self.failing.take().expect("a server that fails");
        let server = self.cluster.server(index);
        let ended = if server.pid().is_some() { server.sigcont() } else { server.spawn() };
        ended.expect("the server runs again");
    }
}

/// Runs a fleet and checks that all builders hold what they must.
async fn run(faults: &[(u32, Fault)], pause: Duration) {
    let seconds = env::var("FLEET_SECONDS").map_or(60, |text| text.parse().expect("seconds"));
    let duration = Duration::from_secs(seconds);
    let dir = tempfile::tempdir().expect("a folder");
    let cluster = NatsCluster::start(dir.path(), 3, &NatsConfig::default()).expect("a cluster");
    let server = ServerConfig::cluster(cluster.urls());
    let mut servers = Servers { cluster, failing: None };
    for flow in FLOWS {
        let replicated = configured(stream(flow), |config| config.replicas = 3);
        ensure_stream(&server, &replicated).await.expect("a stream");
    }
    let seed = SystemTime::UNIX_EPOCH.elapsed().expect("after it").as_secs();
    println!("seed {seed}, {seconds} s, {} faults", faults.len());
    let count = |tps: f64| (tps * duration.as_secs_f64()) as usize;
    let mut searchers = Searchers::new(seed, count(SEARCHERS_TPS) + 1, pause);
    let mut fleet = Fleet {
        server,
        clocks: [WallClock::ahead_by(Duration::from_secs(3_600)), WallClock::default()],
        txs: transactions(61, count(ANNOUNCED_TPS), 0),
        announced: 0,
        mined: 0,
        latest_block: None,
    };
    let mut machines = [0, 1].map(|number| Some(fleet.start_machine(number)));
    let behind = WallClock::behind_by(Duration::from_secs(60));
    let mut builders = vec![
        ("right", Some(fleet.start_builder("right", WallClock::default()))),
        ("a minute behind", Some(fleet.start_builder("behind", behind))),
        ("restarted", Some(fleet.start_builder("restarted", behind))),
    ];
    for machine in machines.iter().flatten() {
        for publisher in &machine.publishers {
            wait_until_live(publisher).await;
        }
    }

    let began = Instant::now();
    let mut faults = faults.iter().copied().peekable();
    let mut replacement = None;
    let mut sent = 0;
    for tick in 1..=count(ANNOUNCED_TPS) {
        sleep_until((began + Duration::from_secs_f64(tick as f64 / ANNOUNCED_TPS)).into()).await;
        while let Some((_, fault)) =
            faults.next_if(|(due, _)| began.elapsed() >= duration / 60 * *due)
        {
            println!("{:6.1} s: {fault:?}", began.elapsed().as_secs_f64());
            match fault {
                Fault::KillLeader => servers.kill(true),
                Fault::KillFollower => servers.kill(false),
                Fault::HangLeader => servers.hang(true),
                Fault::HangFollower => servers.hang(false),
                Fault::RecoverServer => servers.end_fault(),
                Fault::ReplaceMachine => {
                    let machine = machines[1].take().expect("it runs");
                    replacement = Some(tokio::spawn(async move {
                        for publisher in machine.publishers {
                            finish(publisher).await;
                        }
                    }));
                }
                Fault::KillBuilder => builders[2].1 = None,
                Fault::RestartBuilder => {
                    builders[2].1 = Some(fleet.start_builder("restarted", behind));
                }
            }
        }
        if let Some(shutdown) = replacement.take_if(|shutdown| shutdown.is_finished()) {
            shutdown.await.expect("every message has an outcome");
            machines[1] = Some(fleet.start_machine(1));
        }
        fleet.announced = tick;
        for (number, machine) in machines.iter().enumerate() {
            if let Some(machine) = machine {
                fleet.announce(tick - 1, number, &machine.pool);
            }
        }
        let elapsed = began.elapsed().as_secs_f64() / duration.as_secs_f64();
        let next_number = FIRST_BLOCK + (elapsed * BLOCKS as f64) as u64;
        if fleet.latest_block.as_ref().is_none_or(|block| block.head.number < next_number) {
            let block = fleet.next_block();
            for machine in machines.iter().flatten() {
                machine.pool.on_head(block.clone());
            }
        }
        let recipients: Vec<_> = machines
            .iter()
            .zip(fleet.clocks)
            .filter_map(|(machine, clock)| Some(Recipient { pool: &machine.as_ref()?.pool, clock }))
            .collect();
        while sent < count(SEARCHERS_TPS)
            && (sent as f64) < began.elapsed().as_secs_f64() * SEARCHERS_TPS
        {
            searchers.act(&recipients);
            sent += 1;
        }
        if tick == count(ANNOUNCED_TPS) / 2 {
            builders.push(("started late", Some(fleet.start_builder("late", behind))));
        }
    }

    assert!(replacement.is_none(), "the machine was not replaced within the run");
    println!("{} transactions announced, {} in blocks; {searchers}", fleet.announced, fleet.mined);
    let ended = Instant::now();
    let mut failed = Vec::new();
    for (name, builder) in builders {
        let builder = builder.expect("it was started again");
        let is_right = || fleet.differences(&builder, &searchers) == Differences::default();
        while !is_right() && ended.elapsed() < TIMEOUT {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let differences = fleet.differences(&builder, &searchers);
        println!("builder {name:?} after {:.1?}: {differences:?}", ended.elapsed());
        if differences != Differences::default() {
            failed.push(name);
        }
        for source in builder.sources {
            let stats = finish_source(source).await;
            assert_eq!((stats.missed, stats.cut), (0, 0), "{stats:?}");
        }
    }
    assert!(failed.is_empty(), "seed {seed}: {failed:?}");
    for publisher in machines.into_iter().flatten().flat_map(|machine| machine.publishers) {
        println!("{:?}", finish(publisher).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute: scripts/fleet.sh runs it"]
async fn builders_hold_what_machines_an_hour_apart_were_sent() {
    run(&[], PAUSE_WITHOUT_FAULTS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute: scripts/fleet.sh --chaos runs it"]
async fn builders_hold_what_machines_were_sent_although_servers_fail() {
    run(&FAULTS, PAUSE_WITH_FAULTS).await;
}
