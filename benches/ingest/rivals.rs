//! The ways builders fetch today, as their authors would write them on `alloy`.
//!
//! Both insert into the same [`OrderPool`] and recover senders with the same C library. Neither
//! checks that the response is the requested transaction, retries, times out, or follows heads:
//! that favours them.

use std::{path::PathBuf, sync::Arc, time::SystemTime};

use alloy::{
    consensus::transaction::{Recovered, SignerRecoverable as _},
    eips::Decodable2718 as _,
    primitives::{B256, Bytes},
    providers::{IpcConnect, Provider, ProviderBuilder},
};
use futures::StreamExt as _;
use mempool_ingest::{
    OrderPool,
    order_pool::{Origin, PooledTransaction, Transaction},
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Semaphore,
};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Fetches of the plain concurrent rival in flight at once.
const PERMITS: usize = 64;

/// Its broadcast slots between the connection and its loop.
const BUFFER: usize = 16_384;

/// One connection, one fetch at a time in the loop that reads the notifications, alloy's default
/// buffer of 16, two worker threads, as tokio has by default on two cores. Returns when subscribed;
/// its runtime is the rival at work.
pub(crate) fn sequential(path: PathBuf, pool: OrderPool) -> Result<Runtime, Error> {
    let runtime = runtime(2)?;
    let (provider, mut hashes) = runtime.block_on(async {
        let provider = ProviderBuilder::new().connect_ipc(IpcConnect::new(path)).await?;
        let hashes = provider.subscribe_pending_transactions().await?.into_stream();
        Ok::<_, Error>((provider, hashes))
    })?;
    runtime.spawn(async move {
        while let Some(hash) = hashes.next().await {
            if let Err(error) = fetch(&provider, hash, &pool).await {
                eprintln!("sequential: {hash}: {error}");
            }
        }
    });
    Ok(runtime)
}

/// A second connection for requests, a task for each hash, 64 permits, a buffer of 16,384. Returns
/// when subscribed.
///
/// The permit is acquired inside the task, so that the loop only reads and spawns: no announcement
/// waits for a fetch, which loses the least. Nothing bounds the number of tasks.
pub(crate) fn concurrent(
    path: PathBuf,
    pool: OrderPool,
    worker_threads: usize,
) -> Result<Runtime, Error> {
    let runtime = runtime(worker_threads)?;
    let (subscription, requests, mut hashes) = runtime.block_on(async {
        let subscription =
            ProviderBuilder::new().connect_ipc(IpcConnect::new(path.clone())).await?;
        let requests = ProviderBuilder::new().connect_ipc(IpcConnect::new(path)).await?;
        let hashes =
            subscription.subscribe_pending_transactions().channel_size(BUFFER).await?.into_stream();
        Ok::<_, Error>((subscription, requests, hashes))
    })?;
    let permits = Arc::new(Semaphore::new(PERMITS));
    runtime.spawn(async move {
        // The subscription lives as long as its provider.
        let _subscription = subscription;
        while let Some(hash) = hashes.next().await {
            let (requests, pool) = (requests.clone(), pool.clone());
            let permits = Arc::clone(&permits);
            tokio::spawn(async move {
                let _permit = permits.acquire_owned().await.expect("never closed");
                if let Err(error) = fetch(&requests, hash, &pool).await {
                    eprintln!("plain concurrent: {hash}: {error}");
                }
            });
        }
    });
    Ok(runtime)
}

fn runtime(worker_threads: usize) -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(worker_threads).enable_all().build()
}

async fn fetch(provider: &impl Provider, hash: B256, pool: &OrderPool) -> Result<(), Error> {
    let first_seen = SystemTime::now();
    let Some(raw) = provider.get_raw_transaction_by_hash(hash).await? else { return Ok(()) };
    let tx = decode(&raw)?;
    pool.insert_transaction(Transaction::new(tx, Origin::Mempool, first_seen));
    Ok(())
}

/// The floor: the least work of anyone who needs the sender of a raw transaction.
pub(crate) fn decode(raw: &Bytes) -> Result<Recovered<PooledTransaction>, Error> {
    Ok(PooledTransaction::decode_2718_exact(raw)?.try_into_recovered()?)
}
