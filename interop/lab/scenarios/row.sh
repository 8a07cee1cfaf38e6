#!/bin/bash
# Several scenarios in one guest, one after the other, with what is in the environment.
#   SCENARIOS  their names
. "$(dirname "$0")/lib.sh"
for name in $SCENARIOS; do
    printf '\n==== %s\n' "$name"
    bash "$(dirname "$0")/$name.sh" || fail "$name"
done
echo "PASS row"
