#!/usr/bin/env bash
# Tests etc/prometheus and etc/grafana on running processes, and prints the values of every panel of the dashboard.
#
#   scripts/dashboards.sh                                    builds the examples `ingest` and `block_builder`
#   EXAMPLES=target/debug/examples scripts/dashboards.sh     uses built examples
#
# It checks and tests the alert rules, also with the prefix of reth's recorder, compares the dashboard with the output of
# its generator, and lints the metrics that the processes serve. Then it executes every query of every panel on a
# Prometheus that scrapes the processes, while a mock node with faults feeds them and a NATS server connects them. A query
# without data fails the script.
#
# It uses an installed Prometheus, or Debian's package unpacked under target/tools. The Grafana Foundation SDK comes from
# PyPI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SDK_VERSION='1769699379!11.6.0'
tools=$PWD/target/tools
out=$PWD/target/dashboards
rm -rf "$out"
mkdir -p "$tools" "$out/tmp"

if ! command -v promtool >/dev/null || ! command -v prometheus >/dev/null; then
    PATH=$tools/prometheus/usr/bin:$PATH
    if ! command -v promtool >/dev/null; then
        (cd "$out" && apt-get -qq download prometheus && dpkg -x prometheus_*.deb "$tools/prometheus") 2>"$out/apt.log" ||
            { echo "dashboards: no prometheus, and apt-get has none: see $out/apt.log" >&2; exit 1; }
    fi
fi
if ! [ -d "$tools/grafana/grafana_foundation_sdk" ]; then
    pip install --quiet --no-deps --target "$tools/grafana" "grafana-foundation-sdk==$SDK_VERSION" 2>"$out/pip.log" ||
        { echo "dashboards: pip failed, see $out/pip.log" >&2; exit 1; }
fi
promtool --version 2>&1 | head -n 1

etc/prometheus/prefixed.sh reth_ rules | diff -u etc/prometheus/mempool-ingest.reth.rules.yml - ||
    { echo "dashboards: etc/prometheus/mempool-ingest.reth.rules.yml is not what prefixed.sh writes" >&2; exit 1; }
cp etc/prometheus/*.yml "$out"
etc/prometheus/prefixed.sh reth_ test >"$out/mempool-ingest.reth.test.yml"
promtool check rules "$out"/mempool-ingest*.rules.yml
promtool test rules "$out"/mempool-ingest*.test.yml
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$tools/grafana python3 etc/grafana/dashboard.py >"$out/dashboard.json"
diff -u etc/grafana/mempool-ingest.json "$out/dashboard.json" ||
    { echo "dashboards: etc/grafana/mempool-ingest.json is not what dashboard.py writes" >&2; exit 1; }

examples=${EXAMPLES:-${CARGO_TARGET_DIR:-target}/release/examples}
[ -n "${EXAMPLES:-}" ] || cargo build --quiet --release -p examples -p example-builder --features examples/product \
    --example ingest --example block_builder

scripts/real-nodes.sh --install-only nats
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
nats=nats://127.0.0.1:$(free_port)

pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait' EXIT
"${MEMPOOL_INGEST_NODES:-target/nodes/bin}/nats-server" --jetstream --addr 127.0.0.1 --port "${nats##*:}" \
    --store_dir "$out/nats" >"$out/nats.log" 2>&1 &
pids+=($!)
"$examples/ingest" --tps 500 --blobs-per-mille 20 --block-time 2s --faults seed=7 --audit-interval 5s \
    --metrics 127.0.0.1:0 --rpc 127.0.0.1:0 --publish "$nats" --machine a --replicas 1 >/dev/null 2>"$out/ingest.log" &
pids+=($!)
TMPDIR=$out/tmp "$examples/block_builder" --tps 200 --metrics 127.0.0.1:0 2>"$out/block_builder.log" &
pids+=($!)

# Waits for a line "NAME at http://ADDRESS" in a log, and prints the address.
address() {
    local found
    for _ in $(seq 300); do
        found=$(sed -n "s|^$2 at http://\([^/ ]*\).*|\1|p" "$out/$1.log" | head -n 1)
        [ -n "$found" ] && echo "$found" && return
        sleep 0.2
    done
    echo "dashboards: $1 has not printed the address of its $2, see $out/$1.log" >&2
    return 1
}
ingest=$(address ingest metrics)
builder=$(address block_builder metrics)
# The state of the fleet's builder comes from the node without faults.
node=$(find "$out/tmp" -type s -name '*.ipc' | head -n 1)
printf '0x%040d\n' 1 >"$out/list"
"$examples/block_builder" --ipc "$node" --blocklist "$out/list" --from "$nats" --machine b --slot 2s \
    --metrics 127.0.0.1:0 2>"$out/fleet.log" &
pids+=($!)
fleet=$(address fleet metrics)
rpc=$(address ingest 'orders by JSON-RPC')
port=$(free_port)

cat >"$out/prometheus.yml" <<YAML
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [$PWD/etc/prometheus/mempool-ingest.rules.yml]
scrape_configs:
  - job_name: mempool-ingest
    static_configs: [{ targets: ["$ingest", "$builder", "$fleet"] }]
YAML
prometheus --config.file="$out/prometheus.yml" --storage.tsdb.path="$out/data" --web.listen-address="127.0.0.1:$port" \
    2>"$out/prometheus.log" &
pids+=($!)

python3 - "$out" "$port" "$rpc" "$ingest" "$builder" "$fleet" <<'PYTHON'
import json, math, re, subprocess, sys, time, urllib.error, urllib.parse, urllib.request

out, port, rpc, *targets = sys.argv[1:]
# The first and the last check, in seconds after the start. A fault must have occurred by the last one.
FIRST, LAST = 40, 120


def get(path, **query):
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)["data"]


def execute(expr):
    for name, value in (("$__rate_interval", "30s"), ("$__range", "2m"), ("$instance", ".*"), ("${prefix}", "")):
        expr = expr.replace(name, value)
    return get("query", query=expr)["result"]


def wrong_order():
    """Sends an invalid request, so that refusals are counted."""
    request = urllib.request.Request(f"http://{rpc}/", data=b'{"jsonrpc":"2.0","id":1,"method":"eth_sendBundle"}')
    request.add_header("content-type", "application/json")
    try:
        urllib.request.urlopen(request, timeout=10).read()
    except urllib.error.HTTPError:
        pass  # as expected


with open(f"{out}/dashboard.json") as file:
    panels = [panel for panel in json.load(file)["panels"] if panel["type"] != "row"]
start = time.monotonic()
rows, empty = [], ["not executed"]
while empty and time.monotonic() - start < LAST:
    wrong_order()
    time.sleep(2)
    if time.monotonic() - start < FIRST:
        continue
    rows, empty = [], []
    for panel in panels:
        for target in panel["targets"]:
            result = execute(target["expr"])
            values = [(series["metric"], float(series["value"][1])) for series in result]
            if all(math.isnan(value) for _, value in values):
                empty.append(f'{panel["title"]}: {target["expr"]}')
            for labels, value in values:
                legend = target.get("legendFormat", "")
                for label, text in labels.items():
                    legend = legend.replace("{{" + label + "}}", text)
                rows.append((panel["title"], re.sub(r"/\S*/", "", legend), value))

print(f"\n{'panel':32} {'series':46} {'value':>14}")
last = None
for panel, series, value in rows:
    print(f"{panel if panel != last else '':32} {series[:46]:46} {value:14.6g}")
    last = panel

failed = [f"no data: {text}" for text in empty]
for group in get("rules")["groups"]:
    for rule in group["rules"]:
        if rule["health"] != "ok":
            failed.append(f'rule {rule["name"]}: {rule["health"]} {rule.get("lastError", "")}')
firing = sorted({alert["labels"]["alertname"] for alert in get("alerts")["alerts"] if alert["state"] == "firing"})
print("\nalerts that fire, by the faults of the mock node:", ", ".join(firing) or "none")
for target in targets:
    began = time.monotonic()
    page = urllib.request.urlopen(f"http://{target}/metrics", timeout=10).read()
    took = time.monotonic() - began
    lint = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True)
    said = (lint.stdout + lint.stderr).decode().strip()
    print(f"{target}: {len(page)} bytes in {1e3 * took:.1f} ms; promtool check metrics: {said or 'clean'}")
    if said or lint.returncode:
        failed.append(f"promtool check metrics: {target}")
print(f"{len(panels)} panels, {len(rows)} series, {len(empty)} queries without data")
sys.exit("\n".join(failed) if failed else 0)
PYTHON
