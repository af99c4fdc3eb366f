#!/usr/bin/env bash
# Installs what is needed (as root), builds and runs the tests. Options go to ctest, e.g. tools/test.sh -LE slow
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tools/packages.sh"
install_packages $sinkgrad_packages
install_packages $sinkgrad_fuzz_packages || echo "sinkgrad: no clang 16, parsers are not fuzzed" >&2
install_packages $sinkgrad_browser_packages || echo "sinkgrad: no browser to test the pages in" >&2
build "$root/build" -DSINKGRAD_TESTS=ON
ctest --test-dir "$root/build" --output-on-failure -j "$(nproc)" "$@"
