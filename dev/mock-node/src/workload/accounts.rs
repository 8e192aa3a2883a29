//! The accounts of the well-known test mnemonic, which anvil and reth fund in their development chains.

use std::iter;

use alloy_primitives::{Address, B256, Signature, keccak256};
use hmac::{Hmac, Mac};
use secp256k1::{Message, PublicKey, SECP256K1, Scalar, SecretKey};
use sha2::Sha512;

/// The mnemonic of every Ethereum development chain.
const TEST_MNEMONIC: &str = "test test test test test test test test test test test junk";

/// The purpose, coin type, account and change levels of BIP-44 for Ethereum: m/44'/60'/0'/0.
const PATH: [u32; 4] = [HARDENED | 44, HARDENED | 60, HARDENED, 0];
const HARDENED: u32 = 1 << 31;

/// An account that can sign.
#[derive(Clone, Debug)]
pub struct Account {
    /// Its address.
    pub address: Address,
    secret: SecretKey,
}

impl Account {
    /// The account of a key of our own making, for a seed and a number.
    pub(crate) fn from_entropy(seed: u64, number: u64) -> Self {
        let mut digest = keccak256([seed.to_be_bytes(), number.to_be_bytes()].concat());
        loop {
            match SecretKey::from_byte_array(&digest.0) {
                Ok(secret) => return Self::from_secret(secret),
                // One in 2^128 digests is no key.
                Err(_) => digest = keccak256(digest),
            }
        }
    }

    fn from_secret(secret: SecretKey) -> Self {
        let public = PublicKey::from_secret_key(SECP256K1, &secret).serialize_uncompressed();
        Self { address: Address::from_raw_public_key(&public[1..]), secret }
    }

    /// Signs a hash with libsecp256k1 (about 30 us; pure Rust takes four times as long).
    pub fn sign_hash(&self, hash: B256) -> Signature {
        let signature =
            SECP256K1.sign_ecdsa_recoverable(&Message::from_digest(hash.0), &self.secret);
        let (id, bytes) = signature.serialize_compact();
        Signature::from_bytes_and_parity(&bytes, i32::from(id) & 1 == 1)
    }
}

/// The first `count` accounts of the mnemonic of every Ethereum development chain, derived at m/44'/60'/0'/0/i.
pub fn test_accounts(count: usize) -> Vec<Account> {
    let (key, mut chain) = split(hmac(b"Bitcoin seed", &[&bip39_seed(TEST_MNEMONIC)]));
    let mut secret = SecretKey::from_byte_array(&key).expect("the mnemonic's root is a known key");
    for level in PATH {
        (secret, chain) = child(&secret, &chain, level);
    }
    let public = PublicKey::from_secret_key(SECP256K1, &secret).serialize();
    (0..count)
        .map(|index| {
            let index = u32::try_from(index).expect("BIP-32 numbers children with 31 bits");
            let (tweak, _) = split(hmac(&chain, &[&public, &index.to_be_bytes()]));
            Account::from_secret(tweaked(&secret, tweak))
        })
        .collect()
}

/// One step of BIP-32, hardened or not.
fn child(parent: &SecretKey, chain: &[u8; 32], index: u32) -> (SecretKey, [u8; 32]) {
    let index_bytes = index.to_be_bytes();
    let (tweak, chain) = if index & HARDENED != 0 {
        split(hmac(chain, &[&[0], &parent.secret_bytes(), &index_bytes]))
    } else {
        let public = PublicKey::from_secret_key(SECP256K1, parent).serialize();
        split(hmac(chain, &[&public, &index_bytes]))
    };
    (tweaked(parent, tweak), chain)
}

fn tweaked(parent: &SecretKey, tweak: [u8; 32]) -> SecretKey {
    let tweak = Scalar::from_be_bytes(tweak).expect("out of range once in 2^127 children");
    parent.add_tweak(&tweak).expect("zero once in 2^256 children")
}

/// PBKDF2-HMAC-SHA512 with 2048 rounds and one block of output, as BIP-39 says, without a passphrase.
fn bip39_seed(mnemonic: &str) -> [u8; 64] {
    let first = hmac(mnemonic.as_bytes(), &[b"mnemonic", &1u32.to_be_bytes()]);
    iter::successors(Some(first), |block| Some(hmac(mnemonic.as_bytes(), &[block])))
        .take(2048)
        .fold([0; 64], |mut seed, block| {
            seed.iter_mut().zip(block).for_each(|(to, from)| *to ^= from);
            seed
        })
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 64] {
    let mut mac = Hmac::<Sha512>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn split(digest: [u8; 64]) -> ([u8; 32], [u8; 32]) {
    let (left, right) = digest.split_at(32);
    (left.try_into().expect("half of 64"), right.try_into().expect("half of 64"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::address;

    #[test]
    fn the_accounts_are_those_that_anvil_prints() {
        let accounts = test_accounts(10);
        assert_eq!(accounts[0].address, address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266"));
        assert_eq!(accounts[1].address, address!("70997970C51812dc3A010C7d01b50e0d17dc79C8"));
        assert_eq!(accounts[9].address, address!("a0Ee7A142d267C1f36714E4a8F75612F20a79720"));
    }
}
