//! The checks on revm's types, from outside.

mod guard;
mod random;
mod rows;
mod strict;
mod support;
