//! Transactions signed before the clock starts: token transfers, each account's nonces in order.

use std::{ops::Range, thread};

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes, TxKind};
use mock_node::{
    DEV_CHAIN_ID,
    workload::{Account, test_accounts},
};

/// Accounts of what is announced live. The first thousand are those of what is pending at the start.
pub const LIVE: Range<usize> = 1_000..2_000;

/// Accounts of what external callers send.
pub const EXTERNAL: Range<usize> = 2_000..3_000;

/// The selector of `transfer(address,uint256)` and its two arguments.
const INPUT_BYTES: usize = 68;

/// A signed transaction.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub hash: B256,
    /// Its EIP-2718 form.
    pub raw: Bytes,
}

/// Signs for its accounts in turn.
#[derive(Clone, Debug)]
pub struct Signer {
    accounts: Vec<Account>,
    signed: usize,
}

impl Signer {
    /// Signs for the accounts of the test mnemonic with these numbers.
    pub fn new(accounts: Range<usize>) -> Self {
        Self { accounts: test_accounts(accounts.end).split_off(accounts.start), signed: 0 }
    }

    /// As if the latest `unused` had not been signed.
    pub const fn take_back(&mut self, unused: usize) {
        self.signed -= unused;
    }

    /// The next `count`, on two threads: about 35 us each.
    pub fn sign(&mut self, count: usize) -> Vec<Prepared> {
        let (first, half) = (self.signed, count / 2);
        self.signed += count;
        let sign = |numbers: Range<usize>| -> Vec<_> { numbers.map(|n| self.one(n)).collect() };
        thread::scope(|scope| {
            let rest = scope.spawn(|| sign(first + half..first + count));
            let mut all = sign(first..first + half);
            all.extend(rest.join().expect("signing does not panic"));
            all
        })
    }

    fn one(&self, number: usize) -> Prepared {
        let account = &self.accounts[number % self.accounts.len()];
        let mut input = vec![0x11; INPUT_BYTES];
        input[..4].copy_from_slice(&[0xa9, 0x05, 0x9c, 0xbb]);
        let tx = TxEip1559 {
            chain_id: DEV_CHAIN_ID,
            nonce: (number / self.accounts.len()) as u64,
            gas_limit: 60_000,
            max_fee_per_gas: 200_000_000_000,
            max_priority_fee_per_gas: 1_000_000_000 + number as u128,
            to: TxKind::Call(Address::repeat_byte(0x42)),
            input: input.into(),
            ..TxEip1559::default()
        };
        let signature = account.sign_hash(tx.signature_hash());
        let tx = TxEnvelope::from(tx.into_signed(signature));
        Prepared { hash: *tx.tx_hash(), raw: tx.encoded_2718().into() }
    }
}
