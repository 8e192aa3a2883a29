#!/usr/bin/env bash
# Runs the trial with new seeds, every second run with a fleet, until the time is over or a violation is found. For a
# violation it prints the seed, and the shortest list of faults and attacks that reproduces it.
#
# Installs a pinned nats-server under target/nodes/ the first time, which needs a Go toolchain.
#
#   scripts/trial.sh                 thirty minutes: one run
#   scripts/trial.sh MINUTES [EACH]  this many minutes in runs of EACH minutes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

minutes=${1:-30}
each=${2:-$minutes}
scripts/real-nodes.sh --install-only nats
export MEMPOOL_INGEST_NODES=${MEMPOOL_INGEST_NODES:-$PWD/target/nodes/bin}
cargo build --quiet --release -p trial
trial=${CARGO_TARGET_DIR:-target}/release/trial
fleet=true
for ((begun = SECONDS; SECONDS - begun < minutes * 60; )); do
    "$trial" --minutes "$each" --fleet "$fleet" --quiet --shrink
    [ $fleet = true ] && fleet=false || fleet=true
done
