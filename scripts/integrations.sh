#!/usr/bin/env bash
# Builds and tests the crates under integrations/, each with its own lock file at the versions of its builder.
# Arguments are passed to `cargo test`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../integrations"

for manifest in */Cargo.toml; do
    name=$(dirname "$manifest")
    printf '== %s: ' "$name"
    for crate in alloy-consensus alloy-primitives revm; do
        printf '%s %s ' "$crate" "$(sed -n "/^name = \"$crate\"$/{n;s/version = \"\(.*\)\"/\1/p}" "$name/Cargo.lock" |
            tr '\n' ' ')"
    done
    printf '\n'
    (cd "$name" && cargo test --locked "$@")
    printf '== %s: ok\n' "$name"
done
