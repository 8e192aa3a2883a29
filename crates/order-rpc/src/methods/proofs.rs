//! Verifies the proofs of blobs, which takes tens of milliseconds for each blob.
//!
//! One blob is verified at a time, under a work permit that is acquired behind all other callers,
//! so that nobody else waits longer than one blob. The blobs of one caller's orders come one after
//! the other, and between two of them one blob of each other caller that waits; a front's unknown
//! signers count as several callers. Orders of known signers have a queue of their own, and the
//! priority that they have elsewhere. A verified blob is recognized by its digest, because the same
//! blobs come again with a higher fee and for the next block.
//!
//! # Locks
//! `Prover::verified`: taken by an order with blobs, for one look-up or to add one digest; every
//! 10,000 blobs it frees as many; never across an await or with another lock.

use std::{
    collections::HashSet,
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use alloy_consensus::Transaction as _;
use alloy_primitives::B256;
use load_control::Priority;
use order_pool::{Holder, Order, Transaction};
use tokio::{
    sync::{OnceCell, Semaphore, SemaphorePermit, oneshot},
    time::timeout,
};

use super::transaction;
use crate::{
    config::WORK_PER_BLOB,
    limits::{Caller, Limiter, Requester, run_blocking},
    reply::{ErrorResponse, Reason},
};

/// How long an order waits for the blobs of its own caller, and then each of its blobs for those of
/// other callers: about sixty callers.
const PROOF_WAIT: Duration = Duration::from_secs(2);

/// Maximum of remembered digests of verified blobs. At least half of them are kept: 21 blobs per
/// block (the maximum of mainnet) for an hour and a half, in 1 MB.
const MAX_VERIFIED: usize = 20_000;

/// A blob whose proofs are not verified yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnprovenBlob {
    transaction_index: usize,
    blob_index: usize,
    digest: B256,
}

/// The permits of an order's caller, and of its IPv6 site.
type CallerTurn<'a> = (SemaphorePermit<'a>, Option<SemaphorePermit<'a>>);

/// Verifies the proofs of blobs, and remembers which were verified.
pub(crate) struct Prover {
    limiter: Arc<Limiter>,
    /// One blob of strangers at a time: their proofs wait for permits behind all other callers, so
    /// several blobs would only wait for each other.
    turn: Semaphore,
    /// One blob of known signers at a time.
    known_turn: Semaphore,
    is_set_up: OnceCell<()>,
    verified: Mutex<VerifiedBlobs>,
}

impl fmt::Debug for Prover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prover").finish_non_exhaustive()
    }
}

/// The digests of verified blobs, in two generations.
#[derive(Debug, Default)]
struct VerifiedBlobs {
    current: HashSet<B256>,
    previous: HashSet<B256>,
}

impl VerifiedBlobs {
    fn contains(&self, digest: &B256) -> bool {
        self.current.contains(digest) || self.previous.contains(digest)
    }

    fn insert(&mut self, digest: B256) {
        if self.current.len() >= MAX_VERIFIED / 2 {
            self.previous = mem::take(&mut self.current);
        }
        self.current.insert(digest);
    }
}

impl Prover {
    pub(crate) fn new(limiter: Arc<Limiter>) -> Self {
        Self {
            limiter,
            turn: Semaphore::new(1),
            known_turn: Semaphore::new(1),
            is_set_up: OnceCell::new(),
            verified: Mutex::default(),
        }
    }

    /// Returns the blobs whose proofs are not verified yet. It hashes them, in less than a
    /// millisecond each.
    pub(crate) fn unproven(&self, txs: &[Transaction]) -> Vec<UnprovenBlob> {
        let mut unproven = Vec::new();
        for (transaction_index, tx) in txs.iter().enumerate() {
            let blobs = tx.envelope().blob_versioned_hashes().map_or(0, <[_]>::len);
            for blob_index in 0..blobs {
                // A missing blob is refused when its proofs are verified.
                let digest = tx.blob_digest(blob_index).unwrap_or_default();
                if !self.is_verified(&digest) {
                    unproven.push(UnprovenBlob { transaction_index, blob_index, digest });
                }
            }
        }
        unproven
    }

    fn lock(&self) -> MutexGuard<'_, VerifiedBlobs> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_verified(&self, digest: &B256) -> bool {
        self.lock().contains(digest)
    }

    /// Loads the trusted setup, once, on a thread of its own and without a permit: it takes
    /// seconds.
    pub(crate) async fn load_setup(&self) -> Result<(), ErrorResponse> {
        let loaded = self.is_set_up.get_or_try_init(load_setup_on_thread).await;
        loaded.copied().map_err(|error| {
            tracing::error!(%error, "the trusted setup for blob proofs is not loaded");
            ErrorResponse::internal()
        })
    }

    /// Verifies the proofs of an order's blobs, each blob under a work permit of its own. `field`
    /// names the transaction of an order that is no bundle.
    ///
    /// # Errors
    /// A proof is wrong, or no turn or permit came in time, or the quota is spent.
    ///
    /// # Cancel safety
    /// A blob whose verification has begun is verified to its end, but not remembered.
    pub(crate) async fn prove(
        &self,
        field: &'static str,
        order: &Arc<Order>,
        unproven: Vec<UnprovenBlob>,
        requester: Requester,
    ) -> Result<(), ErrorResponse> {
        if unproven.is_empty() {
            return Ok(());
        }
        let caller = self.limiter.callers.get(requester.caller);
        // As for the host's decision: of what a front forwards, only orders of known signers.
        let is_known = matches!(order.holder(), Holder::Host | Holder::Signer(_));
        // Held until all blobs of the order are verified, so that each caller has one order at a
        // time in the queue of all callers.
        let _caller_turn = if is_known { None } else { Some(self.caller_turn(&caller).await?) };
        let queue = if is_known { &self.known_turn } else { &self.turn };
        let priority = if is_known { Priority::Known } else { Priority::Unsigned };
        for blob in unproven {
            // Another order with the same blob, or an earlier one in this order, may have been
            // verified meanwhile.
            if self.is_verified(&blob.digest) {
                continue;
            }
            let _turn = self.acquire_turn(queue).await?;
            self.load_setup().await?;
            if self.is_verified(&blob.digest) {
                continue;
            }
            let gate = &self.limiter.gate;
            let permit = gate.acquire_external(priority, Instant::now()).await?;
            self.limiter.quotas.charge(requester, WORK_PER_BLOB)?;
            let order = Arc::clone(order);
            let check = move || {
                let _permit = permit;
                check_blob(&order, field, blob)
            };
            run_blocking(check).await??;
            self.lock().insert(blob.digest);
        }
        Ok(())
    }

    /// Waits for the orders with blobs of the same caller, and of its IPv6 site.
    async fn caller_turn<'a>(&self, caller: &'a Caller) -> Result<CallerTurn<'a>, ErrorResponse> {
        let caller_turn = self.acquire_turn(&caller.proofs).await?;
        let site_turn = match &caller.site {
            Some(site) => Some(self.acquire_turn(&site.proofs).await?),
            None => None,
        };
        Ok((caller_turn, site_turn))
    }

    async fn acquire_turn<'a>(
        &self,
        queue: &'a Semaphore,
    ) -> Result<SemaphorePermit<'a>, ErrorResponse> {
        if let Ok(Ok(turn)) = timeout(PROOF_WAIT, queue.acquire()).await {
            return Ok(turn);
        }
        let message = "the proofs of too many blobs wait to be verified";
        let retry_after = self.limiter.gate.retry_after();
        Err(ErrorResponse::retry_later(Reason::NoPermit, retry_after, message))
    }
}

async fn load_setup_on_thread() -> Result<(), String> {
    let (done, loaded) = oneshot::channel();
    let load = move || {
        order_pool::load_trusted_setup();
        // It fails if the server has shut down, and then nobody waits for it.
        let _ = done.send(());
    };
    let thread = thread::Builder::new().name("order-rpc-setup".to_owned()).spawn(load);
    thread.map_err(|error| error.to_string())?;
    loaded.await.map_err(|_| "its thread has panicked".to_owned())
}

/// Verifies the proofs of one blob: tens of milliseconds.
fn check_blob(order: &Order, field: &'static str, blob: UnprovenBlob) -> Result<(), ErrorResponse> {
    let index = blob.transaction_index;
    let (tx, field) = match order {
        Order::Tx(tx) => (Some(tx), field.to_owned()),
        Order::Bundle(bundle) => (bundle.txs().get(index), format!("txs[{index}]")),
        // No other kind of order is created here.
        _ => (None, String::new()),
    };
    let tx = tx.ok_or_else(ErrorResponse::internal)?;
    tx.check_blob_proofs(blob.blob_index)
        .map_err(|error| transaction::sidecar_error(&field, tx.hash(), &error))
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, time::SystemTime};

    use alloy_primitives::Address;
    use futures::future::join_all;
    use order_pool::{OrderPool, PoolConfig};
    use serde_json::json;

    use super::{
        super::{IgnoredFields, Method, Methods, Verified},
        *,
    };
    use crate::{
        Host, OrderRpcConfig,
        limits::{CallerId, Limits},
        tests::{blobs::with_blobs, common},
    };

    /// The last byte of a caller's address in the loopback network, and its signer.
    type Sender = (u8, Address);

    fn methods(known: Address) -> Methods {
        let gate = load_control::Gate::new(common::gate_config(64)).unwrap();
        let pool = OrderPool::new(PoolConfig::default()).unwrap();
        let host = Host::new(pool, gate.clone()).with_known_signers(move |signer| signer == known);
        let limits = Limits::new(OrderRpcConfig::new(common::CHAIN));
        Methods::new(host, Arc::new(Limiter::new(limits, gate)))
    }

    /// A bundle with this transaction, before its blobs are proven.
    fn unproven_bundle(
        methods: &Methods,
        (host_byte, signer): Sender,
        tx: &str,
    ) -> (Requester, Verified) {
        let caller = CallerId::from(IpAddr::from([127, 0, 0, host_byte]));
        let requester = Requester { caller, signer: Some(signer), arrived_at: SystemTime::now() };
        let params = json!([{ "txs": [tx] }]).to_string();
        let mut ignored = IgnoredFields::new(false);
        let prepared = methods.prepare(Method::SendBundle, params.as_bytes(), &mut ignored, true);
        let holder = |_| match methods.is_known_signer(signer) {
            true => Holder::Signer(signer),
            false => Holder::caller(caller.address),
        };
        (requester, prepared.unwrap().verify(requester, holder, &methods.prover).unwrap())
    }

    /// The same, forwarded by a front for this signer.
    fn forwarded_bundle(methods: &Methods, signer: Address, tx: &str) -> (Requester, Verified) {
        let front = IpAddr::from([127, 0, 0, 8]);
        let caller = CallerId { address: front, is_front: true };
        let requester = Requester { caller, signer: None, arrived_at: SystemTime::now() };
        let params = json!([{ "txs": [tx], "signingAddress": signer }]).to_string();
        let mut ignored = IgnoredFields::new(false);
        let prepared = methods.prepare(Method::SendBundle, params.as_bytes(), &mut ignored, true);
        let holder = |signer: Option<Address>| match signer {
            Some(signer) if methods.is_known_signer(signer) => Holder::Signer(signer),
            signer => Holder::Forwarded { front, signer },
        };
        (requester, prepared.unwrap().verify(requester, holder, &methods.prover).unwrap())
    }

    async fn prove_bundle(
        methods: &Methods,
        (requester, verified): (Requester, Verified),
    ) -> Result<(), Reason> {
        let Verified::Order(order, unproven) = verified else { panic!("it is an order") };
        let proven = methods.prover.prove("params[0]", &order, unproven, requester).await;
        proven.map_err(|error| error.reason)
    }

    async fn prove(methods: &Methods, sender: Sender, tx: &str) -> Result<(), Reason> {
        prove_bundle(methods, unproven_bundle(methods, sender, tx)).await
    }

    /// Three addresses that sent blobs with wrong proofs kept everybody's blobs waiting for longer
    /// than they may.
    #[tokio::test(start_paused = true)]
    async fn known_signers_do_not_wait_behind_the_blobs_of_strangers() {
        let [known, stranger] = [1, 2].map(Address::repeat_byte);
        let methods = methods(known);
        let _turn = methods.prover.turn.acquire().await.unwrap();
        let (right, _) = with_blobs(1);
        assert_eq!(prove(&methods, (1, known), &right).await, Ok(()));
        // The stranger's blob must not be recognized as verified.
        *methods.prover.lock() = VerifiedBlobs::default();
        assert_eq!(prove(&methods, (1, stranger), &right).await, Err(Reason::NoPermit));
    }

    /// Whatever a front forwarded had its blobs verified in the queue of known signers.
    #[tokio::test(start_paused = true)]
    async fn unknown_signers_behind_a_front_are_not_in_the_queue_of_known_ones() {
        let [known, stranger] = [1, 2].map(Address::repeat_byte);
        let methods = methods(known);
        methods.prover.load_setup().await.unwrap();
        let (right, _) = with_blobs(1);
        let _turn = methods.prover.turn.acquire().await.unwrap();
        let forwarded = forwarded_bundle(&methods, stranger, &right);
        assert_eq!(prove_bundle(&methods, forwarded).await, Err(Reason::NoPermit));
        let forwarded = forwarded_bundle(&methods, known, &right);
        assert_eq!(prove_bundle(&methods, forwarded).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_blob_waits_for_one_blob_of_each_other_caller() {
        let methods = methods(Address::ZERO);
        // It takes seconds, which the paused clock would skip.
        methods.prover.load_setup().await.unwrap();
        let ((three, _), (_, wrong)) = (with_blobs(3), with_blobs(1));
        let done = Mutex::new(Vec::new());
        let bundles = [(1, &three), (1, &wrong), (2, &wrong)].into_iter().enumerate();
        let bundles = bundles.map(|(number, (host_byte, tx))| {
            let (methods, done) = (&methods, &done);
            async move {
                let sender = (host_byte, Address::repeat_byte(host_byte));
                let proven = prove(methods, sender, tx).await;
                assert_eq!(proven, if number == 0 { Ok(()) } else { Err(Reason::Sidecar) });
                done.lock().unwrap().push(number);
            }
        });
        join_all(bundles).await;
        assert_eq!(done.into_inner().unwrap(), [2, 0, 1]);
    }

    /// Each blob of the copy waited for the blobs of other callers.
    #[tokio::test(start_paused = true)]
    async fn a_copy_of_blobs_that_were_verified_meanwhile_does_not_wait() {
        let methods = methods(Address::ZERO);
        methods.prover.load_setup().await.unwrap();
        let sender = (1, Address::repeat_byte(1));
        let (right, _) = with_blobs(2);
        let copy = unproven_bundle(&methods, sender, &right);
        assert_eq!(prove(&methods, sender, &right).await, Ok(()));
        let _turn = methods.prover.turn.acquire().await.unwrap();
        assert_eq!(prove_bundle(&methods, copy).await, Ok(()));
    }
}
