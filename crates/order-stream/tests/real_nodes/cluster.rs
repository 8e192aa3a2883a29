//! Clusters of three servers, of which some are killed or hang.

use testkit::devnet::{Disk, NatsCluster};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_loses_no_order() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut cluster = NatsCluster::start(dir.path(), 3, &NatsConfig::default()).expect("a cluster");
    let server = ServerConfig::cluster(cluster.urls());
    let replicated = configured(stream(Flow::Public), |config| config.replicas = 3);
    ensure_stream(&server, &replicated).await.expect("a stream");
    let pools = [pool(), pool()];
    let publishers =
        [(0, "m0"), (1, "m1")].map(|(n, name)| publisher(server.clone(), &pools[n], name));
    let built = pool();
    let source = source(server, &built);
    let txs = transactions(41, 2_000, 0);
    for (n, chunk) in txs.chunks(20).enumerate() {
        pools.iter().for_each(|pool| insert(pool, chunk));
        if n == 30 {
            let leader = cluster.stream_leader(STREAM).expect("a leader");
            cluster.server(leader).kill9().expect("a dead server");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = wait_until("the builder has all", || built.stats().txs == 2_000).await;
    println!("the builder had all {took:?} after the last transaction");
    assert_eq!(hashes(&built), txs.iter().map(|tx| *tx.hash()).collect());
    // One server of three has no majority.
    let connects = || publishers.each_ref().map(|publisher| publisher.stats().connects);
    let before = connects();
    let killed = cluster.servers().iter().position(|server| server.pid().is_none());
    let killed = killed.expect("the leader was killed");
    cluster.server((killed + 1) % 3).kill9().expect("a dead server");
    wait_until("more connections", || (0..2).all(|n| connects()[n] >= before[n] + 2)).await;
    for index in [killed, (killed + 1) % 3] {
        cluster.server(index).spawn().expect("a server");
    }
    let [first, second] = publishers;
    let stats = [finish(first).await, finish(second).await];
    println!("{stats:#?}");
    assert!(stats.iter().all(|stats| stats.published == 2_000 + stats.repeated));
    let repeated: u64 = stats.iter().map(|stats| stats.repeated).sum();
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.missed), (2_000, 0), "{stats:?}");
    // A leader that is killed while it replicates can have stored a message that its successor
    // stores again.
    assert!(stats.known <= 20 + repeated, "{stats:?}");
    assert_eq!(stats.received, stats.pooled + stats.known, "{stats:?}");
}

/// How long a server has to notice something by itself.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

/// The leader disabled JetStream for good. In three of nine runs the stream stored nothing from
/// then on, also after the space was back, until that server was restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "mounts file systems: scripts/fleet.sh --chaos runs it as root"]
async fn a_leader_whose_disk_was_full_loses_no_order_after_its_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |server| dir.path().join(format!("nats-{server}"));
    let disks = [1, 2, 3].map(|server| Disk::mount(folder(server), 64).expect("a disk"));
    let mut cluster = NatsCluster::start(dir.path(), 3, &NatsConfig::default()).expect("a cluster");
    let server = ServerConfig::cluster(cluster.urls());
    let replicated = configured(stream(Flow::Public), |config| config.replicas = 3);
    ensure_stream(&server, &replicated).await.expect("a stream");
    let (ingested, built) = (pool(), pool());
    let publisher = publisher(server.clone(), &ingested, "a");
    let source = source(server, &built);
    let txs = transactions(43, 600, 0);
    insert(&ingested, &txs[..200]);
    wait_until_equal(&ingested, &built).await;
    let leader = cluster.stream_leader(STREAM).expect("a leader");
    disks[leader].fill().expect("a full disk");
    for (n, chunk) in txs[200..400].chunks(10).enumerate() {
        insert(&ingested, chunk);
        tokio::time::sleep(Duration::from_millis(100)).await;
        if n == 0 {
            println!("the disk of server {leader} is full");
        }
    }
    let is_disabled = |cluster: &NatsCluster| cluster.servers()[leader].has_disabled_jetstream();
    let began = Instant::now();
    while !is_disabled(&cluster) && began.elapsed() < NOTICED_WITHIN {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let missing = || ingested.stats().txs - built.stats().txs;
    println!("full: disabled {}, {} missing", is_disabled(&cluster), missing());
    assert!(is_disabled(&cluster), "the server has not met the full disk");
    disks[leader].empty().expect("room");
    insert(&ingested, &txs[400..]);
    tokio::time::sleep(NOTICED_WITHIN).await;
    let (state, unstored_for) = (publisher.state(), publisher.unstored_for());
    println!(
        "room again: disabled {}, {} missing, publisher {state}, {unstored_for:?} unstored",
        is_disabled(&cluster),
        missing()
    );
    assert!(is_disabled(&cluster), "the documents say that it must be restarted");
    cluster.server(leader).restart().expect("a server");
    assert!(!is_disabled(&cluster), "it has started again");
    let took = wait_until_equal(&ingested, &built).await;
    println!("equal {took:.1?} after the restart");
    let stats = finish(publisher).await;
    assert_eq!((stats.published, stats.refused_total()), (600 + stats.repeated, 0), "{stats:?}");
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.missed), (600, 0), "{stats:?}");
}

/// Publishers chose servers at random, and waited for ten seconds at each that was cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_leave_a_server_that_hangs_within_six_seconds() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut cluster = NatsCluster::start(dir.path(), 3, &NatsConfig::default()).expect("a cluster");
    let server = ServerConfig::cluster(cluster.urls());
    let replicated = configured(stream(Flow::Public), |config| config.replicas = 3);
    ensure_stream(&server, &replicated).await.expect("a stream");
    let machines: Vec<_> = (0..12)
        .map(|n| {
            let pool = pool();
            let publisher = publisher(server.clone(), &pool, &format!("m{n}"));
            (pool, publisher)
        })
        .collect();
    for (_, publisher) in &machines {
        wait_until_live(publisher).await;
    }
    // About a third of the publishers are connected to the server that hangs.
    let leader = cluster.stream_leader(STREAM).expect("a leader");
    let hanging = (leader + 1) % 3;
    cluster.server(hanging).sigstop().expect("a stopped server");
    let txs = transactions(42, machines.len(), 0);
    for ((pool, _), tx) in machines.iter().zip(&txs) {
        insert(pool, std::slice::from_ref(tx));
    }
    let mut took = Vec::new();
    let began = Instant::now();
    for (n, (_, publisher)) in machines.iter().enumerate() {
        wait_until(&format!("machine {n} has stored its order"), || {
            publisher.stats().stored == 1 && publisher.unstored_for().is_none()
        })
        .await;
        took.push(began.elapsed());
    }
    cluster.server(hanging).sigcont().expect("a server");
    println!("stored after {took:.1?}");
    assert!(took.iter().max() < Some(&Duration::from_secs(6)), "{took:?}");
    let connects: u64 = machines.iter().map(|(_, publisher)| publisher.stats().connects).sum();
    assert!(connects > 12, "no publisher was connected to the server that hangs");
    for (_, publisher) in machines {
        finish(publisher).await;
    }
}
