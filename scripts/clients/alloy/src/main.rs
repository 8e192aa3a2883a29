//! Calls the RPC server with alloy's `MevApi`. Usage: alloy-client URL BLOCK
//!
//! Prints a line for each call: its name and the answer that the client accepted, or the client's
//! own error for a call that only a relay can answer.

use std::fmt::Debug;

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, Bytes, TxHash, TxKind};
use alloy_provider::{ProviderBuilder, ext::MevApi as _};
use alloy_rpc_types_mev::{
    EthCallBundle, EthSendBlobs, EthSendBundle, EthSendEndOfBlockBundle, EthSendPrivateTransaction,
    MevSendBundle, PrivateTransactionPreferences,
};
use alloy_signer::SignerSync as _;
use alloy_signer_local::PrivateKeySigner;
use alloy_transport::{RpcError, TransportResult};

const UUID: &str = "7f1c8a52-3c1e-4d0b-9b1e-0f4a1de5a0a1";

type BoxError = Box<dyn std::error::Error>;

fn transaction(signer: &PrivateKeySigner, nonce: u64) -> Result<(TxHash, Bytes), BoxError> {
    let tx = TxEip1559 {
        chain_id: 1337,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 2_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        to: TxKind::Call(Address::repeat_byte(0xaa)),
        ..TxEip1559::default()
    };
    let signature = signer.sign_hash_sync(&tx.signature_hash())?;
    let tx = TxEnvelope::from(tx.into_signed(signature));
    Ok((*tx.tx_hash(), tx.encoded_2718().into()))
}

/// Checks that a call failed with the client's own error, which names the unknown method.
fn unsupported<T: Debug>(name: &str, answer: TransportResult<T>) -> Result<(), BoxError> {
    match answer {
        Err(RpcError::ErrorResp(error)) if error.message.contains("does not exist") => {
            println!("{name}\terror: {}", error.code);
            Ok(())
        }
        other => Err(format!("{name}: {other:?}").into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().collect();
    let [_, url, block] = &args[..] else { return Err("usage: alloy-client URL BLOCK".into()) };
    let block: u64 = block.parse()?;
    let provider = ProviderBuilder::new().connect_http(url.parse()?);
    let (sender, searcher) = (PrivateKeySigner::random(), PrivateKeySigner::random());
    let bundle = |nonce| -> Result<EthSendBundle, BoxError> {
        Ok(EthSendBundle {
            txs: vec![transaction(&sender, nonce)?.1],
            block_number: block,
            replacement_uuid: Some(UUID.to_owned()),
            ..EthSendBundle::default()
        })
    };
    let sent = provider.send_bundle(bundle(0)?).with_auth(searcher.clone()).await?;
    println!("send bundle\t{}", sent.ok_or("no bundle hash")?.bundle_hash);
    let sent = provider.send_bundle(bundle(1)?).with_auth(searcher.clone()).await?;
    println!("replace bundle\t{}", sent.ok_or("no bundle hash")?.bundle_hash);
    provider.cancel_bundle(UUID.to_owned()).with_auth(searcher.clone()).await?;
    println!("cancel bundle\tok");
    unsupported("call bundle", provider.call_bundle(EthCallBundle::default()).await)?;
    unsupported("send blobs", provider.send_blobs(EthSendBlobs::default()).await)?;
    let end_of_block = EthSendEndOfBlockBundle::default();
    unsupported("send end-of-block bundle", provider.send_end_of_block_bundle(end_of_block).await)?;
    unsupported("send mev bundle", provider.send_mev_bundle(MevSendBundle::default()).await)?;
    unsupported("simulate mev bundle", provider.sim_mev_bundle(MevSendBundle::default()).await)?;

    let (hash, raw) = transaction(&sender, 2)?;
    let private = EthSendPrivateTransaction {
        tx: raw,
        max_block_number: Some(block),
        preferences: PrivateTransactionPreferences::default().into_fast(),
    };
    let sent = provider.send_private_transaction(private).with_auth(searcher.clone()).await?;
    assert_eq!(sent, Some(hash));
    println!("send private\t{hash}");
    let (raw_hash, raw) = transaction(&sender, 3)?;
    let sent = provider.send_private_raw_transaction(&raw, None).with_auth(searcher.clone()).await?;
    assert_eq!(sent, Some(raw_hash));
    println!("send private raw\t{raw_hash}");
    for hash in [hash, raw_hash] {
        let cancelled = provider.cancel_private_transaction(hash).with_auth(searcher.clone()).await?;
        assert!(cancelled);
    }
    println!("cancel private\ttrue");
    Ok(())
}
