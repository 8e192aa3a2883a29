#!/usr/bin/env bash
# Tries every interleaving of the atomics behind the load monitor, the gate and the pool's wake-ups.
#
# `--cfg loom` changes every crate that knows it, so these builds have a target directory of their own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom RUSTFLAGS="--cfg loom"
cargo test -p load-control -p order-pool --lib --release loom
