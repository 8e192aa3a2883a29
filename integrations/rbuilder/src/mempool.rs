//! In place of `crates/rbuilder/src/live_builder/order_input/txpool_fetcher.rs`.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use txpool_fetcher::{
    Delivery, FetchedTransaction, Fetcher, FetcherConfig, StartError, TransactionSink,
};

use crate::rbuilder::{
    MempoolTx, Order, ReplaceableOrderPoolCommand as Command,
    TransactionSignedEcRecoveredWithBlobs, add_txfetcher_time_to_query, mark_command_received,
};

struct ToOrderPool(mpsc::Sender<Command>);

impl TransactionSink for ToOrderPool {
    /// Waits while the channel is full, where rbuilder's own fetcher loses the order after 50 ms.
    async fn deliver(&self, fetched: FetchedTransaction) -> Delivery {
        let received_at = fetched.first_seen.into();
        add_txfetcher_time_to_query(fetched.announced_at.elapsed());
        // The sender is known: this converts, and recovers nothing.
        let Ok(tx) = TransactionSignedEcRecoveredWithBlobs::try_from(fetched.tx) else {
            return Delivery::Refused("not_convertible");
        };
        let command = Command::Order(Arc::new(Order::Tx(MempoolTx::new(tx))));
        mark_command_received(&command, received_at);
        match self.0.send(command).await {
            Ok(()) => Delivery::Pooled,
            Err(_) => Delivery::Closed,
        }
    }

    fn wants_nonces(&self) -> bool {
        false // `OrderPool::head_updated` reads them from the state.
    }
}

/// Fetches from the node until `cancel` is cancelled, or the fetcher ends for good. With `cancel_on_end`, as rbuilder's own
/// fetcher does, rbuilder then ends too; without, it goes on with bundles alone.
///
/// # Errors
/// [`StartError`]: the node cannot be reached, or the configuration is wrong.
pub async fn subscribe_to_txpool_with_blobs(
    config: FetcherConfig,
    results: mpsc::Sender<Command>,
    cancel: CancellationToken,
    cancel_on_end: bool,
) -> Result<JoinHandle<()>, StartError> {
    let fetcher = Fetcher::start(config, ToOrderPool(results)).await?;
    Ok(tokio::spawn(async move {
        tokio::select! {
            () = cancel.cancelled() => {}
            end = fetcher.ended() => {
                tracing::error!(?end, "the mempool is gone");
                if cancel_on_end {
                    cancel.cancel();
                }
            }
        }
        let end = fetcher.shutdown(Duration::from_secs(5)).await;
        tracing::info!(?end, "the mempool's fetcher has stopped");
    }))
}
