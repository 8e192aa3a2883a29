#!/usr/bin/env bash
# Compiles the published crates with the lowest version that Cargo.toml allows of each of their dependencies, and prints
# these versions. In a copy of the repository under target/versions/, with a lock file of its own.
#
#   scripts/minimal-versions.sh
#
# The ranges of alloy and revm are at the low point of scripts/versions.sh; indirect dependencies have the newest version
# that is allowed. The script fails if a lower bound is wrong: if no such version exists, if another dependency needs a
# newer one, or if the crates do not compile with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
scripts/versions.sh --copy low
cd target/versions/low

# Only the published crates remain, without their development dependencies, as in a host.
cargo metadata --no-deps --format-version 1 | python3 -c '
import json, os, re, sys

packages = [package for package in json.load(sys.stdin)["packages"] if package["publish"] != []]
folders = [os.path.relpath(os.path.dirname(package["manifest_path"])) for package in packages]
for package in packages:
    with open(package["manifest_path"]) as file:
        text = re.sub(r"(?ms)^\[dev-dependencies\]\n.*?(?=^\[|\Z)", "", file.read())
    text = re.sub(r"(?m)^members = .*", f"members = {json.dumps(folders)}", text)
    text = re.sub(r"(?m)^default-members = .*\n", "", text)
    with open(package["manifest_path"], "w") as file:
        file.write(text)
'

# The option is not stable; it matters to this command alone.
RUSTC_BOOTSTRAP=1 cargo update -Z direct-minimal-versions

# Every requirement begins with its lowest version: "^1.2", "~1.2.3" or ">=1.2, <4".
cargo metadata --locked --all-features --format-version 1 | python3 -c '
import json, re, sys

metadata = json.load(sys.stdin)
names = {package["id"]: package for package in metadata["packages"]}
bounds, compiled = {}, {}
for node in metadata["resolve"]["nodes"]:
    if node["id"] not in metadata["workspace_members"]:
        continue
    for dependency in names[node["id"]]["dependencies"]:
        if "path" not in dependency:
            version = re.search(r"\d+(\.\d+)*", dependency["req"])[0]
            bounds[dependency["name"]] = ".".join((version.split(".") + ["0", "0"])[:3])
    for dependency in node["deps"]:
        package = names[dependency["pkg"]]
        compiled[package["name"]] = package["version"]
wrong = 0
for name, bound in sorted(bounds.items()):
    right = compiled[name].split("+")[0] == bound
    wrong += not right
    print(f"{name:<28} {compiled[name]}", "" if right else f"  but Cargo.toml allows {bound}, which does not exist")
sys.exit(wrong > 0)
'

# With --locked exactly these versions are compiled.
cargo check --locked --workspace
cargo check --locked --workspace --all-features
echo "minimal-versions: ok"
