//! The genesis of a development chain with every fork up to Osaka.

use alloy::{
    eips::{eip2935, eip4788, eip7002, eip7251, eip7840::BlobParams},
    primitives::{Address, Bytes},
};
use mock_node::{DEV_CHAIN_ID, workload::test_accounts};
use serde_json::{Map, Value, json};

/// The balance of each account: a million ether, in wei.
const BALANCE: &str = "0xd3c21bcecceda1000000";

/// Makes a genesis in the format of geth.
pub(super) fn genesis(accounts: usize, gas_limit: u64) -> Value {
    let mut alloc: Map<String, Value> = test_accounts(accounts)
        .iter()
        .map(|account| (account.address.to_string(), json!({ "balance": BALANCE })))
        .collect();
    let contracts: [(Address, &Bytes); 4] = [
        (eip4788::BEACON_ROOTS_ADDRESS, &eip4788::BEACON_ROOTS_CODE),
        (eip2935::HISTORY_STORAGE_ADDRESS, &eip2935::HISTORY_STORAGE_CODE),
        (
            eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
            &eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_CODE,
        ),
        (
            eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
            &eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_CODE,
        ),
    ];
    for (address, code) in contracts {
        // A nonce of one, as on mainnet, so that the account is not empty and is not removed.
        let contract = json!({ "balance": "0x0", "nonce": "0x1", "code": code });
        alloc.insert(address.to_string(), contract);
    }
    let mut config = json!({
        "chainId": DEV_CHAIN_ID,
        "terminalTotalDifficulty": 0,
        "blobSchedule": {
            "cancun": blob_schedule(BlobParams::cancun()),
            "prague": blob_schedule(BlobParams::prague()),
            "osaka": blob_schedule(BlobParams::osaka()),
        },
    });
    let forks =
        "homestead eip150 eip155 eip158 byzantium constantinople petersburg istanbul berlin london";
    for block in forks.split(' ') {
        config[format!("{block}Block")] = 0.into();
    }
    for time in ["shanghai", "cancun", "prague", "osaka"] {
        config[format!("{time}Time")] = 0.into();
    }
    json!({
        "config": config,
        "difficulty": "0x0",
        "gasLimit": format!("{gas_limit:#x}"),
        "baseFeePerGas": "0x3b9aca00",
        "alloc": alloc,
    })
}

fn blob_schedule(params: BlobParams) -> Value {
    json!({
        "target": params.target_blob_count,
        "max": params.max_blob_count,
        "baseFeeUpdateFraction": params.update_fraction as u64,
    })
}
