//! Compares the recent blocks with a naive model, and the base fee with alloy's.

mod base_fee;
mod model;
mod rules;
