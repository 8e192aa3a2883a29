//! The fleet of `scripts/fleet.sh`: three servers, two machines whose nodes' pools overlap by 70 %, four builders.
//! Servers are killed with SIGKILL; a machine and a builder are dropped with their pools, without a shutdown, and come
//! back with nothing; between two kills a machine restarts with a shutdown. In the end every builder holds the union of
//! what the machines' nodes announced, each order once, and of what searchers sent (`searchers.rs`) exactly what they want.
//!
//! The load is set by `FLEET_TPS` (500), `FLEET_SECONDS` (120) and `FLEET_KILL_EVERY` (20, seconds between two kills of a
//! server; 0 kills nothing).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use devnet::NatsCluster;
use tokio::task::JoinHandle;

use super::{
    searchers::{Searchers, Wrong},
    *,
};

/// An order that is this late is the trace of a failure.
const LATE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
enum Action {
    /// Whoever leads the stream, or somebody else.
    KillServer {
        leader: bool,
    },
    RestartServer,
    KillMachine,
    RestartMachine,
    /// With a shutdown.
    ReplaceMachine,
    KillBuilder,
    RestartBuilder,
}

/// What is done when. Servers come back after a quarter of the time between two kills.
fn schedule(every: Duration, lasts: Duration) -> Vec<(Duration, Action)> {
    let mut actions = Vec::new();
    for number in (1..).take_while(|number| !every.is_zero() && every * (number + 1) <= lasts) {
        actions.push((every * number, Action::KillServer { leader: number % 2 == 1 }));
        actions.push((every * number + every / 4, Action::RestartServer));
        let middle = every * number + every / 2;
        match number {
            2 => actions.push((middle, Action::KillMachine)),
            3 => actions.push((middle, Action::KillBuilder)),
            _ => {
                actions.push((middle, Action::ReplaceMachine));
                continue;
            }
        }
        let restart = if number == 2 { Action::RestartMachine } else { Action::RestartBuilder };
        actions.push((middle + every / 10, restart));
    }
    actions
}

/// Whether the node of this machine announces the `n`th transaction: of twenty, fourteen reach both.
const fn reaches(n: usize, machine: usize) -> bool {
    n % 20 < 14 || (n % 20 < 17) == (machine == 0)
}

const FLOWS: [Flow; 2] = [Flow::Public, Flow::Private];

/// Messages of searchers a second.
const SEARCHERS_TPS: f64 = 100.0;

type Seen = Arc<Mutex<Vec<(B256, Instant)>>>;

struct Fleet {
    server: ServerConfig,
    txs: Vec<Transaction>,
    /// When each was announced.
    announced: Vec<Instant>,
}

impl Fleet {
    /// A machine that has just started: its pool holds what its node has announced so far.
    fn machine(&self, number: usize) -> (OrderPool, [Publisher; 2]) {
        let pool = pool();
        let publishers = FLOWS.map(|flow| {
            let config = PublisherConfig::new(self.server.clone(), CHAIN, format!("m{number}"));
            Publisher::start(&pool, PublisherConfig { flow, ..config }).expect("a publisher")
        });
        for n in (0..self.announced.len()).filter(|n| reaches(*n, number)) {
            pool.insert_transaction(self.txs[n].clone());
        }
        (pool, publishers)
    }

    /// A builder, and what its subscriber sees.
    fn builder(&self, number: usize) -> (OrderPool, [Source; 2], Seen) {
        let pool = pool();
        let sources = FLOWS.map(|flow| {
            let config = SourceConfig::new(self.server.clone(), CHAIN, format!("b{number}"));
            Source::start(&pool, SourceConfig { flow, ..config }).expect("a source")
        });
        let (seen, mut orders) = (Seen::default(), pool.subscribe_all());
        let noted = Arc::clone(&seen);
        // It ends with the pool.
        std::thread::spawn(move || {
            while let Some(event) = orders.next_blocking() {
                if let Event::Added(order) = event.expect("it does not lag") {
                    noted.lock().expect("a log").push((*order.id().hash(), Instant::now()));
                }
            }
        });
        (pool, sources, seen)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: scripts/fleet.sh runs it"]
async fn a_fleet_whose_parts_are_killed_ends_with_the_union_in_every_builder() {
    let from_env = |name: &str, default| {
        std::env::var(name).map_or(default, |text| text.parse::<u32>().expect("a number"))
    };
    let tps = from_env("FLEET_TPS", 500);
    let lasts = Duration::from_secs(from_env("FLEET_SECONDS", 120).into());
    let every = Duration::from_secs(from_env("FLEET_KILL_EVERY", 20).into());

    let dir = tempfile::tempdir().expect("a folder");
    let mut cluster = NatsCluster::start(dir.path(), 3, &NatsConfig::default()).expect("a cluster");
    let server = ServerConfig::cluster(cluster.urls());
    for flow in FLOWS {
        let replicated = StreamConfig { replicas: 3, ..stream(flow) };
        ensure_stream(&server, &replicated).await.expect("a stream");
    }
    let mut searchers = Searchers::new(
        SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs(),
        (lasts.as_secs_f64() * SEARCHERS_TPS) as usize,
    );
    let txs = transactions(61, tps as usize * lasts.as_secs() as usize, 0);
    let mut fleet = Fleet { server, txs, announced: Vec::new() };
    let mut machines = [0, 1].map(|number| Some(fleet.machine(number)));
    let mut builders: Vec<_> = (0..4).map(|number| Some(fleet.builder(number))).collect();
    for (_, sources, _) in builders.iter().flatten() {
        let are_live = || sources.iter().all(|source| source.state() == State::Live);
        until("live sources", are_live).await;
    }

    let begin = Instant::now();
    let mut actions = schedule(every, lasts).into_iter().peekable();
    let (mut kills, mut down, mut replaced, mut restarted) = (Vec::new(), None, None, begin);
    let mut is_lost = false;
    for n in 0..fleet.txs.len() {
        tokio::time::sleep_until((begin + lasts.mul_f64(n as f64 / fleet.txs.len() as f64)).into())
            .await;
        while let Some((_, action)) = actions.next_if(|(at, _)| begin.elapsed() >= *at) {
            println!("{:6.1} s: {action:?}", begin.elapsed().as_secs_f64());
            match action {
                Action::KillServer { leader } => {
                    let led = cluster.stream_leader(STREAM);
                    let other = (0..3).find(|at| Some(*at) != led);
                    down = if leader { led } else { other };
                    if let Some(at) = down {
                        cluster.server(at).kill9().expect("a dead server");
                    }
                }
                Action::RestartServer => {
                    if let Some(at) = down.take() {
                        cluster.server(at).spawn().expect("a server");
                    }
                }
                Action::KillMachine => {
                    machines[0] = None;
                    is_lost = true;
                }
                Action::ReplaceMachine => {
                    // Unless it is still at it.
                    let Some((pool, publishers)) = machines[1].take() else { continue };
                    replaced = Some(tokio::spawn(async move {
                        for publisher in publishers {
                            finish(publisher).await;
                        }
                        drop(pool);
                    }));
                }
                Action::RestartMachine => machines[0] = Some(fleet.machine(0)),
                Action::KillBuilder => builders[0] = None,
                Action::RestartBuilder => {
                    restarted = Instant::now();
                    builders[0] = Some(fleet.builder(0));
                }
            }
            if format!("{action:?}").starts_with("Kill") {
                kills.push((action, Instant::now()));
            }
        }
        if replaced.as_ref().is_some_and(JoinHandle::is_finished) {
            replaced.take().expect("it is there").await.expect("every message has its outcome");
            machines[1] = Some(fleet.machine(1));
        }
        let running = machines.iter().enumerate();
        let running = running.filter_map(|(n, machine)| Some((n, &machine.as_ref()?.0)));
        let running: Vec<_> = running.collect();
        if is_lost && let Some(other) = running.first() {
            searchers.lose(0, *other);
            is_lost = false;
        }
        while !running.is_empty()
            && (searchers.sent() as f64) < begin.elapsed().as_secs_f64() * SEARCHERS_TPS - 1.0
            && searchers.sent() < lasts.as_secs() * SEARCHERS_TPS as u64
        {
            searchers.act(&running);
        }
        fleet.announced.push(Instant::now());
        for (number, machine) in machines.iter().enumerate() {
            if let (Some((pool, _)), true) = (machine, reaches(n, number)) {
                pool.insert_transaction(fleet.txs[n].clone());
            }
        }
    }

    let ended = Instant::now();
    if let Some(replaced) = replaced {
        replaced.await.expect("every message has its outcome");
        machines[1] = Some(fleet.machine(1));
    }
    println!("{searchers}");
    let union: BTreeSet<B256> = fleet.txs.iter().map(|tx| *tx.hash()).collect();
    let at: HashMap<B256, Instant> =
        fleet.txs.iter().map(|tx| *tx.hash()).zip(fleet.announced.iter().copied()).collect();
    let mut arrivals = Vec::new();
    for (number, builder) in builders.into_iter().enumerate() {
        let (pool, sources, seen) = builder.expect("it was started again");
        let announced = || pool.stats().txs - pool.stats().external_txs;
        until("every order", || announced() == union.len() as u64).await;
        let began = Instant::now();
        while searchers.wrong(&pool) != Wrong::default() && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let wrong = searchers.wrong(&pool);
        println!("builder {number}: {wrong:?} after {:.1?}", ended.elapsed());
        assert_eq!(wrong, Wrong::default(), "builder {number}");
        assert!(union.is_subset(&hashes(&pool)), "builder {number}");
        for (source, flow) in sources.into_iter().zip(FLOWS) {
            let SourceStats { received, known, superseded, .. } = finish_source(source).await;
            println!("  {flow:?}: {received} received, {known} known, {superseded} superseded");
        }
        let count = |seen: &Seen| {
            seen.lock().expect("a log").iter().filter(|(it, _)| union.contains(it)).count()
        };
        until("the subscriber", || count(&seen) >= union.len()).await;
        let seen = seen.lock().expect("a log");
        let different: BTreeSet<_> = seen.iter().map(|(hash, _)| *hash).collect();
        println!("  twice {}", seen.len() - different.len());
        assert_eq!(different.len(), seen.len(), "builder {number} saw each order once");
        // What a restarted builder replays was announced before.
        let since = if number == 0 { restarted } else { begin };
        let own = seen.iter().filter_map(|(hash, seen)| Some((*at.get(hash)?, *seen)));
        arrivals.extend(own.filter(|(announced, _)| *announced >= since));
    }
    println!("all builders had all orders {:.1?} after the last announcement", ended.elapsed());
    for publisher in machines.into_iter().flatten().flat_map(|(_, publishers)| publishers) {
        println!("{:?}", finish(publisher).await);
    }
    let client = async_nats::connect(cluster.urls()).await.expect("a connection");
    let stream = async_nats::jetstream::new(client).get_stream(STREAM).await.expect("the stream");
    let stored = stream.get_info().await.expect("its state").state.messages;
    // A new leader does not know yet what the old one was storing when it was killed.
    let twice = stored - union.len() as u64;
    println!("messages that the stream stored twice: {twice}");
    assert!(twice * 100 <= stored, "{twice} of {stored} are stored twice");

    for (number, (action, at)) in kills.iter().enumerate() {
        let next = kills.get(number + 1).map_or(ended, |(_, next)| *next);
        let window = || arrivals.iter().filter(|(announced, _)| (*at..next).contains(announced));
        let latest = window().map(|(announced, seen)| *seen - *announced).max().unwrap_or_default();
        let late = window().filter(|(announced, seen)| *seen - *announced > LATE);
        let recovered = late.map(|(_, seen)| *seen - *at).max().unwrap_or_default();
        println!(
            "after {action:?}: late by at most {latest:.1?}; the last late one came {recovered:.1?} after it"
        );
    }
    let mut times: Vec<_> = arrivals.iter().map(|(announced, seen)| *seen - *announced).collect();
    times.sort_unstable();
    let [p50, p99, max] =
        [50, 99, 100].map(|of| times[(times.len() - 1) * of / 100].as_secs_f64() * 1e3);
    println!(
        "from the announcement to a builder: p50 {p50:.1} ms, p99 {p99:.1} ms, at most {max:.1} ms"
    );
}
