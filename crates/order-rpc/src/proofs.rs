//! The proofs of blobs, tens of milliseconds for each: one blob at a time, so that no caller waits for more than
//! that.

use std::{
    thread,
    time::{Duration, Instant},
};

use load_control::Priority;
use tokio::{
    sync::{OnceCell, Semaphore, oneshot},
    time::timeout,
};

use crate::{
    context::RpcContext,
    dispatch::on_thread,
    methods::{Method, Verified},
    reply::{ErrorResponse, Reason},
};

/// How long an order with blobs waits for its turn: about ten transactions of six blobs.
const PROOF_WAIT: Duration = Duration::from_secs(2);

/// What verifying proofs needs.
#[derive(Debug)]
pub(crate) struct Proofs {
    /// One order at a time. Its proofs wait for permits behind all other callers, and orders with blobs would only
    /// wait for each other there.
    turn: Semaphore,
    is_set_up: OnceCell<()>,
}

impl Proofs {
    pub(crate) fn new() -> Self {
        Self { turn: Semaphore::new(1), is_set_up: OnceCell::new() }
    }

    /// Loads the trusted setup, once, on a thread of its own: it takes seconds, for which a work permit would be
    /// held by nobody's work.
    pub(crate) async fn set_up(&self) -> Result<(), ErrorResponse> {
        let load = || async {
            let (done, loaded) = oneshot::channel();
            let thread =
                thread::Builder::new().name("order-rpc-setup".to_owned()).spawn(move || {
                    order_pool::load_trusted_setup();
                    // The server may be gone.
                    let _ = done.send(());
                });
            let loaded = match thread {
                Ok(_) => loaded.await.map_err(|_| "its thread has panicked".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            loaded.map_err(|error| {
                tracing::error!(%error, "the trusted setup of blob proofs is not loaded");
                ErrorResponse::internal()
            })
        };
        self.is_set_up.get_or_try_init(load).await.copied()
    }
}

impl RpcContext {
    /// Verifies the proofs of an order's blobs, each blob under a work permit of its own.
    pub(crate) async fn prove(
        &self,
        method: Method,
        mut verified: Verified,
    ) -> Result<Verified, ErrorResponse> {
        let Ok(Ok(_turn)) = timeout(PROOF_WAIT, self.proofs.turn.acquire()).await else {
            let message = "the proofs of too many blobs wait to be verified";
            return Err(self.retry_later(Reason::NoPermit, message));
        };
        self.proofs.set_up().await?;
        for (tx, blob) in verified.blobs() {
            let permit = self.host.gate.acquire_external(Priority::Unsigned, Instant::now()).await;
            let permit = permit.map_err(|refusal| ErrorResponse::refusal(&refusal))?;
            let (returned, checked) = on_thread(move || {
                let _permit = permit;
                let checked = verified.check_blob(method, tx, blob);
                (verified, checked)
            })
            .await?;
            checked?;
            verified = returned;
        }
        Ok(verified)
    }
}
