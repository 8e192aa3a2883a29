#!/usr/bin/env bash
# Runs the property tests of every reader of bytes from outside, so many seconds for each reader, which its properties
# share, and prints how many random inputs each property has read. The first failing input ends it, and is kept in
# proptest-regressions/. The properties of something damaged begin with the inputs in dev/testkit/corpus/.
#
#   scripts/fuzz.sh [SECONDS [READER...]]      60 for each of all readers unless told otherwise
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-60}
readers=" ${*:2} "
# Inputs between two looks at the clock.
export PROPTEST_CASES=20000

# The reader, the package, its test binary, the property.
properties="
raw-transactions txpool-fetcher lib a_damaged_transaction_is_refused_or_encodes_to_its_bytes
full-objects txpool-fetcher lib text_of_any_kind_does_not_panic
full-objects txpool-fetcher lib a_damaged_object_is_never_another_transaction
txpool-lists txpool-fetcher lib the_listed_hashes_do_not_depend_on_the_pieces
txpool-lists txpool-fetcher lib a_damaged_list_is_read_alike_in_any_pieces
blocks txpool-fetcher lib a_damaged_block_has_a_head_or_is_refused
http-bodies order-rpc lib any_bytes_parse_to_calls_or_an_error
http-bodies order-rpc lib damaged_parameters_parse_or_their_error_names_a_field
signatures order-rpc lib a_damaged_header_verifies_for_its_signer_or_for_nobody
bundles order-pool it a_damaged_bundle_is_refused_or_equals_its_text
parquet mempool-recorder recording any_bytes_are_a_recording_or_an_error
parquet mempool-recorder recording a_damaged_recording_gives_no_foreign_transaction
stream-messages order-stream lib a_damaged_message_is_rejected_or_decodes_consistently
stream-messages order-stream lib no_bytes_make_the_decoder_panic
list-files blocklist list any_bytes_are_a_list_or_an_error_and_never_a_panic
list-files blocklist list a_damaged_list_names_no_address_that_it_does_not_contain
"
for reader in $readers; do
    grep -q "^$reader " <<<"$properties" || { echo "no reader $reader" >&2; exit 1; }
done

# In the profile of the tests: an overflow is a panic there.
binaries=$(cargo test --workspace --no-run --message-format=json | python3 -c '
import json, sys
for item in map(json.loads, sys.stdin):
    if item.get("executable") and item["profile"]["test"]:
        kind = "lib" if "lib" in item["target"]["kind"] else item["target"]["name"]
        print(item["manifest_path"].split("/")[-2], kind, item["executable"])
')

for reader in $(awk 'NF && !seen[$1]++ { print $1 }' <<<"$properties"); do
    [[ $readers == "  " || $readers == *" $reader "* ]] || continue
    count=$(grep -c "^$reader " <<<"$properties")
    while read -r _ package kind property; do
        binary=$(awk -v package="$package" -v kind="$kind" '$1 == package && $2 == kind { print $3 }' <<<"$binaries")
        path=$("$binary" --list | sed -nE "s/^(.*::$property): test$/\\1/p")
        inputs=0
        began=$SECONDS
        while [ $((SECONDS - began)) -lt $((seconds / count)) ]; do
            said=$(cd "crates/$package" && "$binary" --exact "$path") || { echo "$said"; exit 1; }
            [[ $said == *"1 passed"* ]] || { echo "$package has no test $property" >&2; exit 1; }
            inputs=$((inputs + PROPTEST_CASES))
        done
        printf '%-17s %10d inputs %4d s  %s %s\n' "$reader" "$inputs" $((SECONDS - began)) "$package" "$property"
    done < <(grep "^$reader " <<<"$properties")
done
