#!/usr/bin/env bash
# Checks on real NATS servers: what a new builder gets of a stream that was rolled back, recreated or purged; whether a builder can
# store messages on a machine's subject through the responses to its requests; whether builders agree although clocks differ; and how
# fast publishers leave a server that hangs. `scripts/trial.sh` kills parts of a fleet.
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
    whatever_clocks_say hold_for_an_order_that_arrives_late within_six_seconds
