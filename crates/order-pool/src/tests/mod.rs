//! Tests that turn limits which are no options. The others are in `tests/`.

#[path = "../../tests/common/mod.rs"]
mod common;

mod arrival;
mod limits;
mod model;
