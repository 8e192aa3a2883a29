#!/usr/bin/env bash
# Follows "A first program" of docs/linking.md literally, from a clone to the first transaction. It uses a temporary
# folder with its own target folder, so that everything is compiled. Prints the minutes, the lines and the compile errors.
#
#   scripts/adopt.sh             with the newest alloy, then with the lock file of rbuilder
#   scripts/adopt.sh latest|pinned
#
# Only crates are downloaded. The clone is of the commit that is checked out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repository=$PWD
work=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
unset CARGO_TARGET_DIR

# `block LANGUAGE` prints the first code block of that section in a language.
guide=$(sed -n '/^## A first program$/,/^## One version of alloy$/p' docs/linking.md)
block() {
    sed -n "/^\`\`\`$1/,/^\`\`\`\$/p" <<<"$guide" | sed '/^```/d'
}

adopt() {
    local kind=$1 home=$work/$1 start=$SECONDS node errors=0 line
    mkdir "$home"
    git clone --quiet "$repository" "$home/mempool-ingest"
    mkdir -p "$home/my-builder/src"
    cd "$home/my-builder"
    printf '[package]\nname = "my-builder"\nedition = "2024"\n\n' >Cargo.toml
    block toml >>Cargo.toml
    block rust >src/main.rs
    [ "$kind" = latest ] || cp "$repository/integrations/rbuilder/Cargo.lock" .
    # The node of the clone, then the program: the two commands of the guide.
    node=$(block console | sed -n 's/ *# in mempool-ingest$//p')
    line=$(block console | sed -n 's/ *# in my-builder$//p')
    (cd ../mempool-ingest && exec ${node//\/tmp/$home} >"$home/node.log" 2>&1) &
    pids+=($!)
    # Both compile at the same time. The socket exists when the node listens.
    cargo build >"$home/build.log" 2>&1 || true
    errors=$(grep -c '^error' "$home/build.log" || true)
    if [ "$errors" -gt 0 ]; then
        grep -A 12 '^error' "$home/build.log" | head -n 60 >&2
        echo "adopt: $kind: $errors compile errors" >&2
        return 1
    fi
    until [ -S "$home/node.ipc" ]; do
        kill -0 "${pids[-1]}" 2>/dev/null || { tail "$home/node.log" >&2; return 1; }
        sleep 0.2
    done
    { timeout 120 ${line//\/tmp/$home} 2>"$home/run.log" || true; } | head -n 1 >"$home/first"
    [ -s "$home/first" ] || { tail "$home/run.log" >&2; return 1; }
    kill "${pids[-1]}"
    printf '%s: %s\n' "$kind" "$(cat "$home/first")"
    for crate in alloy-consensus alloy-primitives; do
        echo "$crate: $(cargo tree -q -e normal --prefix none | sed -nE "s/^$crate v([^ ]*).*/\1/p" | sort -u | tr '\n' ' ')"
    done
    # This line of the guide prints nothing if there is one version of each crate.
    ! cargo tree --duplicates --depth 0 | grep -E 'alloy-(consensus|eips|serde)|revm v'
    printf '%s: %d.%d minutes from the clone to the first transaction, %s lines, %s compile errors, %s crates\n' "$kind" \
        $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60 / 6)) "$(cat Cargo.toml src/main.rs | wc -l)" "$errors" \
        "$(grep -c '^   Compiling ' "$home/build.log")"
    cd "$repository"
}

[ $# -gt 0 ] || set -- latest pinned
for kind in "$@"; do
    case $kind in
        latest | pinned) adopt "$kind" ;;
        *) echo "adopt: $kind is none of latest, pinned" >&2 && exit 2 ;;
    esac
done
