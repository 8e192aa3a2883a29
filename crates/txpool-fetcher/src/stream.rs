//! Pending transactions as a stream that owns its fetcher.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use tokio::sync::mpsc;

use crate::{
    config::{FetcherConfig, MAX_STREAM_BUFFER, check_range},
    error::StartError,
    fetcher::{Fetcher, FetcherEnd},
    sink::FetchedTransaction,
};

/// Pending transactions as a [`Stream`] that owns its fetcher. Dropping it stops the fetcher
/// without waiting. It has no heads and no nonces: for those, start a [`Fetcher`] into a channel of
/// [`SinkEvent`](crate::SinkEvent)s.
///
/// A reader that is slower than the announcements acts as a slow sink: see
/// [`TransactionSink`](crate::TransactionSink).
#[derive(Debug)]
pub struct TransactionStream {
    transactions: mpsc::Receiver<FetchedTransaction>,
    fetcher: Fetcher,
}

impl Fetcher {
    /// Starts a fetcher whose transactions are read from a stream. The stream holds at most
    /// `buffer` transactions that were not read yet, 1 to [`MAX_STREAM_BUFFER`].
    ///
    /// # Errors
    /// Those of [`Fetcher::start`], and [`ConfigError::OutOfRange`](crate::ConfigError::OutOfRange)
    /// for `buffer`.
    ///
    /// # Cancel safety
    /// If the future is dropped, everything that was started is stopped.
    pub async fn stream(
        config: FetcherConfig,
        buffer: usize,
    ) -> Result<TransactionStream, StartError> {
        check_range("buffer", buffer, 1, MAX_STREAM_BUFFER)?;
        let (sink, transactions) = mpsc::channel(buffer);
        let fetcher = Self::start(config, sink).await?;
        Ok(TransactionStream { transactions, fetcher })
    }
}

impl TransactionStream {
    /// Returns the fetcher, for its status, its counts and its audits.
    #[must_use]
    pub const fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// Stops the fetcher like [`Fetcher::shutdown`]. Transactions that were not read are dropped.
    ///
    /// # Cancel safety
    /// The stop continues if the future is dropped.
    pub async fn shutdown(self, deadline: Duration) -> FetcherEnd {
        let Self { transactions, fetcher } = self;
        fetcher.begin_stop(deadline);
        // This releases a delivery that waits for room. It comes after the stop, because before it
        // the fetcher would end with `EndReason::SinkClosed`.
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
