//! Tests of the sample configuration in `etc/nats/`: each user may do what its part of a fleet
//! needs, and nothing else.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, ServerError,
    jetstream::{self, stream},
};
use futures::StreamExt as _;
use mempool_ingest::{OrderPool, PoolConfig};
use order_stream::{DisconnectReason, ServerConfig, Source, SourceConfig, State};
use tempfile::TempDir;
use testkit::{
    devnet::{NatsCluster, NatsConfig, NatsServer},
    ingest::eventually,
};
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(20);
const STREAM: &str = "MEMPOOL_1_PUBLIC";
const PASSWORDS: [&str; 7] = [
    "ADMIN",
    "INGEST_1",
    "BUILDER_1",
    "ADMIN_PRIVATE",
    "INGEST_1_PRIVATE",
    "BUILDER_1_PRIVATE",
    "SYS",
];

/// A certificate for this host, and the environment variables of the sample.
struct Sample {
    folder: TempDir,
    config: NatsConfig,
}

impl Sample {
    fn new(file: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        fs::write(&cert, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../etc/nats").join(file);
        let mut config = NatsConfig { file: Some(file), ..NatsConfig::default() };
        for (name, path) in [("NATS_CERT", &cert), ("NATS_CA", &cert), ("NATS_KEY", &key)] {
            config.envs.push((name.to_owned(), path.to_str().unwrap().to_owned()));
        }
        for name in PASSWORDS {
            config.envs.push((format!("{name}_PASSWORD"), secret(name).to_string()));
        }
        Self { folder, config }
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    /// The configuration of a client of `order-stream`.
    fn server(&self, server: &NatsServer, user: &str) -> ServerConfig {
        let credentials = format!("://{user}:{}@", password(user));
        let mut config = ServerConfig::new(server.url().replace("://", &credentials));
        config.root_certificates = Some(self.certificate());
        config
    }

    fn options(&self, user: &str, password: &str) -> ConnectOptions {
        ConnectOptions::with_user_and_password(user.into(), password.into())
            .custom_inbox_prefix(format!("_INBOX_{}", user.trim_end_matches("-private")))
            .add_root_certificates(self.certificate())
            .require_tls(true)
    }
}

fn one_server() -> (Sample, NatsServer) {
    let sample = Sample::new("server.conf");
    let server = NatsServer::start(sample.folder.path(), &sample.config).unwrap();
    (sample, server)
}

fn secret(variable: &str) -> String {
    format!("secret-of-{variable}")
}

fn password(user: &str) -> String {
    secret(&user.to_uppercase().replace('-', "_"))
}

/// A connection, and the subjects that the server has denied it.
struct User {
    client: Client,
    denied: mpsc::UnboundedReceiver<String>,
    barriers: u32,
}

impl User {
    async fn connect(sample: &Sample, server: &NatsServer, name: &str) -> Self {
        let (sender, denied) = mpsc::unbounded_channel();
        let record = move |event| {
            if let Event::ServerError(ServerError::Other(text)) = event {
                // The server maps a request of a builder before it checks its rights.
                let subject = text.split('"').nth(1).unwrap_or(&text);
                let subject = subject.replace("fleet.", "$JS.API.");
                // It fails when the test is over.
                let _ = sender.send(subject);
            }
            std::future::ready(())
        };
        let options = sample.options(name, &password(name)).event_callback(record);
        let client = options.connect(server.url()).await.unwrap();
        Self { client, denied, barriers: 0 }
    }

    /// Returns the subjects that were denied since the last call. Errors arrive in the order of
    /// their causes, so this publishes to a forbidden subject, and returns all errors before that
    /// of this subject.
    async fn denied(&mut self) -> Vec<String> {
        self.barriers += 1;
        let barrier = format!("barrier.{}", self.barriers);
        self.client.publish(barrier.clone(), "".into()).await.unwrap();
        let mut denied = Vec::new();
        loop {
            let next = tokio::time::timeout(PATIENCE, self.denied.recv()).await;
            match next.expect("the server answers").expect("connected") {
                subject if subject == barrier => return denied,
                subject => denied.push(subject),
            }
        }
    }

    async fn may(&mut self, publish: &str) {
        self.client.publish(publish.to_owned(), "{}".into()).await.unwrap();
        assert_eq!(self.denied().await, Vec::<String>::new());
    }

    async fn may_not(&mut self, publish: &[&str], subscribe: &[&str]) {
        for subject in publish {
            self.client.publish(subject.to_string(), "{}".into()).await.unwrap();
        }
        for subject in subscribe {
            self.client.subscribe(subject.to_string()).await.unwrap();
        }
        let mut denied = self.denied().await;
        let mut all: Vec<_> = publish.iter().chain(subscribe).map(ToString::to_string).collect();
        denied.sort_unstable();
        all.sort_unstable();
        assert_eq!(denied, all);
    }

    /// Publishes as the machine of the user, and waits until the message is stored.
    async fn store(&self, subject: &str, id: &str) {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", id);
        let context = jetstream::new(self.client.clone());
        let ack = context.publish_with_headers(subject.to_owned(), headers, "order".into());
        ack.await.unwrap().await.unwrap();
    }

    async fn request(&self, subject: &str, body: &str) -> String {
        let body = body.to_owned().into();
        let response = self.client.request(subject.to_owned(), body).await;
        let response = response.unwrap_or_else(|error| panic!("{subject}: {error}"));
        String::from_utf8_lossy(&response.payload).into_owned()
    }
}

const INFO: &str = "$JS.API.STREAM.INFO.MEMPOOL_1_PUBLIC";
const CREATE: &str = "$JS.API.CONSUMER.CREATE.MEMPOOL_1_PUBLIC.builder-1";
const DELETE: &str = "$JS.API.CONSUMER.DELETE.MEMPOOL_1_PUBLIC.builder-1";
const NEXT: &str = "$JS.API.CONSUMER.MSG.NEXT.MEMPOOL_1_PUBLIC.builder-1";

/// The body of a request for a consumer, with further fields.
fn consumer(fields: &str) -> String {
    let config =
        format!(r#"{{"name":"builder-1","ack_policy":"none","deliver_policy":"all"{fields}}}"#);
    format!(r#"{{"stream_name":"{STREAM}","config":{config}}}"#)
}

fn stream_config(subjects: &[&str], replicas: usize) -> stream::Config {
    stream::Config {
        name: STREAM.to_owned(),
        subjects: subjects.iter().map(ToString::to_string).collect(),
        num_replicas: replicas,
        max_age: Duration::from_secs(60),
        duplicate_window: Duration::from_secs(60),
        ..Default::default()
    }
}

#[tokio::test]
async fn nats_each_user_of_the_sample_has_only_the_rights_it_needs() {
    let (sample, server) = one_server();
    let connect = |name| User::connect(&sample, &server, name);

    let mut admin = connect("admin").await;
    let streams = jetstream::new(admin.client.clone());
    let config = stream_config(&["mempool.1.tx.*", "mempool.1.head.*"], 1);
    streams.create_stream(config).await.unwrap();
    let tx = "mempool.1.tx.ingest-1";
    admin.may_not(&[tx, "mempool.1.bundle.ingest-1"], &["mempool.>", "_INBOX.>", ">"]).await;

    let mut ingest = connect("ingest-1").await;
    ingest.store(tx, "first").await;
    ingest.may("mempool.1.head.ingest-1").await;
    ingest.may("$JS.API.STREAM.MSG.GET.MEMPOOL_1_PUBLIC").await;
    assert!(ingest.request(INFO, "").await.contains("\"messages\":"));
    ingest
        .may_not(
            &[
                "mempool.1.tx.ingest-2",
                "mempool.1.tx",
                "mempool.2.tx.0.ingest-1",
                "mempool.1.head.ingest-2",
                "mempool.1.bundle.ingest-1",
                "$JS.API.STREAM.CREATE.OTHER",
                "$JS.API.STREAM.PURGE.MEMPOOL_1_PUBLIC",
                "$JS.API.STREAM.MSG.DELETE.MEMPOOL_1_PUBLIC",
                "$JS.API.CONSUMER.CREATE.MEMPOOL_1_PUBLIC.ingest-1",
                "$JS.API.CONSUMER.MSG.NEXT.MEMPOOL_1_PUBLIC.builder-1",
                "_INBOX_builder-1.x",
            ],
            &["mempool.1.tx.>", "_INBOX.>", "_INBOX_builder-1.>", "$JS.EVENT.>", "$SYS.>"],
        )
        .await;

    let mut builder = connect("builder-1").await;
    let created = builder.request(CREATE, &consumer("")).await;
    assert!(created.contains("\"created\":"), "{created}");
    // A delivered message has the subject on which it was published, so `request` would not receive
    // it.
    let inbox = builder.client.new_inbox();
    let mut delivered = builder.client.subscribe(inbox.clone()).await.unwrap();
    builder.client.publish_with_reply(NEXT, inbox, r#"{"batch":1}"#.into()).await.unwrap();
    let first = tokio::time::timeout(PATIENCE, delivered.next()).await.expect("in time");
    assert_eq!(first.expect("connected").payload, "order");
    builder
        .may_not(
            &[
                tx,
                "mempool.1.head.ingest-1",
                "$JS.API.STREAM.CREATE.OTHER",
                "$JS.API.STREAM.DELETE.MEMPOOL_1_PUBLIC",
                "$JS.API.CONSUMER.CREATE.MEMPOOL_1_PUBLIC",
                "$JS.API.CONSUMER.CREATE.MEMPOOL_1_PUBLIC.builder-2",
                "$JS.API.CONSUMER.DURABLE.CREATE.MEMPOOL_1_PUBLIC.builder-1",
                "$JS.API.CONSUMER.DELETE.MEMPOOL_1_PUBLIC.builder-2",
                "$JS.API.CONSUMER.MSG.NEXT.MEMPOOL_1_PUBLIC.builder-2",
                "_INBOX_ingest-1.x",
            ],
            &["mempool.1.tx.*", "_INBOX.>", "_INBOX_ingest-1.>", "$JS.EVENT.>"],
        )
        .await;

    let mut private = connect("ingest-1-private").await;
    private
        .may_not(
            &[tx, "mempool.1.bundle.ingest-2", "$JS.API.STREAM.CREATE.OTHER"],
            &["mempool.1.bundle.*"],
        )
        .await;
    let mut private = connect("builder-1-private").await;
    private.may_not(&["mempool.1.bundle.ingest-1", INFO, CREATE], &["mempool.1.bundle.*"]).await;
}

/// The server does not check whether a user may publish to the reply subject of its request.
#[tokio::test]
async fn nats_a_response_to_a_machines_subject_stores_and_purges_nothing() {
    let (sample, server) = one_server();
    let admin = User::connect(&sample, &server, "admin").await;
    let streams = jetstream::new(admin.client.clone());
    let subjects = ["mempool.1.tx.*", "mempool.1.head.*"];
    streams.create_stream(stream_config(&subjects, 1)).await.unwrap();
    let ingest = User::connect(&sample, &server, "ingest-1").await;
    ingest.store("mempool.1.tx.ingest-1", "first").await;
    let builder = User::connect(&sample, &server, "builder-1").await;
    let pull = r#"{"batch":9,"expires":300000000,"idle_heartbeat":100000000}"#;
    for target in ["mempool.1.tx.ingest-2", "$JS.API.STREAM.PURGE.MEMPOOL_1_PUBLIC"] {
        for (request, body) in [(INFO, ""), (CREATE, &consumer("")), (NEXT, pull)] {
            let sent = builder.client.publish_with_reply(request, target, body.to_owned().into());
            sent.await.unwrap();
        }
        // The last message of the pull request arrives after 300 ms.
        tokio::time::sleep(Duration::from_millis(600)).await;
        builder.request(DELETE, "").await;
        let pushed = format!(r#","deliver_subject":"{target}","idle_heartbeat":100000000"#);
        builder.request(CREATE, &consumer(&pushed)).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        builder.request(DELETE, "").await;
    }
    // This message is stored after everything that the responses may have stored or purged.
    ingest.store("mempool.1.tx.ingest-1", "second").await;
    let mut stream = streams.get_stream(STREAM).await.unwrap();
    let state = stream.info().await.unwrap().state.clone();
    let (first, last) = (state.first_sequence, state.last_sequence);
    println!(
        "a builder's responses to a machine's subject: {} stored, {} purged",
        last - 2,
        first - 1
    );
    assert_eq!((first, last), (1, 2));
}

#[tokio::test]
async fn nats_the_sample_refuses_other_passwords_and_connections_without_tls() {
    let (sample, server) = one_server();
    let wrong = sample.options("ingest-1", "wrong").connect(server.url()).await.unwrap_err();
    assert_eq!(wrong.kind(), ConnectErrorKind::AuthorizationViolation);
    let nobody =
        ConnectOptions::new().add_root_certificates(sample.certificate()).connect(server.url());
    assert_eq!(nobody.await.unwrap_err().kind(), ConnectErrorKind::AuthorizationViolation);
    // Without the certificate of the sample, the certificate of the server is not trusted.
    let unknown = ConnectOptions::with_user_and_password("ingest-1".into(), password("ingest-1"));
    let error = unknown.connect(server.url()).await.unwrap_err();
    assert_ne!(error.kind(), ConnectErrorKind::AuthorizationViolation, "{error}");
    let mut config = sample.config.clone();
    config.envs.retain(|(name, _)| name != "NATS_KEY");
    let folder = tempfile::tempdir().unwrap();
    let error = NatsServer::start(folder.path(), &config).unwrap_err().to_string();
    assert!(error.contains("NATS_KEY"), "{error}");
}

/// A server with its name on the command line refuses to reload its configuration.
#[tokio::test]
async fn nats_the_sample_is_reloaded_after_sighup() {
    let (sample, server) = one_server();
    server.sighup().unwrap();
    let log = || fs::read_to_string(sample.folder.path().join("nats-1.log")).unwrap();
    let is_read = || log().contains("Reloaded server configuration");
    eventually("the configuration is reloaded", || is_read() || log().contains("Failed to reload"))
        .await;
    assert!(is_read(), "{}", log());
}

/// It used to be reported as a server that cannot be reached.
#[tokio::test]
async fn nats_an_untrusted_certificate_is_reported_as_a_tls_error() {
    let (sample, server) = one_server();
    let mut config = sample.server(&server, "builder-1");
    config.root_certificates = None;
    let pool = OrderPool::new(PoolConfig::default()).unwrap();
    let source = Source::start(&pool, SourceConfig::new(config, 1, "builder-1")).unwrap();
    eventually("the reason", || {
        source.state() == State::Disconnected { reason: DisconnectReason::Tls }
    })
    .await;
    source.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn nats_three_servers_of_the_sample_form_a_cluster_over_tls() {
    let sample = Sample::new("cluster.conf");
    let cluster = NatsCluster::start(sample.folder.path(), 3, &sample.config).unwrap();
    let admin = User::connect(&sample, &cluster.servers()[0], "admin").await;
    let streams = jetstream::new(admin.client.clone());
    streams.create_stream(stream_config(&["mempool.1.tx.*"], 3)).await.unwrap();
    let ingest = User::connect(&sample, &cluster.servers()[1], "ingest-1").await;
    ingest.store("mempool.1.tx.ingest-1", "first").await;
    // A builder reads from a server that may not lead the stream.
    let pool = OrderPool::new(PoolConfig::default()).unwrap();
    for server in cluster.servers() {
        let config = SourceConfig::new(sample.server(server, "builder-1"), 1, "builder-1");
        let source = Source::start(&pool, config).unwrap();
        eventually("the message is read", || source.stats().malformed == 1).await;
        source.shutdown(PATIENCE).await;
    }
}
