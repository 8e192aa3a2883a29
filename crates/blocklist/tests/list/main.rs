//! The list, its file, its server, and the checks over plain addresses, from outside: all that is there without
//! an EVM.

mod finish;
mod parse;
mod reload;
#[cfg(feature = "url")]
mod url;
