//! Random worlds, programs and transactions.

use rand::{Rng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use revm::{
    Database,
    bytecode::opcode,
    context::{
        TxEnv,
        transaction::{AccessList, AccessListItem},
    },
    context_interface::{
        either::Either,
        transaction::{RecoveredAuthorization, SignedAuthorization},
    },
    primitives::{Address, B256, Bytes, TxKind, U256, hardfork::SpecId},
    state::AccountInfo,
};

use super::{
    World,
    asm::{Asm, CALLS, takes_value},
};

/// Picks one of these values.
pub fn pick<T: Copy>(rng: &mut ChaCha8Rng, values: &[T]) -> T {
    *values.choose(rng).expect("not empty")
}

/// The addresses of a world, by the kind of account.
#[derive(Debug, Clone)]
pub struct Universe {
    pub senders: Vec<Address>,
    pub contracts: Vec<Address>,
    pub funded: Vec<Address>,
    pub empty: Vec<Address>,
    pub delegated: Vec<Address>,
    pub precompiles: Vec<Address>,
    all: Vec<Address>,
    transient_storage: bool,
}

impl Universe {
    pub fn new(spec: SpecId) -> Self {
        let named = |kind: u8, count: u8| -> Vec<Address> {
            let address =
                |n| Address::from(std::array::from_fn(|index| if index < 19 { kind } else { n }));
            (1..=count).map(address).collect()
        };
        // Cheap ones and expensive ones; some of them only exist on later forks.
        let precompiles = [1_u64, 2, 4, 6, 9, 10, 11, 256]
            .map(|n| Address::from_word(B256::from(U256::from(n))))
            .to_vec();
        let is_prague = spec.is_enabled_in(SpecId::PRAGUE);
        let delegated = if is_prague { named(0xd0, 3) } else { Vec::new() };
        let (senders, contracts, missing) = (named(0x5e, 3), named(0xc0, 8), named(0x90, 4));
        let (funded, empty) = (named(0xa0, 2), named(0xe0, 1));
        let accounts = [&senders, &funded, &empty, &missing, &delegated, &precompiles];
        // Contracts are drawn twice as often.
        let all = accounts.into_iter().chain([&contracts; 2]).flatten().copied().collect();
        let transient_storage = spec.is_enabled_in(SpecId::CANCUN);
        Self { senders, contracts, funded, empty, delegated, precompiles, all, transient_storage }
    }

    pub fn any(&self, rng: &mut ChaCha8Rng) -> Address {
        pick(rng, &self.all)
    }

    pub fn world(&self, rng: &mut ChaCha8Rng) -> World {
        let mut world = World::new();
        for address in self.senders.iter().chain(&self.funded) {
            world.fund(*address, U256::from(10).pow(U256::from(20)));
        }
        for address in &self.empty {
            world.inner.insert_account_info(*address, AccountInfo::default());
        }
        for address in &self.contracts {
            world.contract(*address, self.program(rng, 2));
            for slot in 0..2 {
                let value = U256::from(rng.random_range(0..3_u64));
                let stored = world.inner.insert_account_storage(*address, U256::from(slot), value);
                stored.expect("in memory");
            }
        }
        for address in &self.delegated {
            // To code, to another delegation, to a precompile, to nothing.
            world.delegated(*address, self.any(rng));
        }
        world
    }

    /// Code of one to nine steps; `creations` bounds how deep it carries init code.
    pub fn program(&self, rng: &mut ChaCha8Rng, creations: u8) -> Bytes {
        let mut asm = Asm::new();
        for _ in 0..rng.random_range(1..10) {
            asm = self.step(rng, asm, creations);
        }
        match rng.random_range(0..20) {
            0 | 1 => asm.revert(),
            2 => asm.op(opcode::INVALID),
            3 => asm.burn(),
            4 => self.push_address(rng, asm).op(opcode::SELFDESTRUCT),
            // Deploys a byte of zeros, or returns it.
            5 => asm.push(1).push(0).op(opcode::RETURN),
            _ => asm.op(opcode::STOP),
        }
        .bytes()
    }

    fn push_address(&self, rng: &mut ChaCha8Rng, asm: Asm) -> Asm {
        match rng.random_range(0..14) {
            0 => asm.op(opcode::ADDRESS),
            1 => asm.op(opcode::CALLER),
            2 => asm.op(opcode::ORIGIN),
            3 => asm.op(opcode::COINBASE),
            // Bits above the lowest 160 do not belong to the address.
            4 => asm.push_word(U256::MAX - U256::from(rng.random_range(0..3_u64))),
            _ => asm.address(self.any(rng)),
        }
    }

    fn step(&self, rng: &mut ChaCha8Rng, asm: Asm, creations: u8) -> Asm {
        match rng.random_range(0..20) {
            0..=4 => {
                let reads = [opcode::BALANCE, opcode::EXTCODESIZE, opcode::EXTCODEHASH];
                let read = pick(rng, &reads);
                self.push_address(rng, asm).op(read).op(opcode::POP)
            }
            5 => {
                let asm = asm.push(rng.random_range(0..40)).push(0).push(0);
                self.push_address(rng, asm).op(opcode::EXTCODECOPY)
            }
            6..=11 => {
                let kind = pick(rng, &CALLS);
                let mut asm = asm.push(0).push(0).push(rng.random_range(0..70)).push(0);
                if takes_value(kind) {
                    // Sometimes more than the account owns.
                    asm = asm.push(pick(rng, &[0, 0, 0, 1, 5, 1 << 40]));
                }
                let asm = self.push_address(rng, asm);
                let asm = match rng.random_range(0..4) {
                    0 => asm.push(rng.random_range(0..5_000)),
                    _ => asm.op(opcode::GAS),
                };
                asm.op(kind).op(opcode::POP)
            }
            12 => asm.push(rng.random_range(0..3)).op(opcode::SLOAD).op(opcode::POP),
            13 => asm.push(rng.random_range(0..3)).push(rng.random_range(0..3)).op(opcode::SSTORE),
            14 | 15 if creations > 0 => {
                let init = self.program(rng, creations - 1);
                let value = pick(rng, &[0, 0, 1, 1 << 40]);
                let create = if rng.random_bool(0.5) { Asm::create } else { Asm::create2 };
                let asm = create(asm, &init, value);
                // The created account is read, or called.
                match rng.random_range(0..3) {
                    0 => asm.op(opcode::EXTCODESIZE).op(opcode::POP),
                    1 => {
                        let asm = asm.push(0).push(0).push(0).push(0);
                        asm.op(opcode::DUP1 + 4).op(opcode::GAS).op(opcode::STATICCALL)
                    }
                    _ => asm.op(opcode::POP),
                }
            }
            16 => asm.op(opcode::SELFBALANCE).op(opcode::POP),
            // On forks without transient storage the opcode would end the frame.
            17 if self.transient_storage => asm.push(1).push(1).op(opcode::TSTORE),
            17 | 18 => asm.push(7).push(0).op(opcode::MSTORE),
            // Any byte, but seldom, since most are invalid or lack arguments and end the frame. No
            // long PUSH, which would swallow the following code.
            _ => match rng.random() {
                byte if rng.random_bool(0.2)
                    && !(opcode::PUSH2..=opcode::PUSH32).contains(&byte) =>
                {
                    asm.op(byte)
                }
                _ => asm.op(opcode::JUMPDEST),
            },
        }
    }
}

/// A transaction that is mostly valid at the state of `world`.
pub fn transaction(rng: &mut ChaCha8Rng, all: &Universe, spec: SpecId, world: &mut World) -> TxEnv {
    let caller = pick(rng, &all.senders);
    let nonce = world.basic(caller).expect("in memory").map_or(0, |info| info.nonce);
    let kind = if rng.random_bool(0.12) {
        TxKind::Create
    } else if rng.random_bool(0.7) {
        TxKind::Call(pick(rng, &all.contracts))
    } else {
        TxKind::Call(all.any(rng))
    };
    let gas_limit = match rng.random_range(0..10) {
        0 => rng.random_range(21_000..60_000),
        1 => 2_000_000,
        _ => rng.random_range(200_000..1_000_000),
    };
    let data = match kind {
        TxKind::Create => all.program(rng, 1),
        TxKind::Call(_) => (0..rng.random_range(0..40)).map(|_| rng.random::<u8>()).collect(),
    };
    let mut tx = TxEnv::builder()
        .caller(caller)
        .kind(kind)
        .nonce(nonce + u64::from(rng.random_bool(0.02)))
        .gas_limit(gas_limit)
        .gas_price(pick(rng, &[u128::from(super::BASE_FEE), 9, 100]))
        .value(U256::from(pick(rng, &[0_u64, 0, 1, 1000])))
        .data(data)
        .build_fill();

    let newest = match spec {
        _ if !spec.is_enabled_in(SpecId::LONDON) => 1,
        _ if !spec.is_enabled_in(SpecId::CANCUN) => 2,
        _ if !spec.is_enabled_in(SpecId::PRAGUE) => 3,
        _ => 4,
    };
    tx.tx_type = rng.random_range(0..=newest);
    if tx.kind.is_create() && tx.tx_type > 2 {
        tx.tx_type = 2;
    }
    if tx.tx_type >= 1 {
        let items = (0..rng.random_range(0..3)).map(|_| AccessListItem {
            address: all.any(rng),
            storage_keys: (0..rng.random_range(0..3_u8)).map(B256::with_last_byte).collect(),
        });
        tx.access_list = AccessList(items.collect());
    }
    if tx.tx_type >= 2 {
        tx.gas_priority_fee = Some(rng.random_range(0..3));
    }
    if tx.tx_type == 3 {
        tx.max_fee_per_blob_gas = 100;
        tx.blob_hashes = vec![B256::repeat_byte(rng.random())];
        tx.blob_hashes[0][0] = 1;
    }
    if tx.tx_type == 4 {
        let authorizations = rng.random_range(1..4);
        let signed = (0..authorizations).map(|_| authorization(rng, all, world));
        tx.authorization_list = signed.collect();
    }
    tx
}

fn authorization(
    rng: &mut ChaCha8Rng,
    universe: &Universe,
    world: &mut World,
) -> Either<SignedAuthorization, RecoveredAuthorization> {
    let authority = universe.any(rng);
    let nonce = world.basic(authority).expect("in memory").map_or(0, |info| info.nonce);
    let chain_id = pick(rng, &[0, 1, 1, 1, 5]);
    let target = if rng.random_bool(0.1) { Address::ZERO } else { universe.any(rng) };
    let nonce = if rng.random_bool(0.15) { u64::MAX - 1 } else { nonce };
    let authority = (!rng.random_bool(0.1)).then_some(authority);
    super::authorization(chain_id, authority, target, nonce)
}
