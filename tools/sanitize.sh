#!/usr/bin/env bash
# Builds the library, the program and the fast tests with sanitizers and runs the tests; the first finding of a test ends it with a report.
#   tools/sanitize.sh address [cpu|simt]   AddressSanitizer with leaks and undefined behaviour; simt: the CUDA kernels on the host executor
#   tools/sanitize.sh thread               ThreadSanitizer, parallel loops on std::thread
# SINKGRAD_SANITIZE_BUILD names the build folder (default build-address or build-thread). Further options go to ctest.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tools/packages.sh"
kind=${1:-}
label=${2:-cpu}
case "$kind-$label" in
  address-cpu | address-simt | thread-cpu) shift $(($# < 2 ? $# : 2)) ;;
  *) echo "usage: tools/sanitize.sh address [cpu|simt] | thread, got: $*" >&2 && exit 2 ;;
esac
install_packages $sinkgrad_packages
folder=${SINKGRAD_SANITIZE_BUILD:-$root/build-$kind}
build "$folder" -DSINKGRAD_SANITIZE="$kind" -DSINKGRAD_TESTS=ON -DSINKGRAD_BENCH=OFF -DSINKGRAD_CUDA=OFF
[ "$label" = cpu ] || cmake --build "$folder" --target tests/simt/all
export UBSAN_OPTIONS=print_stacktrace=1
# The product libraries are not instrumented: of what happens inside them ThreadSanitizer sees half.
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1"
ctest --test-dir "$folder" --output-on-failure -j "$(nproc)" -L "^$label\$" "$@"
