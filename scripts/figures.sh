#!/usr/bin/env bash
# Takes every figure that the README and benches/README.md show below "Measured", by the commands that they name, and
# prints their tables, to be put in the place of the old ones. Writes benches/scale.svg and docs/trial.svg.
#
#   scripts/figures.sh                  about 40 minutes on two cores, of it 5 to compile; on an idle machine
#   scripts/figures.sh --quick          one short round of each, some minutes: shows that it works, for no document
#   scripts/figures.sh --from FOLDER    only prints, from what an earlier run left
#
# What each command printed is in target/figures/. Nothing fails because of a timing. What misses its goal is marked;
# what an attack misses stands above the table.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${CARGO_TARGET_DIR:-target}/figures
kind=full
case ${1:-} in
    "") ;;
    --quick) kind=quick out=$out/quick ;;
    --from) kind=stored out=${2:?"--from needs a folder"} ;;
    *) echo "figures: unknown argument $1" >&2; exit 2 ;;
esac
[ $kind = stored ] || mkdir -p "$out"
out=$(cd "$out" && pwd)
commands=
# take NAME COMMAND…: its stdout is $out/NAME.txt.
take() {
    local name=$1
    shift
    commands+="$name $*"$'\n'
    [ $kind != stored ] || return 0
    if [ $kind = quick ]; then
        case $name in
            flood | order_pool | blocklist) set -- "$@" -- --test ;;
            trial) set -- "${@:1:$#-2}" ;;
            faults) set -- "${@/60s/10s}" ;;
        esac
    fi
    printf '== %s\n' "$*" >&2
    local code=0
    "$@" >"$out/$name.txt" 2>"$out/$name.log" || code=$?
    [ $code = 0 ] && return
    tail "$out/$name.log" >&2
    # By 1 the trial says that the oracle found something wrong, which is shown as missed.
    case $name,$code in trial,1 | attack,1) ;; *) exit 1 ;; esac
}

if [ $kind = quick ]; then
    export INGEST_BENCH_RATES=2000,10000,20000 INGEST_BENCH_ROUNDS=1 INGEST_BENCH_SECONDS=1 ATTACK_BENCH_SECONDS=1
fi
take scale cargo bench --bench ingest -- scale
take faults cargo run --release --example ingest -- --duration 60s --tps 2000 --faults seed=7 --json
[ $kind = stored ] || scripts/real-nodes.sh --install-only nats >&2
export MEMPOOL_INGEST_NODES=${MEMPOOL_INGEST_NODES:-$PWD/target/nodes/bin}
take trial cargo run --release -p trial -- --seed 65 --minutes 2 --fleet true --picture docs/trial.svg
take attack cargo run --release -p trial -- --scenarios
take flood cargo bench --bench load_control
take order_pool cargo bench --bench order_pool
take blocklist cargo bench --bench blocklist
if [ $kind = full ]; then
    scripts/chart.py "$out/scale.txt" >benches/scale.svg
    scripts/chart.py "$out/scale.txt" --dark >benches/scale-dark.svg
fi

COMMANDS=$commands python3 - "$out" <<'PY'
import json, os, re, sys

folder = sys.argv[1]
commands = dict(line.split(" ", 1) for line in os.environ["COMMANDS"].splitlines())


def text(name):
    path = f"{folder}/{name}.txt"
    return open(path).read() if os.path.exists(path) else None


def find(pattern, where):
    """The groups of the first match as text; without one the output is not what it was."""
    match = re.search(pattern, where)
    return match.groups() if match else sys.exit(f"figures: no {pattern!r} in the output")


def table(where, first):
    """The rows below the line that begins with `first`, as lists; columns stand two spaces apart."""
    lines = where.splitlines()
    start = next((n for n, line in enumerate(lines) if line.strip().startswith(first)), None)
    if start is None:
        sys.exit(f"figures: no table that begins with {first!r}")
    rows = []
    for line in lines[start + 1:]:
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) < 5:
            break
        rows.append(cells)
    return re.split(r"\s{2,}", lines[start].strip()), rows


def missed(figure, reached):
    return figure if reached else f"{figure}, **missed**"


def number(value):
    return f"{float(value):,.0f}"


def show(rows):
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows[1:]:
        print("| " + " | ".join(row) + " |")
    print()


def scale(where):
    names, rows = table(where, "rate")
    of = {(int(row[0]), row[1]): dict(zip(names, row)) for row in rows}
    labels = {
        "sequential, 2 worker threads": "one at a time, 2 worker threads",
        "plain concurrent, 1 worker thread": "plain concurrent, 1 worker thread",
        "plain concurrent, 2 worker threads": "plain concurrent, 2 worker threads",
        "ours, hashes": "ours, hashes (default of the library)",
        "ours, full objects": "ours, full objects",
    }
    out = [["fetcher", "held, /s", "lost at 2,000/s", "p50 / p99 at 2,000/s, us", "p99 at 10,000/s, us",
            "CPU at 2,000/s, us each", "CPU at 10,000/s, us each"]]

    def cell(rate, name, *columns):
        row = of.get((rate, name))
        # A latency is of what was pooled.
        if row is None or float(row["lost"].rstrip("%")) > 0:
            return "–"
        return " / ".join(number(row[column]) for column in columns)

    for name, label in labels.items():
        held = re.search(rf"^{name} held (\d+)/s$", where, re.M)
        lost = of.get((2000, name), {}).get("lost", "–")
        out.append([label, number(held[1]) if held else "none", "0" if lost == "0.00%" else lost.replace("%", " %"),
                    cell(2000, name, "p50 us", "p99 us"), cell(10000, name, "p99 us"),
                    cell(2000, name, "CPU us/tx"), cell(10000, name, "CPU us/tx")])
    show(out)
    one_thread, two_threads = (f"plain concurrent, {threads}" for threads in ("1 worker thread", "2 worker threads"))

    def ratios(rate, column, is_reached, rival=one_thread):
        found = []
        for name in ("ours, hashes", "ours, full objects"):
            row, other = of.get((rate, name)), of.get((rate, rival))
            if row is None or other is None:
                return "–"
            ratio = column(row, other)
            found.append(f"{ratio:.2f}" if is_reached(ratio) else f"{ratio:.2f} (**missed**)")
        return " and ".join(found)

    given = lambda name: lambda row, other: float(row[name].split(" ")[0])
    pooled = lambda row, other: float(row["pooled/s"]) / float(other["pooled/s"])
    below, above = (lambda ratio: ratio <= 1), (lambda ratio: ratio >= 1)
    print("Our two modes divided by the plain concurrent fetcher on one worker thread, pooled by that on two, hashes first\n"
          "(goal: p99 and CPU at most 1, pooled at least 1):\n"
          f"p99 {ratios(2000, given('p99 ratio'), below)} at 2,000/s, {ratios(10000, given('p99 ratio'), below)} at 10,000/s;\n"
          f"CPU {ratios(2000, given('CPU ratio'), below)} at 2,000/s, {ratios(10000, given('CPU ratio'), below)} at 10,000/s;\n"
          f"pooled {ratios(20000, pooled, above, two_threads)} at 20,000/s.\n")


def faults(where):
    run = json.loads(where.splitlines()[-1])
    return [["missing after a minute of 2,000/s from a node that closes, lies and drops",
             missed(f"{run['missing']} of {number(run['announced'])} announced", run["missing"] == 0), "0"]]


def trial(where):
    where = where.splitlines()[-1]
    heads = find(r"([\d.]+) minutes: (\d+) transactions and (\d+) searchers' messages in", where)
    (checks, wrong), (faults, attacks) = find(r"(\d+) checks, (\d+) violations", where), find(r"(\d+) faults, (\d+) attacks", where)
    said = f"{wrong} of {number(checks)} checks, under {faults} faults and {attacks} attacks, with {number(heads[1])} transactions and {number(heads[2])} searchers' messages"
    return [["missing or stale orders in the pools of a fleet's builders before each head",
             missed(said, wrong == "0"), "0"]]


def judge(row, figure):
    """Prints the goals that a row of the attacks misses."""
    goals = [(figure("violations"), 0, "orders not as answered")]
    # Without the gate nothing else is promised.
    if not row[0].endswith(", gate unlimited"):
        goals += [(figure("health p99 ms"), 50, "ms, p99 of /healthz"), (figure("MB more"), 300, "MB above idle")]
        if row[0].startswith("crowd"):
            goals += [(float(p99), 5, "ms, p99 of a refusal") for p99 in re.findall(r"p99 ([\d.]+) ms", row[-1])]
        else:
            most = 250 if row[0].startswith("honest burst") else 50
            promised = {"known": "known p99 ms", "unknown": "p99 ms"}
            # From 256 addresses and from IPv6 only known signers are promised anything.
            if row[0].endswith((" from 256", " from an IPv6 /48")):
                del promised["unknown"]
            for signers, p99 in promised.items():
                goals += [(figure(f"{signers} refused"), 0, f"messages of {signers} signers refused"),
                          (figure(p99), most, f"ms, p99 of {signers} signers")]
    for value, most, what in goals:
        if value > most:
            print(f"{row[0]}: {value:.1f} {what}, goal {most}, **missed**")


def attack(where):
    names, rows = table(where, "attack")
    of = lambda row, name: float(row[names.index(name)])
    for row in rows:
        judge(row, lambda name: of(row, name))
    wrong = sum(of(row, "violations") for row in rows)
    # By default the gate is limited. From 256 addresses and from IPv6 only known signers are promised anything.
    rows = [row for row in rows if not row[0].endswith((", gate unlimited", " from 256", " from an IPv6 /48"))]
    attacks = [row for row in rows if row[0] != "none" and not row[0].startswith(("honest burst", "crowd"))]
    # Bundles with a transaction that was mined meanwhile are refused.
    refused = sum(of(row, name) for row in attacks for name in ("known refused", "unknown refused")
                  if "around a mined" not in row[0])
    # Beside trickled bodies honest uploads take as long without the attack.
    attacks = [row for row in attacks if not row[0].startswith("trickled")]
    p99 = lambda row: max(of(row, "p99 ms"), of(row, "known p99 ms"))
    worst = max(map(p99, attacks))
    (burst,) = [row for row in rows if row[0].startswith("honest burst")]
    (burst_p99,) = map(float, find(rf"{burst[0]}.*p99 ([\d.]+) ms", where))
    live = max(of(row, "live p50 ms") / of(row, "unattacked live p50 ms") for row in attacks)
    return [
        ["wrong orders before a head under all attacks on the RPC port; honest messages refused from one and eight addresses",
         missed(f"{wrong:.0f}; {refused:.0f}", refused + wrong == 0), "0"],
        ["p99 of honest answers under the worst of these", missed(f"{worst:.0f} ms", worst <= 50), "50 ms"],
        ["p50 from the node's announcement to the builder under the worst, to that without", missed(f"{live:.1f}", live <= 2), "2"],
        ["512 honest bundles at once",
         missed(f"{of(burst, 'accepted'):.0f} accepted, p99 {burst_p99:.0f} ms", of(burst, "accepted") == of(burst, "sent") and burst_p99 <= 250), "512, 250 ms"],
    ]


def flood(where):
    (ratio,) = find(r"live p99, policy on / no flood: ([\d.]+)", where)
    return [["live p99 while a backfill of 108,000 floods, to that without one",
             missed(ratio, float(ratio) <= 1.5), "1.5"]]


def order_pool(where):
    part = where.split("while subscribers join", 1)[-1]
    row = r"p50\s+([\d.]+)\s+p99\s+([\d.]+)"
    p50, p99 = map(float, find(rf"order pool\s+{row}", part))
    rival_p50, rival_p99 = map(float, find(rf"mutex rival\s+{row}", part))
    return [
        ["insert p99 while subscribers join, to that of a pool behind one mutex",
         missed(f"{p99 / rival_p99:.3f} ({p99:.1f} us)", p99 / rival_p99 <= 0.1), "0.1"],
        ["insert p50 while subscribers join, to that of a pool behind one mutex",
         missed(f"{p50 / rival_p50:.1f} ({p50:.1f} us)", p50 <= 2 * rival_p50), "2.0"],
    ]


def blocklist(where):
    lines = re.findall(r"the check takes ([\d.]+) % of the execution by itself.*classic / post ([\d.]+);", where)
    shares, ratios = zip(*[map(float, line) for line in lines]) if lines else sys.exit("figures: no mix in the output")
    return [
        ["blocklist check, share of the execution",
         missed(f"{min(shares):.1f} to {max(shares):.1f} %", max(shares) <= 1), "1 %"],
        ["classic inspector, to the blocklist check",
         missed(f"{min(ratios):.2f} to {max(ratios):.2f}", min(ratios) > 1), "above 1"],
    ]


print()
if text("scale"):
    scale(text("scale"))
rows = [["what", "measured", "goal", "command"]]
for take in (trial, faults, attack, flood, order_pool, blocklist):
    name = take.__name__
    if text(name):
        for number_of, row in enumerate(take(text(name))):
            rows.append(row + ["the same" if number_of else f"`{commands[name]}`"])
show(rows)
PY
[ $kind != quick ] || echo "Short rounds: these figures are for no document." >&2
