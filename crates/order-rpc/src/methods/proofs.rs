//! Verifies the proofs of blobs, tens of milliseconds each: one blob at a time, each under a permit
//! that is acquired behind all other callers, so that none waits longer than that. The blobs of a
//! caller's orders come one after the other, and between two of them one of each other caller that
//! waits. Orders of known signers and of fronts have a line of their own, and the priority that
//! they have elsewhere. A verified blob is recognised by its digest, since the same blobs come back
//! with a higher fee and for the next block.
//!
//! # Locks
//! Verified blobs: taken by an order with blobs, for one look-up, or one digest; every 10,000 blobs
//! it frees as many; never across an await or with another lock.

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use alloy_consensus::Transaction as _;
use alloy_primitives::B256;
use load_control::Priority;
use order_pool::{Order, Transaction};
use tokio::{
    sync::{OnceCell, Semaphore, SemaphorePermit, oneshot},
    time::timeout,
};

use super::{Method, Methods, params::FIRST, verify};
use crate::{
    config::WORK_PER_BLOB,
    limits::{Requester, on_thread},
    reply::{ErrorResponse, Reason},
};

/// How long an order waits for those of its caller, and then each of its blobs for those of others: about sixty callers.
const PROOF_WAIT: Duration = Duration::from_secs(2);

/// Most blobs that are remembered after their proofs were verified, of which at least half are
/// kept: 21 blobs per block (the most of mainnet) for an hour and a half, in 1 MB.
const MAX_VERIFIED: usize = 20_000;

/// A blob whose proofs were not verified yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unproven {
    /// The index of its transaction, and its own.
    pub(crate) tx: usize,
    pub(crate) blob: usize,
    digest: B256,
}

#[derive(Debug)]
pub(crate) struct Proofs {
    /// One blob of strangers at a time, and one of known signers: proofs of strangers wait for permits behind all
    /// other callers, so several blobs would only wait for each other.
    turn: Semaphore,
    turn_of_known: Semaphore,
    is_set_up: OnceCell<()>,
    /// The digests of verified blobs: the younger half, and the older one.
    verified: Mutex<[HashSet<B256>; 2]>,
}

impl Proofs {
    pub(crate) fn new() -> Self {
        let verified = Mutex::default();
        let [turn, turn_of_known] = [1, 1].map(Semaphore::new);
        Self { turn, turn_of_known, is_set_up: OnceCell::new(), verified }
    }

    /// The blobs whose proofs are not verified yet: less than a millisecond for each.
    pub(crate) fn unproven(&self, txs: &[Transaction]) -> Vec<Unproven> {
        let mut unproven = Vec::new();
        for (tx, transaction) in txs.iter().enumerate() {
            let blobs = transaction.envelope().blob_versioned_hashes().map_or(0, <[_]>::len);
            for blob in 0..blobs {
                // A missing blob is refused when its proofs are verified.
                let digest = transaction.blob_digest(blob).unwrap_or_default();
                if !self.is_verified(&digest) {
                    unproven.push(Unproven { tx, blob, digest });
                }
            }
        }
        unproven
    }

    fn is_verified(&self, digest: &B256) -> bool {
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        verified.iter().any(|half| half.contains(digest))
    }

    fn remember(&self, digest: B256) {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let [later, before] = &mut *verified;
        if later.len() >= MAX_VERIFIED / 2 {
            *before = mem::take(later);
        }
        later.insert(digest);
    }

    /// Loads the trusted setup, once, on a thread of its own, without a permit: it takes seconds.
    pub(crate) async fn set_up(&self) -> Result<(), ErrorResponse> {
        let load = || async {
            let (done, loaded) = oneshot::channel();
            let run = move || {
                order_pool::load_trusted_setup();
                // The server may have shut down.
                let _ = done.send(());
            };
            let thread = thread::Builder::new().name("order-rpc-setup".to_owned()).spawn(run);
            thread.map_err(|error| error.to_string())?;
            loaded.await.map_err(|_| "its thread has panicked".to_owned())
        };
        self.is_set_up.get_or_try_init(load).await.copied().map_err(|error| {
            tracing::error!(%error, "the trusted setup of blob proofs is not loaded");
            ErrorResponse::internal()
        })
    }
}

impl Methods {
    /// Verifies the proofs of an order's blobs, if any, each under a work permit of its own.
    pub(crate) async fn prove(
        &self,
        method: Method,
        order: &Arc<Order>,
        unproven: Vec<Unproven>,
        requester: Requester,
    ) -> Result<(), ErrorResponse> {
        if unproven.is_empty() {
            return Ok(());
        }
        let is_known = requester.caller.is_front
            || requester.signer.is_some_and(|it| (self.host.knows_signer)(it));
        let caller = self.limiter.callers.with_id(requester.caller);
        let (_own, turn, priority) = match is_known {
            true => (None, &self.proofs.turn_of_known, Priority::Known),
            false => {
                let own = self.turn(&caller.proofs).await?;
                let of_site = match &caller.site {
                    Some(site) => Some(self.turn(&site.proofs).await?),
                    None => None,
                };
                (Some((own, of_site)), &self.proofs.turn, Priority::Unsigned)
            }
        };
        for unproven in unproven {
            // The same blob may have come meanwhile, or before in this order.
            if self.proofs.is_verified(&unproven.digest) {
                continue;
            }
            let _turn = self.turn(turn).await?;
            self.proofs.set_up().await?;
            if self.proofs.is_verified(&unproven.digest) {
                continue;
            }
            let now = Instant::now();
            let permit = self.limiter.gate.acquire_external(priority, now).await?;
            self.limiter.charges.charge(requester, WORK_PER_BLOB)?;
            let order = Arc::clone(order);
            let check = move || {
                let _permit = permit;
                check_blob(&order, method, unproven)
            };
            on_thread(check).await??;
            self.proofs.remember(unproven.digest);
        }
        Ok(())
    }

    async fn turn<'a>(&self, turns: &'a Semaphore) -> Result<SemaphorePermit<'a>, ErrorResponse> {
        if let Ok(Ok(turn)) = timeout(PROOF_WAIT, turns.acquire()).await {
            return Ok(turn);
        }
        let message = "the proofs of too many blobs wait to be verified";
        let retry_after = self.limiter.gate.retry_after();
        Err(ErrorResponse::retry_later(Reason::NoPermit, retry_after, message))
    }
}

/// Verifies the proofs of a blob: tens of milliseconds.
fn check_blob(order: &Order, method: Method, unproven: Unproven) -> Result<(), ErrorResponse> {
    let Unproven { tx: index, blob, .. } = unproven;
    let (tx, field) = match order {
        Order::Tx(tx) if method == Method::SendPrivateTransaction => (Some(tx), "tx".to_owned()),
        Order::Tx(tx) => (Some(tx), FIRST.to_owned()),
        Order::Bundle(bundle) => (bundle.txs().get(index), format!("txs[{index}]")),
        // No other kind of order is created here.
        _ => (None, String::new()),
    };
    let tx = tx.ok_or_else(ErrorResponse::internal)?;
    tx.check_blob_proofs(blob).map_err(|error| verify::sidecar(&field, tx.hash(), &error))
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, time::SystemTime};

    use alloy_primitives::Address;
    use futures::future::join_all;
    use order_pool::{Holder, OrderPool, PoolConfig};
    use serde_json::json;

    use super::{
        super::{Ignored, Verified},
        *,
    };
    use crate::{
        Host, OrderRpcConfig,
        limits::{CallerId, Limiter, Limits},
        tests::{blobs::with_blobs, common},
    };

    fn methods(known: Address) -> Methods {
        let gate = load_control::Gate::new(common::gate_config(64)).unwrap();
        let pool = OrderPool::new(PoolConfig::default()).unwrap();
        let host = Host::new(pool, gate.clone()).with_known_signers(move |it| it == known);
        let limits = Limits::new(OrderRpcConfig::new(common::CHAIN));
        Methods::new(host, Arc::new(Limiter::new(limits, gate)))
    }

    /// A bundle with this transaction, from an address of the loopback network, before its blobs are proven.
    fn sent(methods: &Methods, (from, signer): (u8, Address), tx: &str) -> (Requester, Verified) {
        let caller = CallerId::from(IpAddr::from([127, 0, 0, from]));
        let requester = Requester { caller, signer: Some(signer), arrived: SystemTime::now() };
        let (method, params) = (Method::SendBundle, json!([{ "txs": [tx] }]).to_string());
        let prepared =
            methods.prepare(method, params.as_bytes(), &mut Ignored::new(false), true).unwrap();
        let holder = |_| Holder::Signer(signer);
        (requester, prepared.verify(requester, holder, &methods.proofs).unwrap())
    }

    async fn prove_sent(methods: &Methods, sent: (Requester, Verified)) -> Result<(), Reason> {
        let (requester, verified) = sent;
        let Verified::Order(order, unproven) = verified else { panic!("it is an order") };
        let proven = methods.prove(Method::SendBundle, &order, unproven, requester).await;
        proven.map_err(|error| error.reason)
    }

    async fn prove(methods: &Methods, by: (u8, Address), tx: &str) -> Result<(), Reason> {
        prove_sent(methods, sent(methods, by, tx)).await
    }

    /// Three addresses that sent blobs with the proofs of others kept everybody's waiting for longer than they may.
    #[tokio::test(start_paused = true)]
    async fn known_signers_do_not_wait_behind_the_blobs_of_strangers() {
        let [known, stranger] = [1, 2].map(Address::repeat_byte);
        let methods = methods(known);
        let _turn = methods.proofs.turn.acquire().await.unwrap();
        let (right, _) = with_blobs(1);
        assert_eq!(prove(&methods, (1, known), &right).await, Ok(()));
        // Not known from before.
        *methods.proofs.verified.lock().unwrap() = Default::default();
        assert_eq!(prove(&methods, (1, stranger), &right).await, Err(Reason::NoPermit));
    }

    /// And each other's.
    #[tokio::test(start_paused = true)]
    async fn a_blob_waits_for_one_of_each_other_caller_and_not_for_all_of_them() {
        let methods = methods(Address::ZERO);
        // It takes seconds, which this clock would skip.
        methods.proofs.set_up().await.unwrap();
        let ((three, _), (_, wrong)) = (with_blobs(3), with_blobs(1));
        let done = Mutex::new(Vec::new());
        let sent = [(1, &three), (1, &wrong), (2, &wrong)].into_iter().enumerate();
        let sent = sent.map(|(number, (from, tx))| {
            let (methods, done) = (&methods, &done);
            async move {
                let proven = prove(methods, (from, Address::repeat_byte(from)), tx).await;
                assert_eq!(proven, if number == 0 { Ok(()) } else { Err(Reason::Sidecar) });
                done.lock().unwrap().push(number);
            }
        });
        join_all(sent).await;
        assert_eq!(done.into_inner().unwrap(), [2, 0, 1]);
    }

    /// It waited for the blobs of others as often as it has blobs.
    #[tokio::test(start_paused = true)]
    async fn a_copy_that_was_sent_while_the_first_was_proven_does_not_wait_for_other_callers() {
        let methods = methods(Address::ZERO);
        methods.proofs.set_up().await.unwrap();
        let (by, (right, _)) = ((1, Address::repeat_byte(1)), with_blobs(2));
        let copy = sent(&methods, by, &right);
        assert_eq!(prove(&methods, by, &right).await, Ok(()));
        let _turn = methods.proofs.turn.acquire().await.unwrap();
        assert_eq!(prove_sent(&methods, copy).await, Ok(()));
    }
}
