#!/usr/bin/env bash
# Calls the RPC server of the running example with the clients that searchers use: the package `flashbots` of PyPI,
# `@flashbots/ethers-provider-bundle`, `ethers` and `viem` of npm, and alloy's `MevApi`. Each client makes every call
# that it has for sending orders, and some that only a node or a relay can answer. Prints a table of the answers; fails
# if a client does not accept an answer, or reports an unsupported call with anything but its own error.
#
# Usage: scripts/clients.sh [path of the `ingest` example]
#        without it, the example is built in release.
# The clients are installed into target/clients and stay there. Needs python3, node with npm, and cargo.
set -euo pipefail
cd "$(dirname "$0")/.."

FLASHBOTS=2.0.0
PROVIDER_BUNDLE=1.0.0
ETHERS=6.17.0
VIEM=2.57.20
clients=${CARGO_TARGET_DIR:-target}/clients
mkdir -p "$clients"
log=$(mktemp)
trap 'kill "${ingest:-}" 2>/dev/null || true; rm -f "$log"' EXIT

example=${1:-}
if [ -z "$example" ]; then
    cargo build --release --example ingest
    example=${CARGO_TARGET_DIR:-target}/release/examples/ingest
fi
if [ ! -x "$clients/venv/bin/python" ]; then
    python3 -m venv "$clients/venv"
    "$clients/venv/bin/pip" install --quiet --disable-pip-version-check "flashbots==$FLASHBOTS" setuptools
fi
# Two folders, because the package of Flashbots needs an ethers of its own.
install() { # folder, packages...
    local folder=$clients/$1
    shift
    if [ ! -d "$folder/node_modules" ]; then
        mkdir -p "$folder"
        npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$folder" "$@"
    fi
}
install provider-bundle "@flashbots/ethers-provider-bundle@$PROVIDER_BUNDLE"
install npm "ethers@$ETHERS" "viem@$VIEM"
cp scripts/clients/{report,provider-bundle}.mjs "$clients/provider-bundle/"
cp scripts/clients/{report,ethers,viem}.mjs "$clients/npm/"
cargo build --quiet --manifest-path scripts/clients/alloy/Cargo.toml --target-dir "$clients/alloy"

# One block in the whole time, so that the head is known.
"$example" --tps 20 --duration 120s --block-time 60s --rpc 127.0.0.1:0 >/dev/null 2>"$log" &
ingest=$!
url=
for _ in $(seq 600); do
    url=$(sed -n 's/^orders by JSON-RPC at //p' "$log")
    [ -n "$url" ] && break
    sleep 0.1
done
[ -n "$url" ] || { cat "$log" >&2; exit 1; }
# The server is ready when the head is known.
for _ in $(seq 300); do
    curl -sf "$url/readyz" >/dev/null && break
    sleep 0.1
done

# The head is below 3 for two minutes.
block=5
run() { # name, command...
    local name=$1
    shift
    "$@" "$url" "$block" | while IFS=$'\t' read -r call answer; do
        printf '| %-41s | %-28s | %-66s |\n' "$name" "$call" "$answer"
    done
}
printf '| %-41s | %-28s | %-66s |\n' client call answer
printf '|%s|%s|%s|\n' "$(printf -- '-%.0s' {1..43})" "$(printf -- '-%.0s' {1..30})" "$(printf -- '-%.0s' {1..68})"
run "flashbots $FLASHBOTS (PyPI)" "$clients/venv/bin/python" scripts/clients/python.py
run "@flashbots/ethers-provider-bundle $PROVIDER_BUNDLE" node "$clients/provider-bundle/provider-bundle.mjs"
run "ethers $ETHERS" node "$clients/npm/ethers.mjs"
run "viem $VIEM" node "$clients/npm/viem.mjs"
run "alloy MevApi 2.5.0" "$clients/alloy/debug/alloy-client"
