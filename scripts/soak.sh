#!/usr/bin/env bash
# Ingests for half an hour from a mock node with blobs and faults, and says whether memory and open files stay flat.
#
#   scripts/soak.sh [DURATION]     30m unless told otherwise; at least 12m
#
# The samples are in target/soak/samples.csv, the summary in target/soak/summary.json. What was missing at the end, a
# hash without an outcome, memory that grew by more than a tenth and 16 MB, or files that stay open fail the script.
# Latency is printed: no time fails anything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

duration=${1:-30m}
out=target/soak
mkdir -p "$out"
# With all of the product: its allocator is what keeps the memory flat.
cargo run --release -p examples --features product --example ingest -- --tps 2000 --blobs-per-mille 5 --faults seed=7 --block-mgas 4000 \
    --duration "$duration" --samples "$out/samples.csv" --json | tail -n 1 >"$out/summary.json"

python3 - "$out" <<'EOF'
import csv, json, statistics, sys

folder = sys.argv[1]
with open(f"{folder}/samples.csv") as file:
    rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
with open(f"{folder}/summary.json") as file:
    summary = json.load(file)

# The pool remembers 1,048,576 hashes: at 2,000/s that fills for 524 s, and the fetcher's half of it before. Then the
# first and the last third of what is left.
rows = [row for row in rows if row["elapsed_s"] >= 600]
if len(rows) < 3:
    sys.exit("too short a run: fewer than three samples after the first 600 s")
third = len(rows) // 3
early, late = rows[:third], rows[-third:]
median = lambda part, name: statistics.median(row[name] for row in part)
print(f"{'':16}{'first third':>14}{'last third':>14}")
for name, unit in (("resident_bytes", 1e6), ("open_files", 1), ("p50_us", 1), ("p99_us", 1), ("pool_txs", 1)):
    label = name if unit == 1 else "resident MB"
    print(f"{label:16}{median(early, name) / unit:14.0f}{median(late, name) / unit:14.0f}")
names = ("announced", "backfilled", "audit_recovered", "pooled", "lagged", "failed", "reconnects", "missing", "balance")
print(", ".join(f"{name} {summary[name]}" for name in names))

wrong = []
if median(late, "resident_bytes") > 1.1 * median(early, "resident_bytes") + 16e6:
    wrong.append("memory grew")
if median(late, "open_files") > median(early, "open_files") + 2:
    wrong.append("files stay open")
wrong += [f"{name} is {summary[name]}" for name in ("missing", "balance", "unfinished") if summary[name] != 0]
sys.exit("; ".join(wrong) if wrong else 0)
EOF
