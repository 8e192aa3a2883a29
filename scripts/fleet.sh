#!/usr/bin/env bash
# What a new builder gets of a stream that was rolled back, made anew or purged, and what a builder stores that has the
# responses to its requests sent to a machine's subject, on real NATS servers. `scripts/trial.sh` kills parts of a fleet.
#
# Installs a pinned nats-server under target/nodes/ the first time, which needs a Go toolchain.
#
#   scripts/fleet.sh --chaos
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1-}" != --chaos ]; then
    echo "fleet: the option is --chaos" >&2
    exit 2
fi
scripts/real-nodes.sh --install-only nats
export MEMPOOL_INGEST_NODES=${MEMPOOL_INGEST_NODES:-$PWD/target/nodes/bin}
cargo test --quiet --release -p order-stream -p testkit --features order-stream/real-nodes,testkit/real-nodes \
    --test real_nodes -- --nocapture --test-threads 1 gets_everything_again stores_and_purges_nothing \
    whatever_clocks_say hold_for_an_order_that_comes_late within_six_seconds
