//! NATS servers that are killed and started again.

use std::time::{Duration, Instant};

use async_nats::jetstream::{
    self, Context,
    consumer::{AckPolicy, pull},
    stream,
};
use devnet::{NatsCluster, NatsConfig, NatsServer};
use futures::{StreamExt as _, TryStreamExt as _};

const STREAM: &str = "KEPT";

/// An election waits for several missed heartbeats.
const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(urls: &[String]) -> Context {
    let addresses = urls.iter().map(|url| url.parse::<async_nats::ServerAddr>().unwrap());
    jetstream::new(async_nats::connect(addresses.collect::<Vec<_>>()).await.unwrap())
}

async fn make_stream(context: &Context, replicas: usize) {
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["kept".to_owned()],
        num_replicas: replicas,
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
}

/// Publishes until it is stored: without a leader the response is that nobody listens. Returns how long that took.
async fn publish(context: &Context, text: &str) -> Duration {
    let begin = Instant::now();
    loop {
        let message = jetstream::message::PublishMessage::build()
            .message_id(text)
            .payload(text.to_owned().into());
        let sent = context.send_publish("kept", message).await.unwrap();
        match sent.await {
            Ok(_) => return begin.elapsed(),
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{text}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What the stream holds. Requests are repeated: without a leader nobody answers.
async fn stored(context: &Context) -> Vec<String> {
    let read = async || {
        let stream = context.get_stream(STREAM).await.ok()?;
        let config = pull::Config { ack_policy: AckPolicy::None, ..Default::default() };
        let consumer = stream.create_consumer(config).await.ok()?;
        let count = usize::try_from(stream.cached_info().state.messages).unwrap();
        let messages = consumer.messages().await.ok()?.take(count);
        let messages: Vec<_> = messages.try_collect().await.ok()?;
        let text = |m: &jetstream::Message| String::from_utf8_lossy(&m.payload).into_owned();
        Some(messages.iter().map(text).collect())
    };
    let begin = Instant::now();
    loop {
        match tokio::time::timeout(PATIENCE, read()).await.expect("the stream is read") {
            Some(texts) => return texts,
            None => assert!(begin.elapsed() < PATIENCE, "nobody answers"),
        }
    }
}

#[tokio::test]
async fn nats_a_killed_server_has_what_it_stored_and_its_clients_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = NatsServer::start(folder.path(), &NatsConfig::default()).unwrap();
    let max_payload = &server.monitor("/varz").unwrap()["max_payload"];
    assert_eq!(max_payload.as_u64(), Some(2 << 20));
    let context = connect(&[server.url()]).await;
    make_stream(&context, 1).await;
    publish(&context, "before").await;
    server.kill9().unwrap();
    assert!(server.pid().is_none() && server.monitor("/varz").is_err());
    server.restart().unwrap();
    publish(&context, "after").await;
    assert_eq!(stored(&context).await, ["before", "after"]);
}

#[tokio::test]
async fn nats_a_cluster_that_loses_its_leader_elects_another_and_stores_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = NatsCluster::start(folder.path(), 3, &NatsConfig::default()).unwrap();
    let context = connect(&cluster.urls()).await;
    make_stream(&context, 3).await;
    publish(&context, "before").await;
    let lost = cluster.stream_leader(STREAM).expect("a stream has a leader");
    cluster.server(lost).kill9().unwrap();
    println!("nats: stored {:?} after the kill of the leader", publish(&context, "without").await);
    assert_ne!(cluster.wait_leader(PATIENCE).unwrap(), lost);
    assert_eq!(cluster.servers().iter().filter(|server| server.pid().is_some()).count(), 2);
    cluster.server(lost).restart().unwrap();
    // It has again what was stored without it: another may be lost now.
    wait_replicated(&cluster, 2).await;
    let other = (0..3).find(|at| *at != lost).unwrap();
    cluster.server(other).kill9().unwrap();
    publish(&context, "after").await;
    assert_eq!(stored(&context).await, ["before", "without", "after"]);
}

/// Waits until each server holds as many messages.
async fn wait_replicated(cluster: &NatsCluster, messages: u64) {
    let begin = Instant::now();
    let held = |server: &NatsServer| server.monitor("/jsz").unwrap()["messages"].as_u64();
    while cluster.servers().iter().any(|server| held(server) != Some(messages)) {
        assert!(begin.elapsed() < PATIENCE, "not replicated");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
