//! rbuilder's source of pending transactions, on the crate `txpool-fetcher`.

use std::{sync::Arc, time::Duration};

use ::txpool_fetcher::{
    Announcements, Delivery, Endpoint, FetchedTransaction, Fetcher, FetcherConfig, StartError,
    TransactionSink,
};
use rbuilder_primitives::{MempoolTx, Order, TransactionSignedEcRecoveredWithBlobs};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{MempoolSource, OrderInputConfig, ReplaceableOrderPoolCommand};
use crate::telemetry::{add_txfetcher_time_to_query, mark_command_received};

/// Fetches from the node until `global_cancel` is cancelled. A lost connection is opened again. If
/// the fetcher ends for good, it cancels `global_cancel`, as rbuilder's own does.
///
/// # Errors
/// No source is configured, or the node cannot be reached.
pub async fn subscribe_to_txpool_with_blobs(
    config: OrderInputConfig,
    results: mpsc::Sender<ReplaceableOrderPoolCommand>,
    global_cancel: CancellationToken,
) -> eyre::Result<JoinHandle<()>> {
    let source = match config.mempool_source {
        Some(MempoolSource::Ipc(path)) => Endpoint::Ipc(path),
        Some(MempoolSource::Ws(url)) => Endpoint::Ws(url),
        None => eyre::bail!("No txpool source configured"),
    };
    let mut fetcher = FetcherConfig::new([source]);
    fetcher.announcements = Announcements::Auto;
    Ok(fetch(fetcher, results, global_cancel).await?)
}

/// Does the same with every option of the fetcher.
///
/// # Errors
/// The node cannot be reached, or an option is out of bounds.
pub async fn fetch(
    config: FetcherConfig,
    results: mpsc::Sender<ReplaceableOrderPoolCommand>,
    global_cancel: CancellationToken,
) -> Result<JoinHandle<()>, StartError> {
    let fetcher = Fetcher::start(config, ToOrderPool(results)).await?;
    Ok(tokio::spawn(async move {
        tokio::select! {
            () = global_cancel.cancelled() => {}
            end = fetcher.ended() => {
                tracing::error!(?end, "the mempool's fetcher has ended");
                global_cancel.cancel();
            }
        }
        let end = fetcher.shutdown(Duration::from_secs(5)).await;
        tracing::info!(?end, "the mempool's fetcher has stopped");
    }))
}

struct ToOrderPool(mpsc::Sender<ReplaceableOrderPoolCommand>);

impl TransactionSink for ToOrderPool {
    /// Waits while the channel is full, where rbuilder's own fetcher drops the order after 50 ms.
    async fn deliver(&self, fetched: FetchedTransaction) -> Delivery {
        let received_at = fetched.first_seen.into();
        add_txfetcher_time_to_query(fetched.announced_at.elapsed());
        // This converts the type. The sender is already recovered.
        let Ok(tx) = TransactionSignedEcRecoveredWithBlobs::try_from(fetched.tx) else {
            return Delivery::Refused("not_convertible");
        };
        let order = Arc::new(Order::Tx(MempoolTx::new(tx)));
        let command = ReplaceableOrderPoolCommand::Order(order);
        mark_command_received(&command, received_at);
        match self.0.send(command).await {
            Ok(()) => Delivery::Pooled,
            Err(_) => Delivery::Closed,
        }
    }

    fn wants_nonces(&self) -> bool {
        // rbuilder's `OrderPool::head_updated` reads nonces from the state.
        false
    }
}
