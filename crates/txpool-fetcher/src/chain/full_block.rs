//! A full block over a Unix socket of its own.
//!
//! A full block has megabytes. On the connection for calls, pings and heads would wait behind it,
//! and its framing would take milliseconds of the thread that reads the sockets. So the blocking
//! thread that parses it also reads it.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use chain_view::NonceUpdate;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Unread, wire};
use crate::connection::{Frames, open_ipc};

/// How long a read waits before it checks whether the fetcher stops.
const GRAIN: Duration = Duration::from_millis(50);

/// Connects. Not on the thread that reads: if the listen queue of the socket is full, a blocking
/// connect lasts until the node accepts again.
pub(super) async fn connect(path: &Path, limit: Duration) -> Result<UnixStream, Unread> {
    let opened = timeout(limit, open_ipc(path)).await;
    let stream = opened.map_err(|_| Unread::Failed)?.map_err(|_| Unread::Failed)?;
    let prepare = || {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GRAIN))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(stream)
    };
    prepare().map_err(|_: io::Error| Unread::Failed)
}

/// Requests the block and reads the nonces that it raised. Blocks for at most `limit`, and ends
/// soon after the fetcher stops.
pub(super) fn read_nonces(
    mut stream: UnixStream,
    hash: B256,
    limit: Duration,
    max_frame_bytes: usize,
    stop: &CancellationToken,
) -> Result<Vec<NonceUpdate>, Unread> {
    let deadline = Instant::now() + limit;
    let request = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByHash","params":["{hash}",true]}}"#
    );
    stream.write_all(request.as_bytes()).map_err(|_| Unread::Failed)?;
    let mut frames = Frames::new(max_frame_bytes);
    loop {
        match stream.read(frames.spare()) {
            Ok(0) => return Err(Unread::Failed),
            Ok(count) => frames.filled(count),
            Err(error) if is_timeout(&error) => {}
            Err(_) => return Err(Unread::Failed),
        }
        match frames.next() {
            Ok(Some(answer)) => return wire::read_nonces_answer(answer, hash),
            Err(_) => return Err(Unread::Malformed),
            Ok(None) if stop.is_cancelled() || Instant::now() >= deadline => {
                return Err(Unread::Failed);
            }
            Ok(None) => {}
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}
