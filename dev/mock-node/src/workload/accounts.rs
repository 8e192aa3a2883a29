//! The accounts of the well-known test mnemonic, which anvil and reth fund in their development
//! chains.

use alloy_primitives::{Address, B256, Signature, b256, keccak256};
use hmac::{Hmac, Mac};
use secp256k1::{Message, PublicKey, SECP256K1, Scalar, SecretKey};
use sha2::Sha512;

/// The key and the chain code at m/44'/60'/0'/0 (BIP-44, without the last level) of the mnemonic of
/// every Ethereum development chain: "test test test test test test test test test test test junk".
const KEY: B256 = b256!("dd23ca549a97cb330b011aebb674730df8b14acaee42d211ab45692699ab8ba5");
const CHAIN_CODE: B256 = b256!("236a4a5d77e29cc09182a8a6c9d288cb04e638fcd0743bbc068c16665d1e4d2c");

/// An account that can sign.
#[derive(Clone, Debug)]
pub struct Account {
    pub address: Address,
    secret: SecretKey,
}

impl Account {
    /// Makes an account whose key is derived from a seed and a number.
    pub fn from_entropy(seed: u64, number: u64) -> Self {
        let mut digest = keccak256([seed.to_be_bytes(), number.to_be_bytes()].concat());
        loop {
            match SecretKey::from_byte_array(&digest.0) {
                Ok(secret) => return Self::from_secret(secret),
                // One in 2^128 digests is not a valid key.
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

/// The first `count` accounts of the mnemonic of every Ethereum development chain: the non-hardened
/// children of `KEY` (BIP-32).
pub fn test_accounts(count: usize) -> Vec<Account> {
    let key = SecretKey::from_byte_array(&KEY.0).expect("it is a known key");
    let public = PublicKey::from_secret_key(SECP256K1, &key).serialize();
    (0..count)
        .map(|index| {
            let index = u32::try_from(index).expect("BIP-32 numbers children with 31 bits");
            let mac = Hmac::<Sha512>::new_from_slice(&CHAIN_CODE.0);
            let mut mac = mac.expect("HMAC takes keys of any length");
            mac.update(&public);
            mac.update(&index.to_be_bytes());
            let digest = mac.finalize().into_bytes();
            let tweak = digest[..32].try_into().expect("half of 64 bytes");
            let tweak = Scalar::from_be_bytes(tweak).expect("out of range once in 2^127 children");
            Account::from_secret(key.add_tweak(&tweak).expect("zero once in 2^256 children"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::address;

    #[test]
    fn the_accounts_are_those_of_anvil() {
        let accounts = test_accounts(10);
        assert_eq!(accounts[0].address, address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266"));
        assert_eq!(accounts[1].address, address!("70997970C51812dc3A010C7d01b50e0d17dc79C8"));
        assert_eq!(accounts[9].address, address!("a0Ee7A142d267C1f36714E4a8F75612F20a79720"));
    }
}
