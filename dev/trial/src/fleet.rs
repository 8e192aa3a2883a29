//! The servers of a fleet, and the faults that strike them. One server at a time is struck: a
//! second one would take the majority.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use mock_node::DEV_CHAIN_ID;
use order_stream::{Flow, ServerConfig, StreamConfig, ensure_stream, stream_name};
use testkit::devnet::{NatsCluster, NatsConfig};

use crate::{link::Link, run::Failure};

const SERVERS: usize = 3;

/// The size of a server's disk, in a world in which one becomes full: a few times what a run of two
/// minutes stores.
const DISK_MIB: usize = 256;

/// The file that fills a disk.
const FILLER: &str = "filler";

pub(crate) struct Fleet {
    cluster: NatsCluster,
    /// Between the members and the servers.
    links: Vec<Link>,
    /// The server that a fault strikes at present.
    struck: Option<usize>,
    /// Unmounted after the cluster has ended.
    disks: Vec<Disk>,
}

/// A disk of a server: a file system of a bounded size, in memory.
struct Disk(PathBuf);

impl Fleet {
    /// Starts the servers with their streams. With `has_disks` each has a disk of its own, for
    /// which this process needs the right to mount.
    pub(crate) async fn start(folder: &Path, has_disks: bool) -> Result<Self, Failure> {
        let mut disks = Vec::new();
        for server in 1..=if has_disks { SERVERS } else { 0 } {
            disks.push(Disk::mount(folder.join(format!("nats-{server}")))?);
        }
        let cluster = NatsCluster::start(folder, SERVERS, &NatsConfig::default());
        let cluster = cluster.map_err(|error| format!("this world has a fleet: {error}"))?;
        let urls = cluster.urls();
        for flow in [Flow::Public, Flow::Private] {
            let stream = StreamConfig { replicas: 3, ..StreamConfig::new(flow, DEV_CHAIN_ID) };
            ensure_stream(&ServerConfig::cluster(&urls), &stream).await?;
        }
        let mut links = Vec::new();
        for url in &urls {
            let server: SocketAddr = url.trim_start_matches("nats://").parse()?;
            let link = Link::open(Duration::ZERO).await?;
            link.change(|state| state.server = Some(server));
            links.push(link);
        }
        Ok(Self { cluster, links, struck: None, disks })
    }

    /// Returns where the members reach the servers.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.links.iter().map(|link| format!("nats://{}", link.address)).collect()
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
            self.links[server].change(|state| state.stalled_until = until);
        }
        struck.is_some()
    }

    pub(crate) fn reset(&self, server: usize) {
        self.links[server].change(|state| state.resets += 1);
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

impl Disk {
    fn mount(path: PathBuf) -> Result<Self, Failure> {
        fs::create_dir_all(&path)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={DISK_MIB}m"), "tmpfs"]).arg(&path);
        if !mount.status()?.success() {
            let text = "a full disk needs the right to mount: run as root, or without \
                        `--hazards servers`";
            return Err(text.into());
        }
        Ok(Self(path))
    }

    /// Writes until there is no room.
    fn fill(&self) -> io::Result<()> {
        let mut file = File::create(self.0.join(FILLER))?;
        let block = vec![0; 64 << 10];
        loop {
            match file.write_all(&block) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn empty(&self) -> io::Result<()> {
        fs::remove_file(self.0.join(FILLER))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a server that was killed a moment ago may still hold its files.
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("warning: {} stays mounted", self.0.display());
        }
    }
}
