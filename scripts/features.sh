#!/usr/bin/env bash
# Each published crate builds with no feature, with each feature alone, and with all of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# One line for each published crate and feature: "crate" alone, then "crate feature".
combinations() {
    cargo metadata --no-deps --format-version 1 --locked | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    if package["publish"] == []:
        continue
    print(package["name"])
    for feature in package["features"]:
        if feature != "default":
            print(package["name"], feature)
'
}

combinations | while read -r package feature; do
    printf 'features: %s, %s\n' "$package" "${feature:-none}"
    cargo check --quiet --locked -p "$package" --lib --no-default-features ${feature:+--features "$feature"}
done
while read -r package; do
    printf 'features: %s, all\n' "$package"
    cargo check --quiet --locked -p "$package" --lib --all-features
done < <(combinations | cut -d' ' -f1 | uniq)
