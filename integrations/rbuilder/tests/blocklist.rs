//! The checks of rbuilder's list. The test `table`, the blocklist's own, covers the check after an
//! execution.

use alloy_consensus::{SignableTransaction, Signed, TxEip1559, TxEip7702, transaction::Recovered};
use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip7702::Authorization,
};
use alloy_primitives::{Address, Signature, U256, address};
use blocklist::BlockGuard;
use rbuilder_integration::{
    TransactionSigned,
    building::{
        TransactionErr,
        ingest_blocklist::{guard, precheck},
    },
};

const LISTED: Address = address!("0x00000000000000000000000000000000000000bb");
const SENDER: Address = address!("0x00000000000000000000000000000000000000aa");
const COINBASE: Address = address!("0x00000000000000000000000000000000000000fe");

fn guard_of_one_address() -> BlockGuard {
    guard(&[LISTED].into_iter().collect(), COINBASE).expect("the fee recipient is not listed")
}

#[test]
fn a_listed_fee_recipient_has_no_guard_and_an_empty_list_has_one() {
    assert!(guard(&[COINBASE].into_iter().collect(), COINBASE).is_none());
    assert!(guard(&Default::default(), COINBASE).is_some());
}

#[test]
fn keys_of_the_executed_state_are_checked() {
    let guard = guard_of_one_address();
    assert!(guard.check_addresses([&SENDER, &COINBASE]).is_ok());
    assert!(guard.check_addresses([&SENDER, &LISTED]).is_err());
}

/// Returns a transaction whose signature is never checked.
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
fn a_transaction_that_names_a_listed_address_is_blocked() {
    let guard = guard_of_one_address();
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
