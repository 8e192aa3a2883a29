//! The network between searchers and a server: it passes bytes on, stalls, resets, and half-closes. The server sees the
//! callers' own addresses.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpSocket, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::{sleep, sleep_until},
};

/// What TCP sends at first before it waits for an acknowledgement, in bytes (RFC 6928).
const WINDOW: usize = 10 * 1_460;

#[derive(Clone, Debug)]
pub(crate) struct State {
    /// `None` while the server is down.
    pub(crate) server: Option<SocketAddr>,
    pub(crate) stalls_until: Instant,
    /// Each more resets all connections.
    pub(crate) resets: u64,
    /// Each more closes all directions to the server.
    pub(crate) half_closes: u64,
    /// What bytes to the server take, at most [`WINDOW`] at a time.
    pub(crate) link: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Net {
    pub(crate) address: SocketAddr,
    state: watch::Sender<State>,
}

impl Net {
    pub(crate) async fn open(link: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let state =
            State { server: None, stalls_until: Instant::now(), resets: 0, half_closes: 0, link };
        let net = Self { address: listener.local_addr()?, state: watch::Sender::new(state) };
        let accepting = net.clone();
        tokio::spawn(async move {
            while let Ok((client, from)) = listener.accept().await {
                let net = accepting.clone();
                // A connection that fails is closed: both ends see it.
                tokio::spawn(async move { net.pass(client, from).await });
            }
        });
        Ok(net)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    async fn pass(&self, client: TcpStream, from: SocketAddr) -> io::Result<()> {
        let State { server, resets, half_closes, .. } = self.state.borrow().clone();
        let Some(server) = server else { return client.set_zero_linger() };
        let socket = TcpSocket::new_v4()?;
        socket.bind((from.ip(), 0).into())?;
        let server = socket.connect(server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let mut state = self.state.subscribe();
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let back = self.copy(from_server, to_client, None);
        let forth = self.copy(from_client, to_server, Some(half_closes));
        // The order does not matter: each of them ends the connection.
        tokio::select! {
            _ = async { tokio::join!(back, forth) } => {}
            _ = state.wait_for(|state| state.resets != resets) => {}
        }
        Ok(())
    }

    /// Until the end, or until the direction is closed.
    async fn copy(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        closes: Option<u64>,
    ) -> io::Result<()> {
        let link = self.state.borrow().link;
        let is_slow = closes.is_some() && !link.is_zero();
        let mut buffer = vec![0; if is_slow { WINDOW } else { 64 << 10 }];
        let mut state = self.state.subscribe();
        let is_closed = |state: &State| closes.is_some_and(|before| state.half_closes != before);
        loop {
            let read = tokio::select! {
                read = from.read(&mut buffer) => read?,
                _ = state.wait_for(is_closed) => 0,
            };
            let until = self.state.borrow().stalls_until;
            sleep_until(until.into()).await;
            if is_slow {
                sleep(link).await;
            }
            if read == 0 {
                return to.shutdown().await;
            }
            to.write_all(&buffer[..read]).await?;
        }
    }
}
