#!/usr/bin/env bash
# Packages every published crate as it would be uploaded, and prints the size of each package.
#
#   scripts/package.sh             checks the contents of each package, and makes it
#   scripts/package.sh --verify    also builds each crate from its package, which takes minutes
#
# The packages are in target/package/. A path dependency without a version is a development dependency on an unpublished
# crate. cargo leaves it out of the package, together with tests, benches and examples.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

verify=--no-verify
if [ "${1:-}" = --verify ]; then
    verify=
    shift
fi
if [ $# -ne 0 ]; then
    echo "package: $1 is not --verify" >&2
    exit 2
fi

# Prints for each published crate its name, its folder, and the missing fields that a registry shows.
published=$(cargo metadata --no-deps --format-version 1 --locked | python3 -c '
import json, os, sys
for package in json.load(sys.stdin)["packages"]:
    if package["publish"] == []:
        continue
    shown = ["description", "license", "readme", "categories", "keywords"]
    missing = [field for field in shown if not package[field]]
    print(package["name"], os.path.dirname(package["manifest_path"]), ",".join(missing))
')

selected=()
while read -r package folder missing; do
    if [ -n "$missing" ]; then
        echo "package: $package has no $missing" >&2
        exit 1
    fi
    files=$(cargo package --list --locked --allow-dirty -p "$package")
    # Files that the sources include must be in the package too.
    included=$(cd "$folder" && { grep -rhoE 'include_(str|bytes)!\("[^"]+"\)' src || true; } | sed -E 's/.*"(\.\.\/)*([^"]+)".*/\2/' | sort -u)
    for file in src/lib.rs README.md LICENSE-APACHE LICENSE-MIT $included; do
        if ! grep -qxF "$file" <<<"$files"; then
            echo "package: $package contains no $file" >&2
            exit 1
        fi
    done
    odd=$(grep -vE '^(src/|docs/|README\.md$|LICENSE-(APACHE|MIT)$|Cargo\.(toml|toml\.orig|lock)$|\.cargo_vcs_info\.json$)' <<<"$files" || true)
    if [ -n "$odd" ]; then
        echo "package: $package contains $odd" >&2
        exit 1
    fi
    selected+=(-p "$package")
done <<<"$published"

# cargo packages them in the order of their dependencies, each against the packages of the others.
cargo package --locked --allow-dirty $verify "${selected[@]}"
while read -r package _; do
    crate=$(ls -t "${CARGO_TARGET_DIR:-target}/package/$package"-[0-9]*.crate | head -1)
    printf '%8d bytes  %s\n' "$(stat -c %s "$crate")" "$(basename "$crate")"
done <<<"$published"
