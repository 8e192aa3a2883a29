//! A real NATS server with JetStream, and clusters of such servers.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use super::{
    ports::Port,
    process::{Process, cannot, find_binary},
};

const BINARY: &str = "nats-server";

/// The name of a cluster.
const CLUSTER_NAME: &str = "devnet";

/// The monitoring page that is healthy when JetStream runs, whether or not the streams are current
/// or a cluster has a leader.
const JETSTREAM_RUNS: &str = "/healthz?js-server-only=true";

pub fn find_nats() -> io::Result<PathBuf> {
    find_binary(BINARY)
}

#[derive(Clone, Debug)]
pub struct NatsConfig {
    /// The largest message, in bytes. Default 2 MiB. Ignored if [`file`](Self::file) is set.
    pub max_payload_bytes: u32,
    /// Further lines of the configuration, in the format of the server. Ignored if `file` is set.
    pub extra: String,
    /// A configuration file that replaces the fields above. It must use `$NATS_NAME` as name and
    /// `$NATS_STORE` as store; the addresses are still those of the devnet.
    pub file: Option<PathBuf>,
    /// Environment variables to which the configuration may refer.
    pub envs: Vec<(String, String)>,
}

impl Default for NatsConfig {
    fn default() -> Self {
        Self { max_payload_bytes: 2 << 20, extra: String::new(), file: None, envs: Vec::new() }
    }
}

impl NatsConfig {
    fn text(&self) -> String {
        format!(
            "server_name: $NATS_NAME\nmax_payload: {}\n\
             jetstream {{ store_dir: $NATS_STORE, max_file_store: 4GB }}\n{}\n",
            self.max_payload_bytes, self.extra
        )
    }
}

/// A server that runs as a child process on the loopback address; killed when dropped.
#[derive(Debug)]
pub struct NatsServer {
    name: String,
    client: Port,
    monitoring: Port,
    /// The port of its route, in a cluster.
    route: Option<Port>,
    process: Process,
}

impl Deref for NatsServer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for NatsServer {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl NatsServer {
    /// Starts a server with its store, configuration and log in `dir`. It answers when this
    /// returns.
    pub fn start(dir: &Path, config: &NatsConfig) -> io::Result<Self> {
        let mut server = Self::new(dir, "nats-1".to_owned(), config, None, &[])?;
        server.restart()?;
        Ok(server)
    }

    fn new(
        dir: &Path,
        name: String,
        config: &NatsConfig,
        route: Option<Port>,
        routes: &[String],
    ) -> io::Result<Self> {
        let (client, monitoring) = (Port::reserve()?, Port::reserve()?);
        let own = dir.join(format!("{name}.conf"));
        if config.file.is_none() {
            fs::write(&own, config.text()).map_err(cannot("write the configuration"))?;
        }
        let file = config.file.as_ref().unwrap_or(&own);
        let mut process = Process::new(BINARY, dir.join(format!("{name}.log")))?;
        let command = process.command();
        command.arg("-c").arg(file).args(["-a", "127.0.0.1"]);
        command.args(["-p", &client.number().to_string()]);
        command.args(["-m", &monitoring.number().to_string()]);
        command.envs(config.envs.iter().cloned()).env("NATS_NAME", &name);
        command.env("NATS_STORE", dir.join(&name));
        if let Some(route) = &route {
            command.args(["--cluster_name", CLUSTER_NAME, "--cluster", &route_url(route)]);
            command.args(["--routes", &routes.join(",")]);
        }
        Ok(Self { name, client, monitoring, route, process })
    }

    /// The URL for clients, `nats://127.0.0.1:PORT`, which does not change with a restart.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.client.number())
    }

    /// Like [`Process::spawn`]; the server answers when this returns.
    pub fn restart(&mut self) -> io::Result<()> {
        self.spawn()?;
        self.wait_ready()
    }

    /// Whether the server has disabled JetStream, by itself or by its configuration.
    pub fn has_disabled_jetstream(&self) -> bool {
        page(self.monitoring.number(), "/jsz").is_ok_and(|jsz| jsz["disabled"] == true)
    }

    /// Whether the server stores a stream, alone or as one of its replicas.
    pub fn stores_stream(&self, stream: &str) -> bool {
        self.stream_detail(stream).is_some()
    }

    /// The name of the server that leads a stream, as far as this server knows.
    fn leader_of(&self, stream: &str) -> Option<String> {
        self.stream_detail(stream)?["cluster"]["leader"].as_str().map(str::to_owned)
    }

    fn stream_detail(&self, stream: &str) -> Option<Value> {
        let page = page(self.monitoring.number(), "/jsz?accounts=true&streams=true").ok()?;
        let accounts = page["account_details"].as_array()?.iter();
        let mut streams =
            accounts.filter_map(|account| account["stream_detail"].as_array()).flatten();
        streams.find(|detail| detail["name"] == stream).cloned()
    }

    /// Waits until JetStream runs and, in a cluster, has a leader.
    fn wait_ready(&mut self) -> io::Result<()> {
        let (port, url) = (self.monitoring.number(), self.url());
        let is_clustered = self.route.is_some();
        let has_leader = || {
            let meta = page(port, "/jsz").map(|jsz| jsz["meta_cluster"]["leader"].is_string());
            !is_clustered || meta.unwrap_or(false)
        };
        let runs = || page(port, JETSTREAM_RUNS).is_ok_and(|health| health["status"] == "ok");
        self.process.wait(&url, || runs() && has_leader())
    }
}

/// Servers with routes to each other, among which JetStream replicates; killed when dropped.
#[derive(Debug)]
pub struct NatsCluster {
    servers: Vec<NatsServer>,
}

impl NatsCluster {
    /// Starts `count` servers in `dir`. JetStream has a leader when this returns. A cluster that
    /// must survive the loss of a server has three.
    pub fn start(dir: &Path, count: usize, config: &NatsConfig) -> io::Result<Self> {
        let routes = (0..count).map(|_| Port::reserve()).collect::<Result<Vec<_>, _>>()?;
        let urls: Vec<_> = routes.iter().map(route_url).collect();
        let server = |(index, route)| {
            NatsServer::new(dir, format!("nats-{}", index + 1), config, Some(route), &urls)
        };
        let servers = routes.into_iter().enumerate().map(server).collect::<Result<Vec<_>, _>>()?;
        let mut cluster = Self { servers };
        for server in &mut cluster.servers {
            server.spawn()?;
        }
        for server in &mut cluster.servers {
            server.wait_ready()?;
        }
        // Streams can be placed on all servers only when all are current. The page of the leader
        // lists the others.
        let monitoring = cluster.servers.iter().map(|server| server.monitoring.number());
        let ports: Vec<_> = monitoring.collect();
        let is_whole = || ports.iter().any(|port| current_replicas(*port) + 1 == count);
        cluster.servers[0].process.wait("a server of the cluster", is_whole)?;
        Ok(cluster)
    }

    pub fn servers(&self) -> &[NatsServer] {
        &self.servers
    }

    /// A server, to kill and restart it.
    pub fn server(&mut self, index: usize) -> &mut NatsServer {
        &mut self.servers[index]
    }

    /// The URLs of all servers, for clients that try one after the other.
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(NatsServer::url).collect()
    }

    /// The index of the server that leads a stream, as far as the running servers know.
    pub fn stream_leader(&self, stream: &str) -> Option<usize> {
        let running = self.servers.iter().filter(|server| server.pid().is_some());
        let leaders: Vec<_> = running.filter_map(|server| server.leader_of(stream)).collect();
        self.servers
            .iter()
            .position(|server| server.pid().is_some() && leaders.contains(&server.name))
    }
}

/// The number of other servers that a leader of JetStream reports as current, by its monitoring.
fn current_replicas(monitoring_port: u16) -> usize {
    let jsz = page(monitoring_port, "/jsz").unwrap_or_default();
    let replicas = jsz["meta_cluster"]["replicas"].as_array().into_iter().flatten();
    replicas.filter(|replica| replica["current"] == true).count()
}

fn route_url(port: &Port) -> String {
    format!("nats://127.0.0.1:{}", port.number())
}

/// Requests a page of the monitoring of a server.
fn page(port: u16, path: &str) -> io::Result<Value> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let (_, body) = response.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(serde_json::from_str(body)?)
}
