//! Tests that set limits which are no options. The other tests are in `tests/`.

#[path = "../../tests/common/mod.rs"]
mod common;

mod arrival;
mod limits;
mod model;
