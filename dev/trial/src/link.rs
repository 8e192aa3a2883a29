//! A TCP link between callers and a server: it passes bytes on, delays, stalls, resets and
//! half-closes them. The server sees the callers' own addresses.

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

/// The bytes that TCP sends at first before it waits for an acknowledgement (RFC 6928).
const WINDOW_BYTES: usize = 10 * 1_460;

#[derive(Clone, Debug)]
pub(crate) struct State {
    /// `None` while the server is down: connections are reset.
    pub(crate) server: Option<SocketAddr>,
    /// No byte passes before this time.
    pub(crate) stalled_until: Instant,
    /// Each increment resets all connections.
    pub(crate) resets: u64,
    /// Each increment closes the direction to the server of all connections.
    pub(crate) half_closes: u64,
    /// The delay of each [`WINDOW_BYTES`] to the server.
    pub(crate) delay: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    state: watch::Sender<State>,
}

impl Link {
    /// Listens at an address of its own, and passes on what comes with this delay.
    pub(crate) async fn open(delay: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let state =
            State { server: None, stalled_until: Instant::now(), resets: 0, half_closes: 0, delay };
        let link = Self { address: listener.local_addr()?, state: watch::Sender::new(state) };
        let accepting = link.clone();
        tokio::spawn(async move {
            while let Ok((client, caller)) = listener.accept().await {
                let link = accepting.clone();
                // A connection that fails is closed: both ends see it.
                tokio::spawn(async move { link.pass(client, caller).await });
            }
        });
        Ok(link)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    async fn pass(&self, client: TcpStream, caller: SocketAddr) -> io::Result<()> {
        let State { server, resets, half_closes, .. } = self.state.borrow().clone();
        let Some(server) = server else { return client.set_zero_linger() };
        let socket = TcpSocket::new_v4()?;
        socket.bind((caller.ip(), 0).into())?;
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

    /// Copies until the end, or until the direction is closed. Only the direction to the server,
    /// which has the number of half-closes before, is delayed and closed.
    async fn copy(
        &self,
        mut source: OwnedReadHalf,
        mut destination: OwnedWriteHalf,
        half_closes: Option<u64>,
    ) -> io::Result<()> {
        let delay = self.state.borrow().delay;
        let is_delayed = half_closes.is_some() && !delay.is_zero();
        let mut buffer = vec![0; if is_delayed { WINDOW_BYTES } else { 64 << 10 }];
        let mut state = self.state.subscribe();
        let is_closed = |state: &State| half_closes.is_some_and(|count| state.half_closes != count);
        loop {
            let read = tokio::select! {
                read = source.read(&mut buffer) => read?,
                _ = state.wait_for(is_closed) => 0,
            };
            let stalled_until = self.state.borrow().stalled_until;
            sleep_until(stalled_until.into()).await;
            if is_delayed {
                sleep(delay).await;
            }
            if read == 0 {
                return destination.shutdown().await;
            }
            destination.write_all(&buffer[..read]).await?;
        }
    }
}
