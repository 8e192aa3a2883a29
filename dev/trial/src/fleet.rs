//! The servers of a fleet, and the faults that strike them. One server at a time is struck: a
//! second one would take the majority.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use mock_node::DEV_CHAIN_ID;
use order_stream::{Flow, ServerConfig, StreamConfig, ensure_stream, stream_name};
use testkit::devnet::{Disk, NatsCluster, NatsConfig};

use crate::{link::Link, run::Failure};

const SERVERS: usize = 3;

/// The size of a server's disk, in a world in which one becomes full: a few times what a run of two
/// minutes stores.
const DISK_MIB: usize = 256;

/// How long the servers may take to create a stream.
const SETUP_TIME: Duration = Duration::from_secs(60);

pub(crate) struct Fleet {
    cluster: NatsCluster,
    /// From each member to each server.
    links: Vec<Vec<Link>>,
    /// The server that a fault strikes at present.
    struck: Option<usize>,
    /// Unmounted after the cluster has ended.
    disks: Vec<Disk>,
}

impl Fleet {
    /// Starts the servers with their streams, and the links of so many members. With `has_disks`
    /// each server has a disk of its own, for which this process needs the right to mount.
    pub(crate) async fn start(
        folder: &Path,
        members: usize,
        has_disks: bool,
    ) -> Result<Self, Failure> {
        let mut disks = Vec::new();
        for server in 1..=if has_disks { SERVERS } else { 0 } {
            let disk = Disk::mount(folder.join(format!("nats-{server}")), DISK_MIB);
            disks.push(disk.map_err(|error| format!("{error}, or omit `--hazards disks`"))?);
        }
        let cluster = NatsCluster::start(folder, SERVERS, &NatsConfig::default());
        let cluster = cluster.map_err(|error| format!("this world has a fleet: {error}"))?;
        let urls = cluster.urls();
        for flow in [Flow::Public, Flow::Private] {
            let mut stream = StreamConfig::new(flow, DEV_CHAIN_ID);
            stream.replicas = 3;
            // The first message to a disk that is busy can take longer than a request may.
            let began = Instant::now();
            while let Err(error) = ensure_stream(&ServerConfig::cluster(&urls), &stream).await {
                if began.elapsed() > SETUP_TIME || !error.to_string().contains("timed out") {
                    return Err(error.into());
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        let mut links = Vec::new();
        for _ in 0..members {
            let mut links_of_member = Vec::new();
            for url in &urls {
                let server: SocketAddr = url.trim_start_matches("nats://").parse()?;
                let link = Link::open(Duration::ZERO).await?;
                link.change(|state| state.server = Some(server));
                links_of_member.push(link);
            }
            links.push(links_of_member);
        }
        Ok(Self { cluster, links, struck: None, disks })
    }

    /// Returns where a member reaches the servers.
    pub(crate) fn urls(&self, member: usize) -> Vec<String> {
        self.links[member].iter().map(|link| format!("nats://{}", link.address)).collect()
    }

    /// Returns the server that leads the private stream, or one that does not, unless a fault
    /// strikes already. From now on it counts as struck.
    fn strike(&mut self, leader: bool) -> Option<usize> {
        let leads = self.cluster.stream_leader(&stream_name(Flow::Private, DEV_CHAIN_ID));
        let server = (0..SERVERS).find(|server| (Some(*server) == leads) == leader);
        self.strike_server(server.unwrap_or(0))
    }

    fn strike_server(&mut self, server: usize) -> Option<usize> {
        if self.struck.is_some() {
            return None;
        }
        self.struck = Some(server);
        Some(server)
    }

    /// Kills a server. Returns its number; `None` if another one is struck.
    pub(crate) fn kill(&mut self, leader: bool) -> io::Result<Option<usize>> {
        let server = self.strike(leader);
        server.map(|server| self.cluster.server(server).kill9()).transpose()?;
        Ok(server)
    }

    /// Stops a server in its tracks. Returns its number; `None` if another one is struck.
    pub(crate) fn stop(&mut self, leader: bool) -> io::Result<Option<usize>> {
        let server = self.strike(leader);
        server.map(|server| self.cluster.server(server).sigstop()).transpose()?;
        Ok(server)
    }

    /// Lets no byte pass between the members and a server until this time. Returns false if another
    /// server is struck.
    pub(crate) fn cut(&mut self, server: usize, until: Instant) -> bool {
        let struck = self.strike_server(server);
        if struck.is_some() {
            let links = self.links.iter().map(|links| &links[server]);
            links.for_each(|link| link.change(|state| state.stalled_until = until));
        }
        struck.is_some()
    }

    /// Lets no byte pass between a member and all servers until this time.
    pub(crate) fn cut_member(&self, member: usize, until: Instant) {
        self.links[member].iter().for_each(|link| link.change(|state| state.stalled_until = until));
    }

    pub(crate) fn reset(&self, server: usize) {
        let links = self.links.iter().map(|links| &links[server]);
        links.for_each(|link| link.change(|state| state.resets += 1));
    }

    /// Fills a server's disk. Returns false if another server is struck.
    pub(crate) fn fill_disk(&mut self, server: usize) -> io::Result<bool> {
        let struck = self.strike_server(server);
        if struck.is_some() {
            self.disks[server].fill()?;
        }
        Ok(struck.is_some())
    }

    /// Ends a fault. A server that was killed starts again, one that was stopped continues.
    pub(crate) fn recover(&mut self) -> io::Result<()> {
        let Some(server) = self.struck.take() else { return Ok(()) };
        let process = self.cluster.server(server);
        if process.pid().is_some() { process.sigcont() } else { process.spawn() }
    }

    /// Empties a server's disk and starts the server again: nats-server stores nothing any more
    /// after it has met a full disk.
    pub(crate) fn empty_disk(&mut self) -> io::Result<()> {
        let Some(server) = self.struck.take() else { return Ok(()) };
        self.disks[server].empty()?;
        self.cluster.server(server).spawn()
    }
}
