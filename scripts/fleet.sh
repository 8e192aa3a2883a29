#!/usr/bin/env bash
# A fleet on this machine: three real NATS servers, two mock nodes whose pools overlap by 70 %, two machines that
# ingest, four builders, 500 transactions/s for two minutes. A server is killed every 20 s, a machine and a builder
# once. In the end every builder holds what the machines pooled, each order once, or the script fails.
#
# Installs a pinned nats-server under target/nodes/ the first time, which needs a Go toolchain. What each step takes
# is set by the environment variables of benches/fleet/main.rs.
#
#   scripts/fleet.sh           that run
#   scripts/fleet.sh --rates   without kills, at rising rates: the highest that this machine holds
#   scripts/fleet.sh --short   24 s at 200/s with all kills
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/real-nodes.sh --install-only nats
export MEMPOOL_INGEST_NODES=${MEMPOOL_INGEST_NODES:-$PWD/target/nodes/bin}
case "${1-}" in
    "") exec cargo bench --bench fleet -- cluster ;;
    --rates) exec cargo bench --bench fleet -- rates ;;
    --short)
        export FLEET_BENCH_TPS=200 FLEET_BENCH_TIME=24 FLEET_BENCH_KILL_EVERY=4
        exec cargo bench --bench fleet -- cluster
        ;;
    *)
        echo "fleet: unknown option $1" >&2
        exit 2
        ;;
esac
