#!/usr/bin/env bash
# Runs the tests behind the feature `real-nodes`, and those of the command `mempool-ingest` that need a server, on pinned
# versions of anvil, geth and nats-server.
#
# They are installed under target/nodes/ the first time: anvil from npm, geth (two minutes) and nats-server (one) by
# `go install`. Node.js with npm and a Go toolchain are needed for that; nothing of the system is changed.
#
#   scripts/real-nodes.sh                            install missing servers, run all tests
#   scripts/real-nodes.sh --install-only [NAME ...]  install missing servers: anvil, geth, nats
#   scripts/real-nodes.sh --load                     only the tests under load, which need an idle machine
#   scripts/real-nodes.sh --others                   only the other tests, which mostly wait
#   scripts/real-nodes.sh --proxy                    only ten minutes behind a half broken proxy
#   scripts/real-nodes.sh NAME ...                   run the tests whose names contain one of these
set -euo pipefail

ANVIL_VERSION=1.7.1
GETH_VERSION=1.16.9
NATS_VERSION=2.12.15

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
nodes=$root/target/nodes
bin=$nodes/bin
mkdir -p "$bin"

fail() {
    echo "real-nodes: $*" >&2
    exit 1
}

# Whether a binary prints the wanted version; a binary of another version is replaced. The whole output is read first:
# `grep -q` would close the pipe at the first match, and a binary that still prints would die of SIGPIPE, which `pipefail`
# reports like a wrong version.
prints() {
    local wanted=$1 output
    shift
    [ -x "$1" ] && output=$("$@" 2>/dev/null) && [[ $output == *"$wanted"* ]]
}
has_anvil() { prints "$ANVIL_VERSION" "$bin/anvil" --version; }
has_geth() { prints "Version: $GETH_VERSION-" "$bin/geth" version; }
has_nats() { prints "v$NATS_VERSION" "$bin/nats-server" --version; }

install_anvil() {
    command -v npm >/dev/null || fail "npm is needed to install anvil $ANVIL_VERSION"
    local package=anvil-linux-amd64
    case "$(uname -s)-$(uname -m)" in
        Linux-x86_64) ;;
        Linux-aarch64) package=anvil-linux-arm64 ;;
        Darwin-arm64) package=anvil-darwin-arm64 ;;
        Darwin-x86_64) package=anvil-darwin-amd64 ;;
        *) fail "there is no anvil for $(uname -sm)" ;;
    esac
    echo "real-nodes: installing anvil $ANVIL_VERSION"
    # The platform's package holds the binary; the package in front of it would only run an install script.
    npm install --prefix "$nodes/npm" --no-save --no-audit --no-fund --ignore-scripts \
        "@foundry-rs/$package@$ANVIL_VERSION" >"$nodes/anvil-install.log" 2>&1 ||
        fail "npm failed, see $nodes/anvil-install.log"
    # The file is renamed into place, so that a running node keeps its old file.
    cp "$nodes/npm/node_modules/@foundry-rs/$package/bin/anvil" "$bin/anvil.new"
    mv "$bin/anvil.new" "$bin/anvil"
    has_anvil || fail "the installed anvil is not version $ANVIL_VERSION"
}

# Builds a command of a Go module: name, package, version, how long it takes.
go_install() {
    local name=$1 package=$2 version=$3 time=$4
    command -v go >/dev/null || fail "a Go toolchain is needed to install $name $version"
    echo "real-nodes: installing $name $version, this takes $time"
    GOBIN=$bin go install "$package@v$version" >"$nodes/$name-install.log" 2>&1 ||
        fail "go install failed, see $nodes/$name-install.log"
}

install_geth() {
    go_install geth github.com/ethereum/go-ethereum/cmd/geth "$GETH_VERSION" "two minutes"
    has_geth || fail "the installed geth is not version $GETH_VERSION"
}

install_nats() {
    go_install nats-server github.com/nats-io/nats-server/v2 "$NATS_VERSION" "a minute"
    has_nats || fail "the installed nats-server is not version $NATS_VERSION"
}

wanted=(anvil geth nats)
if [ "${1-}" = --install-only ]; then
    shift
    [ $# -eq 0 ] || wanted=("$@")
    set -- --install-only
fi
for name in "${wanted[@]}"; do
    case $name in
        anvil | geth | nats) "has_$name" || "install_$name" ;;
        *) fail "$name is unknown; the servers are anvil, geth and nats" ;;
    esac
done
[ "${1-}" = --install-only ] && exit 0

cd "$root"
export MEMPOOL_INGEST_NODES=$bin
# The command is part of the selection, so that all tests share one build of the dependencies.
tests() {
    cargo test --release -p mempool-ingest-cli -p testkit -p order-stream \
        --features testkit/real-nodes,order-stream/real-nodes "$@"
}
run() { tests --test real_nodes -- --nocapture "$@"; }
load() { run --test-threads 1 under_load; }
others() {
    run --test-threads 3 --skip under_load
    tests --test command -- --nocapture --ignored on_a_real
}
case "${1-}" in
    --load) load ;;
    --others) others ;;
    --proxy) run --test-threads 2 --ignored behind_a_half_broken_proxy ;;
    "") load && others ;;
    *) run --test-threads 1 "$@" ;;
esac
