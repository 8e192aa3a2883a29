#!/usr/bin/env bash
# Builds and tests the published crates with the versions of alloy and revm that builders have, in copies of the
# repository under target/versions/, each with a lock file of its own.
#
#   scripts/versions.sh                     checks and tests at all points
#   scripts/versions.sh low|mid|high        at one of them
#   scripts/versions.sh --check [POINT]     only compiles the libraries
#   scripts/versions.sh --copy POINT        only makes the copy
#   scripts/versions.sh --lock FILE         compiles the libraries with the versions of a host's Cargo.lock, and fails if a
#                                           version would have to change
#
# In a copy, every range of Cargo.toml is replaced by its point: those of alloy's crates whose types stand in public
# signatures, also for the mock node and the testkit. revm is replaced for the blocklist alone: the testkit and the example
# builder are not published, and keep the newest version. Everything else is as in Cargo.lock, and equal crates are built
# once, with the workspace.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The versions of alloy and revm: of rbuilder; of reth after 2.5.1, which has 2.3.0 itself (integrations/reth); and the
# newest of the ranges.
low=(1.6.3 34)
mid=(2.4.1 42)
high=(2.5.0 43)

published=(-p mempool-ingest -p txpool-fetcher -p order-pool -p order-rpc -p chain-view -p load-control -p blocklist
    -p mempool-recorder -p order-stream)
tests=(--lib --test it --test list --test evm)

copy() {
    local alloy=$2 revm=$3 copy=target/versions/$1
    rm -rf "$copy"
    mkdir -p "$copy"
    # With their times: what was built of an unchanged copy before stays built.
    git ls-files -z | xargs -0 cp --preserve=timestamps --parents -t "$copy"
    # Tilde: patch releases only.
    sed -i "s/\">=1.6.3, <3\"/\"~$alloy\"/" "$copy/Cargo.toml"
    sed -i "s/^revm = { workspace = true, optional = true }/revm = { version = \"$revm\", default-features = false, \
features = [\"std\", \"secp256k1\", \"portable\", \"c-kzg\", \"blst\"], optional = true }/" \
        "$copy/crates/blocklist/Cargo.toml"
}

at_point() {
    local point=$1 alloy=$2 revm=$3
    echo "== $point: alloy ~$alloy, revm $revm"
    copy "$@"
    if $only_copy; then
        return
    fi
    (
        cd "target/versions/$point"
        export CARGO_TARGET_DIR=../..
        cargo metadata --format-version 1 >/dev/null
        for crate in alloy-consensus alloy-primitives revm; do
            echo "$crate: $(cargo tree -q -e normal,no-proc-macro "${published[@]}" --prefix none |
                sed -nE "s/^$crate v([^ ]*).*/\1/p" | sort -u | tr '\n' ' ')"
        done
        cargo check "${published[@]}"
        if ! $only_check; then
            cargo test "${published[@]}" -p integration-tests "${tests[@]}"
        fi
    )
    echo "== $point: ok"
}

at_lock() {
    local host=target/versions/lock crate
    rm -rf "$host"
    mkdir -p "$host/src"
    touch "$host/src/lib.rs"
    cp "$1" "$host/Cargo.lock"
    {
        printf '[package]\nname = "host"\nedition = "2024"\n\n[workspace]\n\n[dependencies]\n'
        for crate in "${published[@]}"; do
            case $crate in
                -p) ;;
                mempool-ingest) echo "$crate.path = \"$PWD\"" ;;
                *) echo "$crate.path = \"$PWD/crates/$crate\"" ;;
            esac
        done
    } >"$host/Cargo.toml"
    cargo metadata --manifest-path "$host/Cargo.toml" --format-version 1 >/dev/null
    python3 - "$1" "$host/Cargo.lock" <<'PYTHON'
import re, sys

def versions(path):
    found = {}
    with open(path) as file:
        for name, version in re.findall(r'^name = "(.*)"\nversion = "(.*)"$', file.read(), re.M):
            found.setdefault(name, set()).add(version)
    return found

def series(version):
    first, second, *_ = version.split(".")
    return (first, second) if first == "0" else first

before, after = map(versions, sys.argv[1:])
# Another series is one more package beside it.
moved = [(name, had, to) for name in sorted(after) for to in after[name] for had in before.get(name, ())
         if to not in before[name] and series(to) == series(had)]
for name, had, to in moved:
    print(f"{name}: {had} in the lock file, {to} needed")
print(f"{len(after)} packages, {sum(name not in before for name in after)} that the lock file lacks, {len(moved)} that move")
sys.exit(bool(moved))
PYTHON
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target} cargo check --locked --manifest-path "$host/Cargo.toml"
    echo "== $1: ok"
}

only_check=false only_copy=false
case ${1:-} in
    --lock) at_lock "$2"; exit ;;
    --check) only_check=true && shift ;;
    --copy) only_copy=true && shift ;;
esac
if [ $# -eq 0 ]; then
    set -- low mid high
fi
for point in "$@"; do
    case $point in
        low) at_point low "${low[@]}" ;;
        mid) at_point mid "${mid[@]}" ;;
        high) at_point high "${high[@]}" ;;
        *) echo "versions: $point is none of low, mid, high" >&2 && exit 2 ;;
    esac
done
