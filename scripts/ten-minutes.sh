#!/usr/bin/env bash
# Plays the first ten minutes of a newcomer in a temporary home: clone, install, `config`, `check`, run on anvil, scrape a
# metric, make mistakes in the file, fire an alert by stopping the node, and the first program of docs/linking.md. Prints the
# time of each step.
#
#   scripts/ten-minutes.sh                  everything; most of the time is compilation
#   scripts/ten-minutes.sh --built BINARY   about a minute: takes a built `mempool-ingest`, and leaves out the first program
#   NODE=mock scripts/ten-minutes.sh        on the mock node, where anvil cannot be had
#
# anvil is the one of `scripts/real-nodes.sh --install-only anvil`. Prometheus is the installed one, or Debian's package
# unpacked under target/tools, as in scripts/dashboards.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repository=$PWD
home=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$home"' EXIT

fail() {
    echo "ten-minutes: $*" >&2
    tail -n 20 "$home"/*.log >&2 2>/dev/null || true
    exit 1
}
began=$SECONDS
# Runs a function. `set -e` does not apply inside it, so its commands are joined by `&&`.
step() {
    local name=$1 start=$SECONDS
    shift
    "$@" || fail "$name"
    printf '%4d s  %s\n' $((SECONDS - start)) "$name"
}
# Repeats a command until it succeeds, for at most a minute.
within_a_minute() {
    for _ in $(seq 300); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    fail "not within a minute: $*"
}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

built=
case ${1-} in
    "") ;;
    --built) built=$(realpath "${2:?"--built needs a binary"}") ;;
    *) fail "unknown argument $1" ;;
esac
bin=${built:-$home/bin/mempool-ingest}
file=$home/mempool-ingest.toml
ipc=$home/node.ipc
metrics=127.0.0.1:$(free_port)

clone() { git clone --quiet "$repository" "$home/mempool-ingest"; }
install_command() {
    (cd "$home/mempool-ingest" && cargo install --quiet --locked --path bin/mempool-ingest --root "$home")
}
# The file that `config` prints passes its check as it is. Then a source and a port for metrics are set.
configure() {
    "$bin" config >"$file" && "$bin" check --config "$file" 2>"$home/check.log" &&
        sed -i "s|^#sources = .*|sources = ['$ipc']|; s|^#metrics = .*|metrics = '$metrics'|" "$file"
}
start_node() {
    local command
    if [ "${NODE:-anvil}" = mock ]; then
        (cd "$home/mempool-ingest" && cargo build --quiet --release -p mock-node) || return
        command=("$home/mempool-ingest/target/release/mock-node" --ipc "$ipc" --tps 100)
    else
        "$repository/scripts/real-nodes.sh" --install-only anvil >"$home/install.log" || return
        command=("$repository/target/nodes/bin/anvil" --ipc "$ipc" --port "$(free_port)" --block-time 2)
    fi
    "${command[@]}" >"$home/node.log" 2>&1 &
    node=$!
    pids+=("$node")
    within_a_minute test -S "$ipc"
}
check_node() {
    "$bin" check --config "$file" 2>"$home/check.log" && grep -q 'lists its pool' "$home/check.log" &&
        grep -q "metrics $metrics: can be bound" "$home/check.log"
}
run_command() {
    "$bin" --config "$file" --plain --status-interval 1s 2>"$home/run.log" &
    pids+=($!)
    within_a_minute grep -q '^live ' "$home/run.log"
}
# The response goes to a file: `grep -q` at the end of a pipe would close it before curl has written everything.
scrape() {
    curl --silent --fail "http://$metrics/metrics" >"$home/metrics.txt" &&
        grep -q '^mempool_fetcher_source_state{.*} 2$' "$home/metrics.txt"
}
# Downloads Debian's package into the temporary home. Where apt has no lists of packages yet, as in a new container, these
# are downloaded there too, so nothing of the system is changed.
download_prometheus() {
    local own_lists=(-o "Dir::State::Lists=$home/apt/lists" -o "Dir::Cache=$home/apt/cache")
    apt-get -qq download prometheus && return
    mkdir -p apt/lists/partial apt/cache/archives/partial &&
        apt-get -qq "${own_lists[@]}" update && apt-get -qq "${own_lists[@]}" download prometheus
}
start_prometheus() {
    local tools=$repository/target/tools
    PATH=$PATH:$tools/prometheus/usr/bin
    if ! command -v prometheus >/dev/null; then
        mkdir -p "$tools" &&
            (cd "$home" && download_prometheus && dpkg -x prometheus_*.deb "$tools/prometheus") \
                2>"$home/apt.log" || return
    fi
    port=$(free_port)
    cat >"$home/prometheus.yml" <<YAML
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [$repository/etc/prometheus/mempool-ingest.rules.yml]
scrape_configs:
  - job_name: mempool-ingest
    static_configs: [{ targets: ["$metrics"] }]
YAML
    prometheus --config.file="$home/prometheus.yml" --storage.tsdb.path="$home/data" \
        --web.listen-address="127.0.0.1:$port" 2>"$home/prometheus.log" &
    pids+=($!)
    within_a_minute is_scraped
}
query() { curl --silent --fail "http://127.0.0.1:$port/api/v1/$1"; }
is_scraped() { query 'query?query=max(mempool_fetcher_source_state)' | grep '"2"'; }
is_firing() {
    query alerts | python3 -c '
import json, sys
alerts = json.load(sys.stdin)["data"]["alerts"]
sys.exit(not any(alert["state"] == "firing" and alert["labels"]["alertname"] == "MempoolIngestNoLiveSource" and
                 alert["annotations"]["runbook_url"].endswith("#mempoolingestnolivesource") for alert in alerts))'
}
# The rule waits for 30 s.
stop_node() { kill "$node" && within_a_minute is_firing; }
# The error names both mistakes.
mistakes() {
    printf '[fetcher]\nslots = 5\n[pool]\nmax_txs = "many"\n' >"$home/wrong.toml"
    ! "$bin" check --config "$home/wrong.toml" 2>"$home/wrong.log" && cat "$home/wrong.log" &&
        grep -q 'has 2 errors' "$home/wrong.log" && grep -q 'the nearest is `fetch_slots`' "$home/wrong.log" &&
        grep -q 'line 4, column 11: \[pool\] max_txs' "$home/wrong.log"
}
first_program() { scripts/adopt.sh latest; }

if [ -z "$built" ] || [ "${NODE:-anvil}" = mock ]; then
    step "clone" clone
fi
[ -n "$built" ] || step "install" install_command
step "config" configure
step "a node" start_node
step "check" check_node
step "run until live" run_command
step "scrape a metric" scrape
step "two mistakes in the file" mistakes
step "prometheus" start_prometheus
step "an alert, by stopping the node" stop_node
[ -n "$built" ] || step "the first program of docs/linking.md" first_program
printf '%4d s  in all\n' $((SECONDS - began))
