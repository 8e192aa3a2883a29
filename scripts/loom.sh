#!/usr/bin/env bash
# Checks every interleaving of the atomics of the load monitor, of the gate and of the pool's wake-ups.
#
# `--cfg loom` changes other crates too, so these builds have their own target directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom RUSTFLAGS="--cfg loom"
cargo test -p load-control -p order-pool --lib --release loom
