//! Subscribes to the hashes, objects and heads that a node announces.

use std::{sync::Arc, time::Instant};

use futures::{FutureExt as _, future::BoxFuture};

use super::{Backlog, hashes::HashReader, objects::ObjectListener, pairs::Pairs};
use crate::{
    chain::read_head,
    config::Announcements,
    connection::{Listener, Subscription, dial},
    error::{CallError, ConnectError, LossReason},
    fetch::{Deliverer, Fetch},
    gap::Report,
    sink::TransactionSink,
};

/// Longest head that is read; a longer one counts as malformed. anvil's heads carry the hashes of their
/// transactions: 200 kB for 3,000.
const MAX_HEAD_BYTES: usize = 1024 * 1024;

struct HeadListener {
    fetch: Arc<Fetch>,
    backlog: Arc<Backlog>,
}

impl Listener for HeadListener {
    fn on_notification(&mut self, json: &str, _: Instant) {
        let read = Some(json).filter(|json| json.len() <= MAX_HEAD_BYTES).map(read_head);
        let Some(Ok(head)) = read else {
            return self.fetch.metrics.malformed_notifications.increment(1);
        };
        // The source reads its reports at once; of 256 that wait one more head is no news.
        let _ = self.backlog.reports.try_send(Report::Head(head));
        self.backlog.heads.push(head.into(), 0);
    }
}

/// Connects and subscribes. `known`: the source was up before. The future requests the hashes whose objects are overdue,
/// until one of the two connections ends, which ends the other one; or, with [`Announcements::Auto`], until the node
/// turns out to announce hashes in place of objects.
pub(crate) async fn subscribe<S: TransactionSink>(
    deliverer: &Arc<Deliverer<S>>,
    index: usize,
    backlog: &Arc<Backlog>,
    known: bool,
) -> Result<(Subscription, BoxFuture<'static, ()>), ConnectError> {
    const HASHES: &str = "newPendingTransactions";
    let fetch = &deliverer.fetch;
    let limits = &fetch.settings.limits;
    let endpoint = &fetch.settings.config.sources[index];
    let limit = limits.ping_timeout;
    let announcements = fetch.settings.config.announcements;
    let thread = ("mempool-announce", &*fetch.tasks);
    let patience = (limits, &fetch.listings[index]);
    let ((connection, node), second) = match announcements {
        Announcements::Hashes => {
            let [dialed] = dial(endpoint, patience, known, thread).await?;
            (dialed, None)
        }
        Announcements::Full | Announcements::Auto => {
            let [dialed, objects] = dial(endpoint, patience, known, thread).await?;
            (dialed, Some(objects))
        }
    };
    let refused = |error: CallError| ConnectError::NotEthereum {
        endpoint: endpoint.to_string(),
        method: "eth_subscribe",
        answer: error.to_string(),
    };
    deliverer.chain_id.check(index, endpoint, node.chain_id).await?;
    let mut full = None;
    // Objects first: a hash without its object is then one that the node has dropped.
    if let Some((connection, node)) = second {
        deliverer.chain_id.check(index, endpoint, node.chain_id).await?;
        let paired = Pairs::new(backlog, &fetch.waiting, limits);
        let listener = ObjectListener::new(fetch, backlog, &paired);
        match connection.subscribe((HASHES, true), listener, limit).await {
            Ok(()) => full = Some((Arc::new(connection), paired)),
            Err(CallError::Rpc { code, message }) if announcements == Announcements::Auto => {
                tracing::warn!(%endpoint, code, message, "the node refuses full objects: taking hashes");
            }
            Err(error) => return Err(refused(error)),
        }
    }
    let pairs = full.as_ref().map(|(_, pairs)| pairs);
    let reader = HashReader::new(fetch, index, backlog, pairs);
    connection.subscribe((HASHES,), reader, limit).await.map_err(refused)?;
    let listener = HeadListener { fetch: Arc::clone(fetch), backlog: Arc::clone(backlog) };
    connection.subscribe(("newHeads",), listener, limit).await.map_err(refused)?;
    let hashes = Arc::new(connection);
    let objects = full.as_ref().map(|(objects, _)| objects);
    let up = Subscription {
        node,
        ended: Arc::clone(&hashes.ended),
        connections: std::iter::once(&hashes).chain(objects).cloned().collect(),
    };
    let (fetch, backlog) = (Arc::clone(fetch), Arc::clone(backlog));
    let read = async move {
        let Some((objects, pairs)) = full else { return };
        let until_one_ends = async {
            tokio::select! {
                // A refusal ends the connection for objects alone.
                biased;
                () = pairs.refused.notified() => {
                    tracing::warn!("the node announces hashes instead of objects: taking hashes");
                    backlog.report(Report::NoObjects).await;
                    objects.end(LossReason::Closed);
                }
                reason = objects.ended.wait() => hashes.end(reason),
                reason = hashes.ended.wait() => objects.end(reason),
            }
        };
        tokio::join!(pairs.request_overdue(&fetch), until_one_ends);
    };
    Ok((up, read.boxed()))
}
