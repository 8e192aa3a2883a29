//! The host decides on orders before they are inserted into the pool.

use std::{
    future::{pending, ready},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use order_rpc::{Admission, AdmissionFuture, Candidate, Verdict};

use super::*;

fn start_with_admission(setup: Setup, admission: impl Admission + 'static) -> Server {
    // The limit that `without_a_decision_an_order_is_refused_or_pooled` asserts.
    let limit = |limits: &mut Limits| limits.max_admissions = 2;
    setup.start(limit, |host| host.with_admission(admission))
}

/// What the host was asked about: the senders of the order, the signer of the request, and whether
/// the order is a bundle.
type Question = (Vec<Address>, Option<Address>, bool);

/// Decides by a function; the second field is whether it fails open.
struct FunctionAdmission<F>(F, bool);

impl<F: Fn(Candidate<'_>) -> AdmissionFuture<'static> + Send + Sync> Admission
    for FunctionAdmission<F>
{
    fn admit<'a>(&'a self, candidate: Candidate<'a>) -> AdmissionFuture<'a> {
        self.0(candidate)
    }

    fn fails_open(&self) -> bool {
        self.1
    }
}

fn ready_verdict(verdict: Verdict) -> AdmissionFuture<'static> {
    Box::pin(ready(verdict))
}

#[tokio::test]
async fn the_host_refuses_orders_before_they_are_pooled() {
    let sender = PrivateKeySigner::random();
    let asked = Arc::new(Mutex::new(Vec::<Question>::new()));
    let (known, questions) = (sender.address(), Arc::clone(&asked));
    let decides = move |candidate: Candidate<'_>| {
        let (senders, is_bundle) = match candidate.order {
            Order::Tx(tx) => (vec![tx.sender()], false),
            Order::Bundle(bundle) => (bundle.txs().iter().map(|tx| tx.sender()).collect(), true),
            other => panic!("{other:?}"),
        };
        let is_known = senders.iter().all(|sender| *sender == known);
        questions.lock().unwrap().push((senders, candidate.signer, is_bundle));
        let refuse = Verdict::Refuse { reason: "the sender has no balance".into() };
        ready_verdict(if is_known { Verdict::Accept } else { refuse })
    };
    let server = start_with_admission(Setup::default(), FunctionAdmission(decides, false));
    let signer = PrivateKeySigner::random();
    let theirs = hex(&sign(plain(7), &sender));
    for (raw, accepted) in [(&theirs, true), (&raw(0), false)] {
        let alone = server.call("eth_sendRawTransaction", json!([raw])).await;
        let bundle = json!([{ "txs": [raw] }]);
        let bundle = server.signed(&signer).call("eth_sendBundle", bundle).await;
        let last = asked.lock().unwrap().last().cloned().unwrap();
        assert_eq!((last.1, last.2), (Some(signer.address()), true));
        for answer in [alone, bundle] {
            if accepted {
                answer.result();
            } else {
                assert_eq!(answer.error(), (200, -32000, "admission"));
                assert_eq!(answer.json()["error"]["message"], "the sender has no balance");
            }
        }
    }
    assert_eq!((server.pool.len(), server.counted.reason("admission")), (2, 2));
    let counts = ["accepted", "refused"].map(|verdict| server.verdicts(verdict));
    assert_eq!(counts, [2, 2]);
    assert_eq!(asked.lock().unwrap()[0], (vec![sender.address()], None, false));
    // The host is not asked about pooled orders and cancellations.
    let before = asked.lock().unwrap().len();
    server.call("eth_sendRawTransaction", json!([theirs])).await.result();
    server.signed(&sender).send(cancellation()).await.result();
    let cancel = json!([{ "txs": [], "uuid": "6ba7b810-9dad-11d1-80b4-00c04fd430c9" }]);
    server.signed(&sender).call("eth_sendBundle", cancel).await.result();
    assert_eq!(asked.lock().unwrap().len(), before);
}

#[tokio::test]
async fn without_a_decision_an_order_is_refused_or_pooled() {
    let cases = ["timed_out", "panicked", "unknown"];
    for (verdict, fails_open) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let mut config = config();
        // A timeout of eight orders, two at a time.
        let is_late = verdict == "timed_out";
        config.admission_timeout = if is_late { Duration::from_millis(50) } else { PATIENCE };
        let most = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&most);
        let undecided = move |_: Candidate<'_>| -> AdmissionFuture<'static> {
            assert!(verdict != "panicked", "as hosts do");
            let running = Arc::clone(&counted);
            // One reference belongs to this function, and one to the test.
            running.fetch_max(Arc::strong_count(&running) - 2, SeqCst);
            Box::pin(async move {
                let _running = running;
                if is_late { pending().await } else { Verdict::Unknown }
            })
        };
        let setup = Setup { config, ..Setup::default() };
        let server = start_with_admission(setup, FunctionAdmission(undecided, fails_open));
        for answer in join_all((0..8).map(|_| server.send(transaction()))).await {
            if fails_open {
                answer.result();
            } else {
                assert_eq!(answer.error(), refused(503, "admission_unavailable"));
            }
        }
        let (refused, pooled) = if fails_open { (0, 8) } else { (8, 0) };
        assert_eq!(server.counted.reason("admission_unavailable"), refused);
        assert_eq!((server.verdicts(verdict), server.pool.len()), (8, pooled));
        assert!(most.load(SeqCst) <= 2);
        wait_until("the permits are returned", || server.gate.stats().work_in_use == 0).await;
    }
}

/// A cancellation must not overtake its bundle in the same batch, or the bundle is refused.
#[tokio::test]
async fn a_batch_is_inserted_in_its_order_whatever_is_decided_first() {
    let config = OrderRpcConfig { admission_timeout: PATIENCE, ..config() };
    // The bundle is decided on last.
    let decided = Arc::new(tokio::sync::Notify::new());
    let backwards = move |candidate: Candidate<'_>| -> AdmissionFuture<'static> {
        let (is_bundle, decided) = (candidate.order.as_tx().is_none(), Arc::clone(&decided));
        Box::pin(async move {
            if is_bundle {
                decided.notified().await;
            } else {
                decided.notify_one();
            }
            Verdict::Accept
        })
    };
    let setup = Setup { config, ..Setup::default() };
    let server = start_with_admission(setup, FunctionAdmission(backwards, false));
    let body = batch(&[
        ("eth_sendBundle", json!({ "txs": [raw(0)], "replacementUuid": UUID })),
        ("eth_cancelBundle", json!({ "replacementUuid": UUID })),
        ("eth_sendRawTransaction", json!(raw(0))),
    ]);
    let answer = server.signed(&PrivateKeySigner::random()).send(body).await;
    assert_eq!(answer.reasons(), [None; 3]);
    assert_eq!((server.pool.len(), server.pool.stats().cancelled), (1, 1));
}

#[tokio::test]
async fn a_prioritized_order_is_not_evicted_by_higher_claimed_fees() {
    let pool = configured(PoolConfig::default(), |config| config.max_external_txs = 1);
    let vouches = |candidate: Candidate<'_>| {
        let fee = candidate.order.as_tx().map(|tx| tx.max_fee_wei());
        ready_verdict(if fee == Some(7) { Verdict::Prioritize } else { Verdict::Accept })
    };
    let setup = Setup { pool, ..Setup::default() };
    let server = start_with_admission(setup, FunctionAdmission(vouches, false));
    let send = async |fee: u128| {
        let tx = TxEip1559 { max_fee_per_gas: fee, max_priority_fee_per_gas: fee, ..plain(0) };
        let raw = hex(&sign(tx, &PrivateKeySigner::random()));
        server.call("eth_sendRawTransaction", json!([raw])).await.hash()
    };
    let sent = [send(7).await, send(8).await, send(9).await];
    assert_eq!(sent.map(|hash| server.pool.contains(&hash)), [true, false, true]);
    assert_eq!((server.pool.stats().txs, server.pool.stats().external_txs), (2, 1));
    assert_eq!(server.verdicts("prioritized"), 1);
}

/// The orders of two addresses made the host answer nobody in time.
#[tokio::test]
async fn waiting_orders_of_strangers_delay_no_decision_for_others() {
    let known = PrivateKeySigner::random();
    let config = OrderRpcConfig {
        known_signers: vec![known.address()],
        admission_timeout: PATIENCE,
        ..config()
    };
    let setup = Setup { config, ..Setup::default() };
    let (stuck, release) = tokio::sync::watch::channel(false);
    let slow = move |candidate: Candidate<'_>| -> AdmissionFuture<'static> {
        let is_attack = candidate.order.as_tx().is_some_and(|tx| tx.nonce() == 666);
        let mut release = release.clone();
        Box::pin(async move {
            if is_attack {
                let _ = release.wait_for(|is_over| *is_over).await;
            }
            Verdict::Accept
        })
    };
    let limit =
        |limits: &mut Limits| (limits.max_admissions, limits.max_admissions_per_caller) = (3, 2);
    let server = setup.start(limit, |host| host.with_admission(FunctionAdmission(slow, false)));
    let attack = |number: u8, count: u8| {
        let client = server.client([127, 0, 1, number]);
        let sent = (0..count)
            .map(|_| client.clone())
            .map(|client| client.call("eth_sendRawTransaction", json!([raw(666)])));
        sent.map(tokio::spawn).collect::<Vec<_>>()
    };
    // As many as one caller may have in progress, and more.
    let mut attacks = attack(1, 4);
    server.wait_until_in_flight(4).await;
    server.client(OTHER).send(transaction()).await.result();
    attacks.extend(attack(2, 4));
    server.wait_until_in_flight(8).await;
    server.signed(&known).send(transaction()).await.result();
    stuck.send(true).unwrap();
    for answer in join_all(attacks).await {
        answer.unwrap().result();
    }
}
