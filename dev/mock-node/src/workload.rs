//! The load: signed transactions that are reproduced by their seed, and that can be signed before
//! the clock starts.

mod accounts;
mod blobs;
mod plan;

use std::{collections::VecDeque, num::NonZeroUsize, sync::Arc, thread};

use alloy_consensus::{Transaction as _, transaction::Recovered};
use alloy_eips::Decodable2718;
use alloy_primitives::{B256, Bytes};

/// The address of a sender, re-exported so that an example needs no other crate.
pub use alloy_primitives::Address;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

pub use accounts::{Account, test_accounts};
pub use plan::{SWAP_AMOUNT_OFFSET, SWAP_SELECTOR, TxKind, listed, routers, tokens};

use crate::tx::SignedTx;
use plan::Plan;

/// The default number of sending accounts: as many as anvil has with `--accounts 1000`.
pub const DEFAULT_ACCOUNTS: usize = 1000;

/// The fewest transactions for which another thread is started; signing them takes two
/// milliseconds.
const SHARE: usize = 64;

/// The composition of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// How many of a thousand transactions carry blobs. Default 0.
    pub blobs_per_mille: u32,
    /// How many of a thousand *blob* transactions carry six blobs; the others carry one. Default
    /// 200.
    pub six_blobs_per_mille: u32,
    /// How many of a thousand other transactions reach one of [`listed`]: as recipient of ether, as
    /// receiver of a token that loads the account of its receivers, or in the access list. Default
    /// 0.
    pub listed_per_mille: u32,
}

impl Default for Mix {
    fn default() -> Self {
        Self { blobs_per_mille: 0, six_blobs_per_mille: 200, listed_per_mille: 0 }
    }
}

/// The configuration of a [`Workload`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadConfig {
    /// The seed of all random choices.
    pub seed: u64,
    pub chain_id: u64,
    /// How many accounts of the test mnemonic send transactions. If the mix has blobs, the last
    /// tenth of the accounts sends only blob transactions: geth refuses an account that has both
    /// kinds pending. Default [`DEFAULT_ACCOUNTS`].
    pub accounts: usize,
    /// Default [`Mix::default`].
    pub mix: Mix,
    /// Fee cap in wei per gas. Default 200 gwei.
    pub max_fee_wei: u128,
    /// The highest tip, in wei per gas. Tips are evenly distributed between a fiftieth of it and
    /// this. Default 5 gwei.
    pub max_tip_wei: u128,
    /// Fee cap in wei per blob gas. Default 100 gwei.
    pub max_blob_fee_wei: u128,
    /// The next nonce of each account, in the order of the accounts; for accounts beyond its end 0.
    pub nonces: Vec<u64>,
}

impl WorkloadConfig {
    /// The default mix, from 1000 accounts.
    pub fn new(seed: u64, chain_id: u64) -> Self {
        Self {
            seed,
            chain_id,
            accounts: DEFAULT_ACCOUNTS,
            mix: Mix::default(),
            max_fee_wei: 200_000_000_000,
            max_tip_wei: 5_000_000_000,
            max_blob_fee_wei: 100_000_000_000,
            nonces: Vec::new(),
        }
    }
}

/// A signed transaction, ready to be sent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PreparedTx {
    /// The hash of the transaction.
    pub hash: B256,
    /// The network form: blob transactions with their sidecar (137 kB for one blob, 825 kB for
    /// six).
    pub raw: Bytes,
    /// The account that signed it.
    pub sender: Address,
    pub nonce: u64,
    pub kind: TxKind,
}

impl PreparedTx {
    /// The decoded transaction with its sender.
    pub fn recovered<T: Decodable2718>(&self) -> Recovered<T> {
        let tx = T::decode_2718_exact(&self.raw).expect("it was signed here");
        Recovered::new_unchecked(tx, self.sender)
    }
}

/// A source of signed transactions. The nonces of each account have no gap.
#[derive(Clone, Debug)]
pub struct Workload {
    pub(crate) config: WorkloadConfig,
    accounts: Vec<Account>,
    nonces: Vec<u64>,
    /// Which account sends next, of those without and of those with blobs.
    turn: [usize; 2],
    rng: ChaCha8Rng,
    planned: u64,
    /// Signed transactions, in the order of the workload. The seed decides their order, not the
    /// time of their signing.
    ready: VecDeque<(TxKind, Arc<SignedTx>)>,
}

impl Workload {
    /// Derives the accounts; signs nothing yet.
    pub fn new(config: WorkloadConfig) -> Self {
        let needed = 1 + usize::from(config.mix.blobs_per_mille > 0);
        assert!(
            config.accounts >= needed,
            "the mix needs at least {needed} accounts, there are {}",
            config.accounts
        );
        let mut nonces = config.nonces.clone();
        nonces.resize(config.accounts, 0);
        Self {
            accounts: test_accounts(config.accounts),
            nonces,
            turn: [0; 2],
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            planned: 0,
            ready: VecDeque::new(),
            config,
        }
    }

    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    /// Signs the next `count` transactions, on all cores if there are enough. Each takes about 35
    /// us of CPU time.
    ///
    /// Blob transactions include their sidecars; a thousand with one blob are 137 MB.
    pub fn prepare(&mut self, count: usize) -> Vec<PreparedTx> {
        let prepared = |(kind, tx): (_, Arc<SignedTx>)| PreparedTx {
            hash: tx.hash,
            raw: tx.network(),
            sender: tx.signer(),
            nonce: tx.nonce(),
            kind,
        };
        self.take(count).into_iter().map(prepared).collect()
    }

    /// Takes the next transactions, in the form in which a node holds them.
    pub(crate) fn take(&mut self, count: usize) -> Vec<(TxKind, Arc<SignedTx>)> {
        self.sign_up_to(count);
        self.ready.drain(..count).collect()
    }

    /// Puts back a transaction that was taken and not used. It is the next one again.
    pub(crate) fn put_back(&mut self, tx: (TxKind, Arc<SignedTx>)) {
        self.ready.push_front(tx);
    }

    /// Signs transactions until `count` are ready to be taken.
    pub(crate) fn sign_up_to(&mut self, count: usize) -> &VecDeque<(TxKind, Arc<SignedTx>)> {
        if self.ready.len() < count {
            let signed = self.sign(count - self.ready.len());
            self.ready.extend(signed);
        }
        &self.ready
    }

    /// Signs one transaction if fewer than `count` are ready. Returns whether it did.
    pub(crate) fn sign_one(&mut self, count: usize) -> bool {
        let ready = self.ready.len();
        ready < count && self.sign_up_to(ready + 1).len() > ready
    }

    fn sign(&mut self, count: usize) -> Vec<(TxKind, Arc<SignedTx>)> {
        let plans: Vec<Plan> = (0..count).map(|_| self.plan()).collect();
        // Reading the number of cores takes as long as one signature, so it is read only if it is
        // needed.
        let threads = if count > SHARE {
            thread::available_parallelism().map_or(1, NonZeroUsize::get)
        } else {
            1
        };
        let share = plans.len().div_ceil(threads).max(SHARE);
        let (config, accounts) = (&self.config, &self.accounts);
        let sign = |plans: &[Plan]| -> Vec<_> {
            plans.iter().map(|plan| (plan.kind, Arc::new(plan.sign(config, accounts)))).collect()
        };
        let mut parts = plans.chunks(share);
        let Some(own) = parts.next() else {
            return Vec::new();
        };
        thread::scope(|scope| {
            let others: Vec<_> = parts.map(|part| scope.spawn(move || sign(part))).collect();
            let mut signed = sign(own);
            for other in others {
                signed.extend(other.join().expect("signing does not panic"));
            }
            signed
        })
    }

    fn plan(&mut self) -> Plan {
        let (kind, form, listed) = plan::draw(&mut self.rng, &self.config.mix);
        let for_blobs = if self.config.mix.blobs_per_mille == 0 {
            0
        } else {
            (self.config.accounts / 10).max(1)
        };
        let plain = self.config.accounts - for_blobs;
        let (first, len, turn) = match kind {
            TxKind::Blob | TxKind::SixBlobs => (plain, for_blobs, &mut self.turn[1]),
            _ => (0, plain, &mut self.turn[0]),
        };
        let account = first + *turn % len;
        *turn += 1;
        let nonce = self.nonces[account];
        self.nonces[account] += 1;
        self.planned += 1;
        Plan { account, nonce, kind, form, listed, number: self.planned }
    }
}

/// A workload whose first transactions are signed, for several nodes that announce the same ones:
/// signing 20,000 transactions costs more CPU time than announcing them. Clones share the
/// transactions.
#[derive(Clone, Debug)]
pub struct SignedLoad(pub(crate) Workload);

impl SignedLoad {
    pub fn new(config: WorkloadConfig, count: usize) -> Self {
        let mut workload = Workload::new(config);
        workload.sign_up_to(count);
        Self(workload)
    }
}
