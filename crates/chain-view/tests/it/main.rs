//! The recent blocks against a naive model, and the base fee against alloy's.

mod base_fee;
mod model;
mod rules;
