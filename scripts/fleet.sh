#!/usr/bin/env bash
# A fleet on this machine: three real NATS servers, two machines whose nodes' pools overlap by 70 %, four builders, 500
# transactions/s for two minutes. A server is killed every 20 s, a machine and a builder once. In the end every builder
# holds what the machines' nodes announced, each order once, or the script fails. Beside them fifty searchers send, replace
# without a nonce and cancel at random machines, and every builder ends with exactly what their log implies.
#
# Installs a pinned nats-server under target/nodes/ the first time, which needs a Go toolchain. The load is set by the
# environment variables of crates/order-stream/tests/real_nodes/kills.rs.
#
#   scripts/fleet.sh           that run
#   scripts/fleet.sh --rates   without kills, at rising rates: the highest that this machine holds
#   scripts/fleet.sh --short   24 s at 200/s with all kills
#   scripts/fleet.sh --chaos   a store that is rolled back, a stream that is made anew or purged, and a builder that has the
#                              responses to its requests sent to a machine's subject
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/real-nodes.sh --install-only nats
export MEMPOOL_INGEST_NODES=${MEMPOOL_INGEST_NODES:-$PWD/target/nodes/bin}

run() {
    cargo test --quiet --release -p order-stream --features real-nodes --test real_nodes -- --ignored --exact --nocapture \
        kills::a_fleet_whose_parts_are_killed_ends_with_the_union_in_every_builder
}

case "${1-}" in
    "") run ;;
    --short) FLEET_TPS=200 FLEET_SECONDS=24 FLEET_KILL_EVERY=4 run ;;
    --chaos)
        cargo test --quiet --release -p order-stream -p devnet --features order-stream/real-nodes,devnet/real-nodes \
            --test real_nodes -- --nocapture --test-threads 1 gets_everything_again stores_and_purges_nothing
        ;;
    --rates)
        held=none
        for tps in 500 750 1000 1500 2000 3000; do
            echo "== $tps/s =="
            p99=$(FLEET_TPS=$tps FLEET_SECONDS=15 FLEET_KILL_EVERY=0 run | tee /dev/stderr |
                sed -n 's/^from the announcement.* p99 \([0-9]*\)\..*/\1/p')
            [ "$p99" -le 500 ] || break
            held=$tps/s
        done
        echo "held by this machine for servers, machines and builders together, p99 at most 500 ms: $held"
        ;;
    *)
        echo "fleet: unknown option $1" >&2
        exit 2
        ;;
esac
