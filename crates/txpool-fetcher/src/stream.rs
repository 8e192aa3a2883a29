//! The transactions as a stream that owns the fetcher.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use tokio::sync::mpsc;

use crate::{
    config::{FetcherConfig, MAX_STREAM_BUFFER, within},
    error::StartError,
    fetcher::{Fetcher, FetcherEnd},
    sink::FetchedTransaction,
};

/// Pending transactions as a [`Stream`], which ends with the fetcher. Dropping it stops the fetcher
/// without waiting. Heads and nonces are not part of it: for those, start a
/// [`Fetcher`] into a channel of [`SinkEvent`](crate::SinkEvent)s.
///
/// A reader that is slower than the announcements is a slow sink: see [`TransactionSink`](crate::TransactionSink).
#[derive(Debug)]
pub struct TransactionStream {
    transactions: mpsc::Receiver<FetchedTransaction>,
    fetcher: Fetcher,
}

impl Fetcher {
    /// Starts fetching into a stream that holds at most `buffer`, 1 to [`MAX_STREAM_BUFFER`].
    ///
    /// # Errors
    /// As [`Fetcher::start`]; `buffer` is out of its bounds.
    ///
    /// # Cancel safety
    /// As [`Fetcher::start`].
    pub async fn stream(
        config: FetcherConfig,
        buffer: usize,
    ) -> Result<TransactionStream, StartError> {
        within("buffer", buffer, 1, MAX_STREAM_BUFFER)?;
        let (sink, transactions) = mpsc::channel(buffer);
        let fetcher = Self::start(config, sink).await?;
        Ok(TransactionStream { transactions, fetcher })
    }
}

impl TransactionStream {
    /// The fetcher, for its status, its counts and its audits.
    #[must_use]
    pub const fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// Stops the fetcher, as [`Fetcher::shutdown`] does. Buffered transactions are dropped.
    ///
    /// # Cancel safety
    /// The stop continues if this is dropped.
    pub async fn shutdown(self, deadline: Duration) -> FetcherEnd {
        let Self { transactions, fetcher } = self;
        fetcher.begin_stop(deadline);
        // Releases a delivery that waits for room; before the stop, the sink would count as closed.
        drop(transactions);
        fetcher.shutdown(deadline).await
    }
}

impl Stream for TransactionStream {
    type Item = FetchedTransaction;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.transactions.poll_recv(cx)
    }
}
