#!/usr/bin/env bash
# Does what a newcomer does in the first ten minutes, with a clone in a temporary home: install, `config`, `check`, run on
# anvil, scrape a metric, fire an alert by stopping the node, make a mistake in the file, and compile the first program of
# docs/linking.md. Prints the time of each step.
#
#   scripts/ten-minutes.sh             everything, on the anvil that scripts/real-nodes.sh installs
#   PROFILE=dev scripts/ten-minutes.sh compiles faster, and runs slower
#   NODE=mock scripts/ten-minutes.sh   on the mock node, where anvil cannot be installed
#
# The alert is evaluated by an installed Prometheus, or by Debian's package unpacked under target/tools, as in
# scripts/dashboards.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repository=$PWD
home=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$home"' EXIT

fail() {
    echo "ten-minutes: $*" >&2
    exit 1
}
began=$SECONDS
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

bin=$home/bin/mempool-ingest
file=$home/mempool-ingest.toml
ipc=$home/node.ipc
metrics=127.0.0.1:$(free_port)

clone() { git clone --quiet "$repository" "$home/mempool-ingest"; }
install_command() {
    (cd "$home/mempool-ingest" && cargo install --quiet --locked --profile "${PROFILE:-release}" --path bin/mempool-ingest --root "$home")
}
# The file that `config` prints passes its check, before and after a source is named.
configure() {
    "$bin" config >"$file"
    "$bin" check --config "$file" 2>"$home/check.log"
    sed -i "s|^#sources = .*|sources = ['$ipc']|; s|^#metrics = .*|metrics = '$metrics'|" "$file"
}
start_node() {
    if [ "${NODE:-anvil}" = mock ]; then
        (cd "$home/mempool-ingest" && cargo build --quiet --profile "${PROFILE:-release}" -p mock-node)
        local folder=${PROFILE:-release}
        "$home/mempool-ingest/target/${folder/dev/debug}/mock-node" --ipc "$ipc" --tps 100 >"$home/node.log" &
    else
        "$repository/scripts/real-nodes.sh" --install-only anvil >"$home/anvil.log"
        "$repository/target/nodes/bin/anvil" --ipc "$ipc" --port "$(free_port)" --block-time 2 >"$home/node.log" &
    fi
    pids+=($!)
    node=$!
    within_a_minute test -S "$ipc"
}
check_node() {
    "$bin" check --config "$file" 2>"$home/check.log"
    grep -q 'lists its pool' "$home/check.log" && grep -q "metrics $metrics: can be bound" "$home/check.log"
}
run_command() {
    "$bin" --config "$file" --plain --status-interval 1s 2>"$home/run.log" &
    pids+=($!)
    within_a_minute grep -q '^live ' "$home/run.log"
}
scrape() { curl --silent --fail "http://$metrics/metrics" | grep -q '^mempool_fetcher_source_state{.*} 2$'; }
start_prometheus() {
    local tools=$repository/target/tools
    PATH=$tools/prometheus/usr/bin:$PATH
    if ! command -v prometheus >/dev/null; then
        mkdir -p "$tools"
        (cd "$home" && apt-get -qq download prometheus && dpkg -x prometheus_*.deb "$tools/prometheus") 2>"$home/apt.log"
    fi
    port=$(free_port)
    cat >"$home/prometheus.yml" <<YAML
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [$home/mempool-ingest/etc/prometheus/mempool-ingest.rules.yml]
scrape_configs:
  - job_name: mempool-ingest
    static_configs: [{ targets: ["$metrics"] }]
YAML
    prometheus --config.file="$home/prometheus.yml" --storage.tsdb.path="$home/data" --web.listen-address="127.0.0.1:$port" \
        2>"$home/prometheus.log" &
    pids+=($!)
    within_a_minute curl --silent --fail "http://127.0.0.1:$port/-/ready"
}
is_fired() {
    curl --silent --fail "http://127.0.0.1:$port/api/v1/alerts" | python3 -c '
import json, sys
alerts = json.load(sys.stdin)["data"]["alerts"]
sys.exit(not any(a["state"] == "firing" and a["labels"]["alertname"] == "MempoolIngestNoLiveSource" and
                 a["annotations"]["runbook_url"].endswith("#mempoolingestnolivesource") for a in alerts))'
}
stop_node() {
    kill "$node"
    # The rule waits for 30 s.
    within_a_minute is_fired
}
# Two mistakes, and the message that names both.
mistakes() {
    printf '[fetcher]\nslots = 5\n[pool]\nmax_txs = "many"\n' >"$home/wrong.toml"
    ! "$bin" check --config "$home/wrong.toml" 2>"$home/wrong.log" || return
    cat "$home/wrong.log"
    grep -q 'has 2 errors' "$home/wrong.log" && grep -q 'the nearest is `fetch_slots`' "$home/wrong.log" &&
        grep -q 'line 4, column 11: \[pool\] max_txs' "$home/wrong.log"
}
first_program() { (cd "$repository" && scripts/adopt.sh latest); }

step "clone" clone
step "install" install_command
step "config" configure
step "a node" start_node
step "check" check_node
step "run until live" run_command
step "scrape a metric" scrape
step "prometheus" start_prometheus
step "an alert, by stopping the node" stop_node
step "two mistakes in the file" mistakes
step "the first program of docs/linking.md" first_program
printf '%4d s  in all\n' $((SECONDS - began))
