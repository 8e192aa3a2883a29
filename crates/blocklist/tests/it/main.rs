//! The list, its file and the checks, from outside.

mod guard;
mod parse;
mod random;
mod reach;
mod reload;
mod rows;
mod strict;
mod support;
