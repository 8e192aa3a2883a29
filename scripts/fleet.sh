#!/usr/bin/env bash
# A fleet on three real NATS servers: two machines whose clocks differ by an hour, and four builders, one of them a minute
# behind and one started late. Searchers send, replace and cancel at any machine. In the end each builder holds exactly what
# it must: missing, stale, cancelled-and-there and twice are 0, or the script fails.
#
# Installs a pinned nats-server under target/nodes/ the first time, which needs a Go toolchain. `FLEET_SECONDS` (60) is the
# length of the load.
#
#   scripts/fleet.sh          without faults
#   scripts/fleet.sh --chaos  servers are killed or hang, a machine and a builder are replaced. Then as root, for the right to
#                             mount: a leader's disk is full. Then streams that were rolled back, recreated or purged, a
#                             builder that tries to store messages, and servers that hang.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/real-nodes.sh --install-only nats
export MEMPOOL_INGEST_NODES=${MEMPOOL_INGEST_NODES:-$PWD/target/nodes/bin}
tests() {
    cargo test --quiet --release -p order-stream -p testkit --features order-stream/real-nodes,testkit/real-nodes \
        --test real_nodes -- --nocapture --test-threads 1 --include-ignored "$@"
}

case "${1-}" in
    "") tests machines_an_hour_apart ;;
    --chaos)
        tests although_servers_fail disk_was_full gets_everything_again stores_and_purges_nothing whatever_clocks_say \
            hold_for_an_order_that_arrives_late reaches_the_builders within_six_seconds
        ;;
    *)
        echo "fleet: unknown option $1; the option is --chaos" >&2
        exit 2
        ;;
esac
