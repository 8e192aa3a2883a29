//! Tests of the checks on revm's types.

mod guard;
mod random;
mod rows;
mod strict;
mod support;
