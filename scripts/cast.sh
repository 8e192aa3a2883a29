#!/usr/bin/env bash
# Sends orders to the RPC server of the running example with a stock client, foundry's cast: a raw transaction, a
# signed bundle, its replacement, and its cancellation. Fails unless a subscriber has seen each of them.
#
# Usage: scripts/cast.sh [path of the `ingest` example]
#        without it, the example is built in release.
# CAST may name a binary of cast; otherwise npm installs a pinned version into a temporary folder.
set -euo pipefail
cd "$(dirname "$0")/.."

CAST_VERSION=1.7.1
# A well-known development key.
KEY=0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d
CHAIN=1337

folder=$(mktemp -d)
trap 'kill "${ingest:-}" 2>/dev/null || true; rm -rf "$folder"' EXIT

cast=${CAST:-}
if [ -z "$cast" ]; then
    npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$folder" "@foundry-rs/cast-linux-amd64@$CAST_VERSION"
    cast=$folder/node_modules/@foundry-rs/cast-linux-amd64/bin/cast
fi
example=${1:-}
if [ -z "$example" ]; then
    cargo build --release --example ingest
    example=${CARGO_TARGET_DIR:-target}/release/examples/ingest
fi

"$example" --tps 50 --duration 20s --block-time 60s --json --rpc 127.0.0.1:0 \
    >"$folder/summary" 2>"$folder/log" &
ingest=$!
url=
for _ in $(seq 600); do
    url=$(sed -n 's/^orders by JSON-RPC at //p' "$folder/log")
    [ -n "$url" ] && break
    sleep 0.1
done
[ -n "$url" ] || { cat "$folder/log" >&2; exit 1; }

signer=$("$cast" wallet address --private-key "$KEY")
# All fields are given, so cast requests nothing from the node.
transaction() { # nonce, value
    "$cast" mktx --private-key "$KEY" --chain "$CHAIN" --nonce "$1" --value "$2" --gas-limit 21000 \
        --gas-price 2000000000 --priority-gas-price 1000000000 \
        0x00000000000000000000000000000000000000aa --rpc-url "$url"
}
# The signature is over the hash of the body, so the body is written exactly as cast writes it. The message that is
# signed is the text of the hash, so its characters are given to cast as bytes.
signed() { # method, parameter
    local body hash signature
    body="{\"method\":\"$1\",\"params\":[$2],\"id\":0,\"jsonrpc\":\"2.0\"}"
    hash=$("$cast" keccak "$body")
    signature=$("$cast" wallet sign --private-key "$KEY" "$("$cast" from-utf8 "$hash")")
    "$cast" rpc --rpc-url "$url" --rpc-headers "X-Flashbots-Signature: $signer:$signature" "$1" "$2"
}
uuid='"replacementUuid":"7f1c8a52-3c1e-4d0b-9b1e-0f4a1de5a001"'
bundle() { # transaction, nonce
    echo "{\"blockNumber\":\"0x5\",\"replacementNonce\":$2,$uuid,\"txs\":[\"$1\"]}"
}

echo "transaction $("$cast" publish --async --rpc-url "$url" "$(transaction 0 1)")"
echo "bundle      $(signed eth_sendBundle "$(bundle "$(transaction 1 2)" 1)")"
echo "replacement $(signed eth_sendBundle "$(bundle "$(transaction 1 3)" 2)")"
echo "cancelled   $(signed eth_cancelBundle "{$uuid}")"

wait "$ingest"
grep -o '"rpc":{[^}]*}' "$folder/summary"
grep -q '"orders":3,"cancelled":1}' "$folder/summary" || { echo "a subscriber has seen other than 3 orders and 1 cancellation" >&2; exit 1; }
