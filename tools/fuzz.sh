#!/usr/bin/env bash
# tools/fuzz.sh NAME [SECONDS [SEED]]: feeds mutated inputs to the parser that tests/fuzz/fuzz_NAME.cpp names, for 60 seconds or as long as said. An input
# that ends the program, takes more than 10 seconds or too much memory is left in the build folder, whose path is printed. `tools/fuzz.sh --list`
# prints the names. SINKGRAD_FUZZ_BUILD names the build folder (default build-fuzz). Exits with 77 where there is no clang 16.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
names=$(cd "$root/tests/fuzz" && ls fuzz_*.cpp | sed -n 's/^fuzz_\(.*\)\.cpp$/\1/p' | grep -vx main)
name=${1:---list}
[ "$name" = --list ] && echo "$names" && exit 0
grep -qx -- "$name" <<<"$names" || { echo "unknown fuzzer '$name', there are:" $names >&2; exit 2; }
if ! command -v clang++-16 >/dev/null || [ -z "$(ls "$(clang++-16 -print-resource-dir)"/lib/linux/libclang_rt.fuzzer-*.a 2>/dev/null)" ]; then
  echo "skipped: fuzzers need the Debian packages clang-16 and libclang-rt-16-dev"
  exit 77
fi
folder=${SINKGRAD_FUZZ_BUILD:-$root/build-fuzz}
log=$(cmake -S "$root/tests/fuzz" -B "$folder" -G Ninja -DCMAKE_CXX_COMPILER=clang++-16 && cmake --build "$folder" --target "fuzz_$name") ||
  { echo "$log" >&2; exit 1; }
corpus=$folder/corpus/$name
mkdir -p "$corpus"
[ -d /dev/shm ] && export TMPDIR=/dev/shm  # some parsers read folders
cd "$folder"
exec "./fuzz_$name" -seed="${3:-0}" -max_total_time="${2:-60}" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 -max_len=65536 -artifact_prefix="$folder/$name-" \
  -error_exitcode=1 -timeout_exitcode=1 -print_final_stats=1 -use_value_profile=1 "$corpus"
