//! A small assembler for the programs of the tests.

use revm::{
    bytecode::opcode,
    primitives::{Address, Bytes, U256},
};

/// The opcodes that call an account.
pub const CALLS: [u8; 4] =
    [opcode::CALL, opcode::CALLCODE, opcode::DELEGATECALL, opcode::STATICCALL];

/// Whether such a call sends ether.
pub const fn takes_value(call: u8) -> bool {
    matches!(call, opcode::CALL | opcode::CALLCODE)
}

#[derive(Debug, Clone, Default)]
pub struct Asm(Vec<u8>);

impl Asm {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn op(mut self, op: u8) -> Self {
        self.0.push(op);
        self
    }

    /// The shortest `PUSH1` to `PUSH32`.
    pub fn push(self, value: u64) -> Self {
        self.push_word(U256::from(value))
    }

    pub fn push_word(mut self, value: U256) -> Self {
        let word = value.to_be_bytes::<32>();
        let skip = word.iter().take(31).take_while(|byte| **byte == 0).count();
        self.0.push(opcode::PUSH1 + (31 - skip) as u8);
        self.0.extend_from_slice(&word[skip..]);
        self
    }

    pub fn address(mut self, address: Address) -> Self {
        self.0.push(opcode::PUSH20);
        self.0.extend_from_slice(address.as_slice());
        self
    }

    /// One of [`CALLS`] with all remaining gas, no input and no output; the result is popped.
    pub fn call(self, kind: u8, to: Address, value: u64) -> Self {
        let asm = self.push(0).push(0).push(0).push(0);
        let asm = if takes_value(kind) { asm.push(value) } else { asm };
        asm.address(to).op(opcode::GAS).op(kind).op(opcode::POP)
    }

    /// Writes `bytes` to memory from 0 on.
    pub fn store(mut self, bytes: &[u8]) -> Self {
        for (index, chunk) in bytes.chunks(32).enumerate() {
            let mut word = [0; 32];
            word[..chunk.len()].copy_from_slice(chunk);
            let offset = index as u64 * 32;
            self = self.push_word(U256::from_be_bytes(word)).push(offset).op(opcode::MSTORE);
        }
        self
    }

    /// `CREATE` from `init`; the address stays on the stack.
    pub fn create(self, init: &[u8], value: u64) -> Self {
        self.store(init).push(init.len() as u64).push(0).push(value).op(opcode::CREATE)
    }

    /// `CREATE2` from `init` with salt 0; the address stays on the stack.
    pub fn create2(self, init: &[u8], value: u64) -> Self {
        let asm = self.store(init).push(0).push(init.len() as u64).push(0).push(value);
        asm.op(opcode::CREATE2)
    }

    pub fn revert(self) -> Self {
        self.push(0).push(0).op(opcode::REVERT)
    }

    /// Needs more memory than any gas pays for: out of gas at once.
    pub fn burn(self) -> Self {
        self.push(1 << 40).op(opcode::MLOAD)
    }

    pub fn bytes(&self) -> Bytes {
        Bytes::from(self.0.clone())
    }
}
