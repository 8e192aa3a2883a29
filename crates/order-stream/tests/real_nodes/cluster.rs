//! Three servers, of which one is killed.

use testkit::devnet::NatsCluster;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_costs_time_and_no_order() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut cluster = NatsCluster::start(dir.path(), 3, &NatsConfig::default()).expect("a cluster");
    let server = ServerConfig::cluster(cluster.urls());
    let replicated = StreamConfig { replicas: 3, ..stream(Flow::Public) };
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
    let took = until("the union", || built.stats().txs == 2_000).await;
    println!("the union {took:?} after the last transaction");
    assert_eq!(hashes(&built), txs.iter().map(|tx| *tx.hash()).collect());
    // One of three servers has no majority, and nobody can know whether another one has.
    let connects = || publishers.each_ref().map(|publisher| publisher.stats().connects);
    let before = connects();
    let killed = cluster.servers().iter().position(|server| server.pid().is_none());
    let killed = killed.expect("the leader was killed");
    cluster.server((killed + 1) % 3).kill9().expect("a dead server");
    until("more connections", || (0..2).all(|n| connects()[n] >= before[n] + 2)).await;
    for at in [killed, (killed + 1) % 3] {
        cluster.server(at).spawn().expect("a server");
    }
    let [first, second] = publishers;
    let stats = [finish(first).await, finish(second).await];
    println!("{stats:#?}");
    assert!(stats.iter().all(|stats| stats.published == 2_000));
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.missed), (2_000, 0), "{stats:?}");
    // A leader that is killed while it replicates can have stored a message that its successor stores again.
    assert!(stats.known <= 20 && stats.received == stats.pooled + stats.known, "{stats:?}");
}

/// Each chose servers at random, and waited for ten seconds at each that was cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_publishers_of_a_server_that_hangs_go_on_with_the_next_one_within_six_seconds() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut cluster = NatsCluster::start(dir.path(), 3, &NatsConfig::default()).expect("a cluster");
    let server = ServerConfig::cluster(cluster.urls());
    let replicated = StreamConfig { replicas: 3, ..stream(Flow::Public) };
    ensure_stream(&server, &replicated).await.expect("a stream");
    let machines: Vec<_> = (0..12)
        .map(|n| {
            let pool = pool();
            let publisher = publisher(server.clone(), &pool, &format!("m{n}"));
            (pool, publisher)
        })
        .collect();
    for (_, publisher) in &machines {
        until_live(publisher).await;
    }
    // A third of them are there.
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
        until(&format!("machine {n} has stored its order"), || {
            publisher.stats().stored == 1 && publisher.unstored_for().is_none()
        })
        .await;
        took.push(began.elapsed());
    }
    cluster.server(hanging).sigcont().expect("a server");
    println!("stored after {took:.1?}");
    assert!(took.iter().max() < Some(&Duration::from_secs(6)), "{took:?}");
    let connects: u64 = machines.iter().map(|(_, publisher)| publisher.stats().connects).sum();
    assert!(connects > 12, "none was connected to the server that hangs");
    for (_, publisher) in machines {
        finish(publisher).await;
    }
}
