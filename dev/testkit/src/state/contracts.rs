//! The contracts that the load calls, assembled by hand: a token, a constant-product pool, a router
//! over both, and a loop of computations.

use std::collections::HashMap;

use revm::{
    bytecode::opcode::*,
    primitives::{Address, B256, Bytes, U256, keccak256},
};

#[derive(Debug, Default)]
struct Code {
    bytes: Vec<u8>,
    labels: HashMap<&'static str, u16>,
    jumps: Vec<(usize, &'static str)>,
}

impl Code {
    fn ops(mut self, ops: &[u8]) -> Self {
        self.bytes.extend_from_slice(ops);
        self
    }

    fn push(self, value: u64) -> Self {
        self.push_word(U256::from(value))
    }

    fn push_word(mut self, value: U256) -> Self {
        let word = value.to_be_bytes::<32>();
        let skip = word.iter().take_while(|byte| **byte == 0).count();
        self.bytes.push(PUSH0 + (32 - skip) as u8);
        self.bytes.extend_from_slice(&word[skip..]);
        self
    }

    fn address(self, address: Address) -> Self {
        self.push_word(address.into_word().into())
    }

    fn label(mut self, name: &'static str) -> Self {
        self.labels.insert(name, self.bytes.len() as u16);
        self.ops(&[JUMPDEST])
    }

    fn jump(mut self, kind: u8, name: &'static str) -> Self {
        self.jumps.push((self.bytes.len() + 1, name));
        self.bytes.extend_from_slice(&[PUSH2, 0, 0]);
        self.ops(&[kind])
    }

    /// Pushes the 32 bytes of the calldata at `offset`.
    fn argument(self, offset: u64) -> Self {
        self.push(offset).ops(&[CALLDATALOAD])
    }

    /// Stores the top of the stack.
    fn store(self, offset: u64) -> Self {
        self.push(offset).ops(&[MSTORE])
    }

    /// Pushes the hash of the first 64 bytes of the memory: the slot of a mapping's entry.
    fn slot(self) -> Self {
        self.push(64).push(0).ops(&[KECCAK256])
    }

    /// Calls an account, with the `(offset, length)` of input and output, and reverts if the call
    /// fails.
    fn call(self, kind: u8, to: Address, input: (u64, u64), output: (u64, u64)) -> Self {
        let code = self.push(output.1).push(output.0).push(input.1).push(input.0);
        let code = if kind == CALL { code.push(0) } else { code };
        code.address(to).ops(&[GAS, kind, ISZERO]).jump(JUMPI, "fail")
    }

    /// Stores a selector at `offset`; the arguments follow 4 bytes later.
    fn selector(self, signature: &str, offset: u64) -> Self {
        let mut word = [0; 32];
        word[..4].copy_from_slice(&keccak256(signature)[..4]);
        self.push_word(U256::from_be_bytes(word)).store(offset)
    }

    /// Jumps to a label if the selector on top of the stack is that of a function.
    fn case(self, signature: &str, label: &'static str) -> Self {
        let selector = keccak256(signature)[..4].try_into().expect("four bytes");
        let code = self.ops(&[DUP1]).push(u32::from_be_bytes(selector).into());
        code.ops(&[EQ]).jump(JUMPI, label)
    }

    /// With `value slot` on top of the stack and an amount in fifth place, stores `value - amount`
    /// in the slot. Fails if the amount is larger.
    fn subtract(self) -> Self {
        let code = self.ops(&[DUP5, DUP2, LT]).jump(JUMPI, "fail");
        code.ops(&[DUP5, SWAP1, SUB, SWAP1, SSTORE])
    }

    fn finish(mut self) -> Bytes {
        self = self.label("fail").ops(&[PUSH0, PUSH0, REVERT]);
        for (position, name) in self.jumps {
            self.bytes[position..position + 2].copy_from_slice(&self.labels[name].to_be_bytes());
        }
        self.bytes.into()
    }
}

const TRANSFER: &str = "transfer(address,uint256)";
const TRANSFER_FROM: &str = "transferFrom(address,address,uint256)";
const BALANCE_OF: &str = "balanceOf(address)";

/// An ERC-20 token: balances are mapping 0, allowances mapping 1. If `loads_receiver` is set, it
/// loads the account of the receiver, like tokens that call their receivers (ERC-777, ERC-1363).
pub fn token(loads_receiver: bool) -> Bytes {
    let code = Code::default().argument(0).push(224).ops(&[SHR]);
    let code = code.case(TRANSFER, "transfer").case(TRANSFER_FROM, "transfer_from");
    let code = code.case(BALANCE_OF, "balance_of").jump(JUMP, "fail");

    let code = code.label("balance_of").argument(4).store(0).push(0).store(32).slot();
    let code = code.ops(&[SLOAD]).store(0).push(32).push(0).ops(&[RETURN]);

    let code = code.label("transfer_from").argument(68).argument(36).argument(4);
    let code = code.ops(&[DUP1]).store(0).push(1).store(32).slot();
    let code = code.store(32).ops(&[CALLER]).store(0).slot().ops(&[DUP1, SLOAD]);
    let code = code.subtract().jump(JUMP, "move");

    let code = code.label("transfer").argument(36).argument(4).ops(&[CALLER]);

    // The stack holds: sender, receiver, amount.
    let code = code.label("move");
    let code = if loads_receiver { code.ops(&[DUP2, EXTCODESIZE, POP]) } else { code };
    let code = code.ops(&[DUP1]).store(0).push(0).store(32).slot();
    let code = code.ops(&[DUP1, SLOAD]).subtract();
    let code = code.ops(&[DUP2]).store(0).slot().ops(&[DUP1, SLOAD, DUP5, ADD, SWAP1, SSTORE]);
    let event = keccak256("Transfer(address,address,uint256)");
    let code = code.ops(&[DUP3]).store(0).push_word(event.into()).push(32).push(0).ops(&[LOG3]);
    code.push(1).store(0).push(32).push(0).ops(&[RETURN]).finish()
}

/// A constant-product pool. Without calldata it returns its reserves. With `(amount out, receiver)`
/// it pays the amount, and makes its balances the new reserves if their product did not shrink.
pub fn pool(token_in: Address, token_out: Address) -> Bytes {
    let code = Code::default().ops(&[CALLDATASIZE]).jump(JUMPI, "swap");
    let code = code.push(0).ops(&[SLOAD]).store(0).push(1).ops(&[SLOAD]).store(32);
    let code = code.push(64).push(0).ops(&[RETURN]);

    let code = code.label("swap").selector(TRANSFER, 0);
    let code = code.argument(32).store(4).argument(0).store(36);
    let code = code.call(CALL, token_out, (0, 68), (128, 32));
    let code = code.selector(BALANCE_OF, 0).ops(&[ADDRESS]).store(4);
    let code = code.call(STATICCALL, token_in, (0, 36), (128, 32));
    let code = code.call(STATICCALL, token_out, (0, 36), (160, 32));
    // The product of the reserves must not exceed that of the balances.
    let code = code.push(0).ops(&[SLOAD]).push(1).ops(&[SLOAD, MUL]);
    let code = code.push(128).ops(&[MLOAD]).push(160).ops(&[MLOAD, MUL, LT]);
    let code = code.jump(JUMPI, "fail");
    let code = code.push(128).ops(&[MLOAD]).push(0).ops(&[SSTORE]);
    let code = code.push(160).ops(&[MLOAD]).push(1).ops(&[SSTORE]);
    code.push(1).push(64).push(128).ops(&[LOG1, STOP]).finish()
}

/// A router. With this selector and an amount in the calldata at `amount_offset`, it takes the
/// amount from the caller, and makes the pool pay its value to the caller, less 0.3 %. Calls with
/// another selector do nothing and succeed.
pub fn router(token_in: Address, pool: Address, selector: [u8; 4], amount_offset: u64) -> Bytes {
    let code = Code::default().argument(0).push(224).ops(&[SHR]);
    let code = code.push(u32::from_be_bytes(selector).into()).ops(&[EQ]).jump(JUMPI, "swap");
    let code = code.ops(&[STOP]).label("swap");
    let code = code.call(STATICCALL, pool, (0, 0), (256, 64));
    let code = code.selector(TRANSFER_FROM, 0).ops(&[CALLER]).store(4);
    let code = code.address(pool).store(36).argument(amount_offset).store(68);
    let code = code.call(CALL, token_in, (0, 100), (128, 32));
    // in * 997 * r1 / (r0 * 1000 + in * 997)
    let code =
        code.argument(amount_offset).push(997).ops(&[MUL, DUP1]).push(256).ops(&[MLOAD]).push(1000);
    let code = code.ops(&[MUL, ADD, SWAP1]).push(288).ops(&[MLOAD, MUL, DIV]);
    let code = code.store(0).ops(&[CALLER]).store(32);
    code.call(CALL, pool, (0, 64), (0, 0)).ops(&[STOP]).finish()
}

/// A loop of `(rounds)` rounds of cheap arithmetic and memory accesses, with one hash each, like
/// libraries that compute prices or check proofs.
pub fn compute() -> Bytes {
    // The stack holds: rounds left, number.
    let mut code = Code::default().argument(0).push(7).label("round");
    for shift in [7, 13, 31] {
        code = code.ops(&[DUP2, ADD, DUP1]).push(shift).ops(&[SHR, XOR]);
        code = code.push(0x9e37_79b9_7f4a_7c15).ops(&[MUL, DUP1]).store(0).push(0).ops(&[MLOAD]);
        code = code.push(0xffff).ops(&[AND, ADD]);
    }
    let code = code.ops(&[DUP1]).store(0).push(32).push(0).ops(&[KECCAK256, XOR]);
    let code = code.ops(&[SWAP1]).push(1).ops(&[SWAP1, SUB, SWAP1, DUP2]).jump(JUMPI, "round");
    code.store(0).push(32).push(0).ops(&[RETURN]).finish()
}

/// The slot of `key` in mapping number `mapping`.
pub fn slot_of(key: Address, mapping: U256) -> U256 {
    let words = [key.into_word(), B256::from(mapping)].concat();
    keccak256(words).into()
}

/// The calldata of `transfer(to, amount)`.
pub fn transfer_input(to: Address, amount: u64) -> Bytes {
    let mut input = keccak256(TRANSFER)[..4].to_vec();
    input.extend_from_slice(to.into_word().as_slice());
    input.extend_from_slice(&U256::from(amount).to_be_bytes::<32>());
    input.into()
}
