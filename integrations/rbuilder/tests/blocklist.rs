//! The list behind rbuilder's trait, and the check before an execution. The one after it is in the test `table`, which is
//! the blocklist's own.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use alloy_consensus::{SignableTransaction, Signed, TxEip1559, TxEip7702, transaction::Recovered};
use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip7702::Authorization,
};
use alloy_primitives::{Address, Signature, U256, address};
use blocklist::{BlocklistConfig, SharedBlocklist};
use rbuilder_integration::{
    ingest_blocklist::{IngestBlockList, precheck},
    rbuilder::{BLOCKLIST_LENGTH, BlockListProvider, Error, TransactionErr, TransactionSigned},
};

const LISTED: Address = address!("0x00000000000000000000000000000000000000bb");
const SENDER: Address = address!("0x00000000000000000000000000000000000000aa");
const COINBASE: Address = address!("0x00000000000000000000000000000000000000fe");

fn list(age: Duration) -> Arc<SharedBlocklist> {
    let (now, config) = (SystemTime::now(), BlocklistConfig::default());
    let text = LISTED.to_string();
    // Read while it was fresh.
    Arc::new(SharedBlocklist::new(text.as_bytes(), now - age, config, now - age).unwrap())
}

#[test]
fn rbuilders_components_read_the_list_in_force_and_none_that_is_too_old() {
    let provider = IngestBlockList::new(list(Duration::ZERO));
    // rbuilder's own metrics of the list go on.
    assert_eq!(BLOCKLIST_LENGTH.load(std::sync::atomic::Ordering::Relaxed), 1);
    let provider: &dyn BlockListProvider = &provider;
    assert_eq!(provider.get_blocklist(), Ok([LISTED].into_iter().collect()));
    assert_eq!(provider.current_list_contains(&LISTED), Ok(true));
    assert_eq!(provider.current_list_contains(&SENDER), Ok(false));
    let stale = IngestBlockList::new(list(Duration::from_secs(100_000)));
    assert_eq!(stale.get_blocklist(), Err(Error::UnableToUpdateList));
    assert_eq!(stale.current_list_contains(&SENDER), Err(Error::UnableToUpdateList));
}

/// Nobody looks at its signature.
fn tx(to: Address, nonce: u64) -> Recovered<TransactionSigned> {
    signed(TxEip1559 { nonce, to: to.into(), ..Default::default() })
}

fn signed<T: SignableTransaction<Signature>>(tx: T) -> Recovered<TransactionSigned>
where
    TransactionSigned: From<Signed<T>>,
{
    Recovered::new_unchecked(tx.into_signed(Signature::test_signature()).into(), SENDER)
}

#[test]
fn a_transaction_that_names_a_listed_address_is_blocked_before_it_is_executed() {
    let guard = list(Duration::ZERO).begin_block(COINBASE, None, SystemTime::now()).unwrap();
    let access_list = |address| {
        let access_list = AccessList(vec![AccessListItem { address, storage_keys: vec![] }]);
        signed(TxEip1559 { access_list, to: COINBASE.into(), ..Default::default() })
    };
    let delegation = |address| {
        let authorization = Authorization { chain_id: U256::from(1), address, nonce: 0 };
        let signed_by_nobody = authorization.into_signed(Signature::test_signature());
        signed(TxEip7702 {
            authorization_list: vec![signed_by_nobody],
            to: COINBASE,
            ..Default::default()
        })
    };
    let listed_sender = Recovered::new_unchecked(tx(COINBASE, 0).into_inner(), LISTED);
    let cases = [
        ("recipient", tx(LISTED, 0), tx(COINBASE, 0)),
        ("sender", listed_sender, tx(COINBASE, 0)),
        ("access list", access_list(LISTED), access_list(COINBASE)),
        ("delegation", delegation(LISTED), delegation(COINBASE)),
    ];
    for (name, blocked, passed) in cases {
        assert!(matches!(precheck(&guard, &blocked), Err(TransactionErr::Blocklist)), "{name}");
        assert!(precheck(&guard, &passed).is_ok(), "{name}");
    }
}
