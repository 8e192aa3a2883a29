//! Draws the transactions of a load at random, and signs them.

use std::sync::LazyLock;

use alloy_consensus::{SignableTransaction as _, transaction::Recovered};
use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip7702::Authorization,
};
use alloy_primitives::{Address, B256, Bytes, TxKind as Callee, U256, keccak256};
use alloy_rpc_types_eth::TransactionRequest;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Account, Mix, WorkloadConfig, blobs::shared_sidecar};
use crate::tx::SignedTx;

/// The kind of a prepared transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TxKind {
    /// A transfer of ether to a random address.
    Transfer,
    /// A call of `transfer(address,uint256)` on one of [`tokens`]: 68 bytes of input.
    Token,
    /// A router's swap along a path: 388 bytes of input.
    Swap,
    /// A call with an authorization (EIP-7702) by an unused key.
    SetCode,
    Blob,
    SixBlobs,
}

/// The envelope of a transfer or call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Legacy,
    AccessList,
    Dynamic,
}

/// The addresses that token calls go to.
pub fn tokens() -> &'static [Address] {
    static TOKENS: LazyLock<[Address; 8]> = LazyLock::new(|| addresses("token"));
    &*TOKENS
}

/// The addresses that swaps go to.
pub fn routers() -> &'static [Address] {
    static ROUTERS: LazyLock<[Address; 4]> = LazyLock::new(|| addresses("router"));
    &*ROUTERS
}

/// The addresses of the demo's blocklist, which a share of the load reaches (see
/// [`Mix::listed_per_mille`]).
pub fn listed() -> &'static [Address] {
    static LISTED: LazyLock<[Address; 16]> = LazyLock::new(|| addresses("listed"));
    &*LISTED
}

fn addresses<const N: usize>(role: &str) -> [Address; N] {
    std::array::from_fn(|number| Address::from_word(keccak256(format!("{role} {number}"))))
}

/// How many of a thousand transactions without blobs call a token. The rest of the shares are
/// transfers.
const TOKENS: u32 = 400;
/// How many of a thousand transactions without blobs are swaps.
const SWAPS: u32 = 250;
/// How many of a thousand transactions without blobs are set-code transactions (EIP-7702), with one
/// authorization.
const SET_CODES: u32 = 10;
/// How many of a thousand transfers and calls are legacy transactions.
const LEGACY: u32 = 80;
/// How many of a thousand transfers and calls have an access list (EIP-2930).
const ACCESS_LISTS: u32 = 20;

/// Draws the kind, the envelope, and whether the transaction reaches a listed address.
pub(super) fn draw(rng: &mut impl Rng, mix: &Mix) -> (TxKind, Form, bool) {
    let mut share = |per_mille: u32| rng.random_ratio(per_mille.min(1000), 1000);
    if share(mix.blobs_per_mille) {
        let many = share(mix.six_blobs_per_mille);
        return (if many { TxKind::SixBlobs } else { TxKind::Blob }, Form::Dynamic, false);
    }
    let form = match rng.random_range(0..1000) {
        draw if draw < LEGACY => Form::Legacy,
        draw if draw < LEGACY + ACCESS_LISTS => Form::AccessList,
        _ => Form::Dynamic,
    };
    let kind = match rng.random_range(0..1000) {
        draw if draw < TOKENS => TxKind::Token,
        draw if draw < TOKENS + SWAPS => TxKind::Swap,
        draw if draw < TOKENS + SWAPS + SET_CODES => TxKind::SetCode,
        _ => TxKind::Transfer,
    };
    // Without such a share nothing is drawn, so that existing seeds keep their load.
    let listed = mix.listed_per_mille > 0 && rng.random_ratio(mix.listed_per_mille.min(1000), 1000);
    match kind {
        // These kinds name the address in their access list.
        TxKind::Swap | TxKind::SetCode if listed => (TxKind::Swap, Form::AccessList, true),
        _ => (kind, form, listed),
    }
}

/// A transaction with a sender and a nonce, before it is signed.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) account: usize,
    pub(super) nonce: u64,
    pub(super) kind: TxKind,
    pub(super) form: Form,
    /// Whether it reaches a listed address.
    pub(super) listed: bool,
    /// The position in the workload. Details are drawn from it, so that threads can sign
    /// independently.
    pub(super) number: u64,
}

impl Plan {
    pub(super) fn sign(&self, config: &WorkloadConfig, accounts: &[Account]) -> SignedTx {
        let account = &accounts[self.account];
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed ^ self.number.rotate_left(32));
        let tip = rng.random_range(config.max_tip_wei / 50..=config.max_tip_wei.max(1));
        let mut call = Call::draw(self.kind, &mut rng);
        let listed = self.listed.then(|| listed()[rng.random_range(0..listed().len())]);
        if let Some(listed) = listed {
            call.reach(self.kind, listed);
        }
        let Call { to, value, gas_limit, input } = call;
        let mut tx = TransactionRequest {
            chain_id: Some(config.chain_id),
            nonce: Some(self.nonce),
            gas: Some(gas_limit),
            to: Some(Callee::Call(to)),
            value: Some(value),
            input: input.into(),
            ..TransactionRequest::default()
        };
        let mut sidecar = None;
        let has_tip = match (self.kind, self.form) {
            (TxKind::Blob | TxKind::SixBlobs, _) => {
                let shared = shared_sidecar(self.kind == TxKind::SixBlobs);
                tx.blob_versioned_hashes = Some(shared.hashes.clone());
                tx.max_fee_per_blob_gas = Some(config.max_blob_fee_wei);
                sidecar = Some(shared);
                true
            }
            (TxKind::SetCode, _) => {
                let authority = Account::from_entropy(config.seed, self.number);
                let (chain_id, address) = (U256::from(config.chain_id), routers()[0]);
                let authorization = Authorization { chain_id, address, nonce: 0 };
                let signature = authority.sign_hash(authorization.signature_hash());
                tx.authorization_list = Some(vec![authorization.into_signed(signature)]);
                true
            }
            (_, Form::Legacy) => false,
            (_, Form::AccessList) => {
                // The access list names the listed address, because the call does not reach it.
                let address = listed.unwrap_or(to);
                let random = B256::from(rng.random::<[u8; 32]>());
                let storage_keys = vec![B256::with_last_byte(1), random];
                tx.access_list = Some(AccessList(vec![AccessListItem { address, storage_keys }]));
                tx.gas = Some(gas_limit + 10_000);
                false
            }
            (_, Form::Dynamic) => true,
        };
        if has_tip {
            tx.max_fee_per_gas = Some(config.max_fee_wei);
            tx.max_priority_fee_per_gas = Some(tip);
        } else {
            // A transaction with a single gas price pays all of it, so it bids near the others and
            // not the fee cap.
            tx.gas_price = Some((config.max_fee_wei / 4).max(tip));
        }
        let tx = tx.build_consensus_tx().expect("each kind has its fields");
        let signature = account.sign_hash(tx.signature_hash());
        let tx = Recovered::new_unchecked(tx.into_envelope(signature), account.address);
        SignedTx::new(tx, sidecar)
    }
}

/// The call of a transaction.
struct Call {
    to: Address,
    value: U256,
    gas_limit: u64,
    input: Bytes,
}

impl Call {
    fn draw(kind: TxKind, rng: &mut ChaCha8Rng) -> Self {
        let (to, gas_limit, input) = match kind {
            TxKind::Transfer => (random_address(rng), 21_000, Bytes::new()),
            TxKind::Token => {
                (tokens()[rng.random_range(0..tokens().len())], 65_000, token_input(rng))
            }
            TxKind::Swap => {
                (routers()[rng.random_range(0..routers().len())], 220_000, swap_input(rng))
            }
            TxKind::SetCode => (routers()[0], 120_000, token_input(rng)),
            TxKind::Blob | TxKind::SixBlobs => {
                (routers()[1], 60_000, Bytes::from(rng.random::<[u8; 36]>().to_vec()))
            }
        };
        let value = match kind {
            TxKind::Transfer => U256::from(rng.random_range(1..1_000_000_000_000u64)),
            _ => U256::ZERO,
        };
        Self { to, value, gas_limit, input }
    }

    /// Changes the receiver to a listed address. A swap is not changed: its access list names the
    /// address.
    fn reach(&mut self, kind: TxKind, listed: Address) {
        match kind {
            TxKind::Transfer => self.to = listed,
            TxKind::Token => {
                // The last token loads the account of its receivers.
                self.to = *tokens().last().expect("there are eight");
                let mut input = self.input.to_vec();
                input[4..36].copy_from_slice(listed.into_word().as_slice());
                self.input = input.into();
            }
            _ => {}
        }
    }
}

/// `transfer(address,uint256)`.
fn token_input(rng: &mut ChaCha8Rng) -> Bytes {
    let mut input = vec![0xa9, 0x05, 0x9c, 0xbb];
    input.extend(random_address(rng).into_word());
    input.extend(U256::from(rng.random::<u64>()).to_be_bytes::<32>());
    input.into()
}

/// The selector of a swap.
pub const SWAP_SELECTOR: [u8; 4] = [0x35, 0x93, 0x56, 0x4c];

/// The offset of the swapped amount in the input: the second word after the selector.
pub const SWAP_AMOUNT_OFFSET: u64 = 36;

/// The input of a swap: a selector and twelve words of offsets, amounts and addresses, like those
/// of a router.
fn swap_input(rng: &mut ChaCha8Rng) -> Bytes {
    let mut input = SWAP_SELECTOR.to_vec();
    for word in 0..12u64 {
        let value = match word % 4 {
            0 => U256::from(word * 32),
            1 => U256::from(rng.random::<u64>()),
            2 => U256::from_be_bytes(random_address(rng).into_word().0),
            _ => U256::from(rng.random_range(1..100u64)),
        };
        input.extend(value.to_be_bytes::<32>());
    }
    input.into()
}

fn random_address(rng: &mut ChaCha8Rng) -> Address {
    Address::from(rng.random::<[u8; 20]>())
}
