//! The list behind rbuilder's trait, and rbuilder's kind of commit with the guard's two checks. The checks themselves are
//! in the test `table`, which is the blocklist's own.

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
    blocklist::{IngestBlockList, precheck},
    rbuilder::{BlockListProvider, Error, TransactionErr, TransactionSigned},
};
use revm::{
    Context, DatabaseCommit, ExecuteEvm, MainBuilder, MainContext,
    context::{
        TxEnv,
        result::{EVMError, InvalidTransaction},
    },
    database::{CacheDB, EmptyDB, State, states::bundle_state::BundleRetention},
    state::AccountInfo,
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
    let provider = IngestBlockList(list(Duration::ZERO));
    let provider: &dyn BlockListProvider = &provider;
    assert_eq!(provider.get_blocklist(), Ok([LISTED].into_iter().collect()));
    assert_eq!(provider.current_list_contains(&LISTED), Ok(true));
    assert_eq!(provider.current_list_contains(&SENDER), Ok(false));
    let stale = IngestBlockList(list(Duration::from_secs(100_000)));
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

#[test]
fn what_is_blocked_is_not_committed_and_what_is_not_is() {
    let guard = list(Duration::ZERO).begin_block(COINBASE, None, SystemTime::now()).unwrap();
    let mut database = CacheDB::new(EmptyDB::default());
    let funds = AccountInfo::from_balance(U256::from(10).pow(U256::from(20)));
    database.insert_account_info(SENDER, funds);
    // Reads the balance of the listed address: PUSH20, BALANCE.
    let reader = address!("0x00000000000000000000000000000000000000c0");
    let code = [&[0x73][..], LISTED.as_slice(), &[0x31]].concat();
    let code = revm::bytecode::Bytecode::new_raw(code.into());
    let contract = AccountInfo::new(U256::ZERO, 1, code.hash_slow(), code);
    database.insert_account_info(reader, contract);
    let mut state = State::builder().with_database(database).with_bundle_update().build();

    // rbuilder's kind of commit, with the two checks of the guard: a new EVM for each transaction.
    let mut commit = |to: Address, nonce: u64| {
        precheck(&guard, &tx(to, nonce))?;
        let mut evm = Context::mainnet()
            .with_db(&mut state)
            .modify_block_chained(|block| block.beneficiary = COINBASE)
            .build_mainnet();
        let env = TxEnv::builder().caller(SENDER).to(to).nonce(nonce).gas_limit(100_000);
        let executed = match evm.transact(env.build_fill()) {
            Ok(executed) => executed,
            Err(EVMError::Transaction(invalid)) => {
                return Err(TransactionErr::InvalidTransaction(invalid));
            }
            Err(other) => panic!("in memory: {other}"),
        };
        drop(evm);
        guard.check_addresses(executed.state.keys()).map_err(|_| TransactionErr::Blocklist)?;
        state.commit(executed.state);
        state.merge_transitions(BundleRetention::Reverts);
        Ok(())
    };
    assert!(matches!(commit(LISTED, 0), Err(TransactionErr::Blocklist)), "named");
    assert!(matches!(commit(reader, 0), Err(TransactionErr::Blocklist)), "read");
    let invalid = commit(COINBASE, 7);
    let reason = InvalidTransaction::NonceTooHigh { tx: 7, state: 0 };
    assert!(matches!(invalid, Err(TransactionErr::InvalidTransaction(found)) if found == reason));
    assert!(commit(COINBASE, 0).is_ok());
    // Only the last one moved the nonce, as the next execution shows.
    assert!(commit(COINBASE, 1).is_ok());
    let nonce = state.bundle_state.state[&SENDER].info.as_ref().map(|info| info.nonce);
    assert_eq!(nonce, Some(2));
}
