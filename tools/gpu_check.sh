#!/usr/bin/env bash
# Tests and measures the CUDA build on a machine with a GPU, in two halves:
#   tools/gpu_check.sh pack            where nvcc is: builds, and packs all that the GPU machine lacks into gpu_check/ (ignored by git)
#   tools/gpu_check.sh run [OUTPUT]    where the GPU is: needs no compiler, package or network; writes OUTPUT/gpu_check.json (default .)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
pack=$root/gpu_check

pack() {
  . "$root/tools/packages.sh"
  install_packages $sinkgrad_packages
  # Machine code of the one architecture keeps the archive small; any other GPU compiles the PTX that goes with it. One GPU has no use for NCCL.
  build "$root/build-gpu" -DSINKGRAD_CUDA=ON -DSINKGRAD_NCCL=OFF -DSINKGRAD_TESTS=ON -DCMAKE_CUDA_ARCHITECTURES="${SINKGRAD_GPU_ARCHITECTURES:-90}"
  rm -rf "$pack" && mkdir -p "$pack/content/bin" "$pack/content/lib"
  cp "$root"/build-gpu/bin/sinkgrad "$root"/build-gpu/tests/cuda/cuda_tests "$pack/content/bin/"
  cp "$root"/build-gpu/libsinkgrad_cuda.so "$pack/content/lib/"
  # CUDA's own libraries and the C library are there already; the rest comes along, ours among it.
  for program in "$pack"/content/bin/*; do
    ldd "$program" | awk '$3 ~ /^\// { print $3 }' | grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcu[^/]*|libnv[^/]*)\.so' || true
  done | sort -u | while read -r library; do cp -L "$library" "$pack/content/lib/"; done
  strip --strip-unneeded "$pack"/content/bin/* "$pack"/content/lib/*.so* 2>/dev/null || true
  cp "$root/tools/reference/bench_torch.py" "$root/tools/reference/torch_attention.py" "$pack/content/"
  mkdir -p "$pack/content/recipes" && cp "$root"/recipes/*.json "$pack/content/recipes/"
  git -C "$root" rev-parse HEAD >"$pack/content/commit" 2>/dev/null || echo unknown >"$pack/content/commit"
  tar -C "$pack" -cJf "$pack/content.tar.xz" content && rm -rf "$pack/content"
  cp "$0" "$pack/gpu_check.sh"
  local mib
  mib=$(($(stat -c %s "$pack/content.tar.xz") / 1048576))
  echo "gpu_check: packed $mib MiB into $pack/content.tar.xz"
  [ "$mib" -le 50 ] || { echo "gpu_check: more than 50 MiB, got $mib" >&2; return 1; }
}

# Runs a command under a time limit and leaves its exit code, seconds and last lines as JSON in part NAME.
part() {
  local name=$1 limit=$2 start code=0
  shift 2
  start=$(date +%s)
  timeout "$limit" "$@" >"$output/$name.log" 2>&1 || code=$?
  echo "gpu_check: $name: exit code $code, $(($(date +%s) - start)) s" >&2
  tail -n 3 "$output/$name.log" | sed 's/^/  /' >&2
  local lines
  lines=$(tail -n 20 "$output/$name.log" | tr -cd '\11\12\40-\176' | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g' | awk '{ printf "%s\"%s\"", sep, $0; sep = ", " }')
  printf '%s"%s": {"exit_code": %d, "seconds": %d, "log": [%s]}' "$separator" "$name" "$code" "$(($(date +%s) - start))" "$lines" >>"$json"
  separator=$',\n  '
}

run() {
  output=${1:-.}
  mkdir -p "$output"
  local json separator=''
  local archive
  archive=$(dirname "$0")/content.tar.xz
  [ -f "$archive" ] || archive=$pack/content.tar.xz
  [ -f "$archive" ] || { echo "gpu_check: nothing is packed; run tools/gpu_check.sh pack where nvcc is" >&2; return 2; }
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  tar -C "$work" -xJf "$archive" 2>/dev/null || python3 -m tarfile -e "$archive" "$work"
  local here=$work/content
  # The toolkit's libraries, or those that came with PyTorch.
  local cuda=/usr/local/cuda/lib64
  if command -v python3 >/dev/null; then
    cuda=$cuda:$(python3 -c 'import glob, site, sys
roots = site.getsitepackages() + [p for p in sys.path if p.endswith("site-packages")]
print(":".join(sorted({d for r in roots for d in glob.glob(r + "/nvidia/**/lib", recursive=True)})))' 2>/dev/null || true)
  fi
  # The packed libraries are for our programs alone.
  export SINKGRAD_RECIPES=$here/recipes
  local ours=(env "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cuda:$here/lib")
  json=$output/gpu_check.json
  : >"$json"
  printf '{\n  "commit": "%s", "date": "%s",\n  ' "$(cat "$here/commit")" "$(date -u +%F)" >>"$json"
  part device 20 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  part info 20 "${ours[@]}" "$here/bin/sinkgrad" info
  part gradcheck 70 "${ours[@]}" "$here/bin/sinkgrad" gradcheck --strict --device cuda
  part cuda_tests 70 "${ours[@]}" "$here/bin/cuda_tests"
  part gradcheck_cudnn 20 "${ours[@]}" SINKGRAD_BATCH_NORM=cudnn "$here/bin/sinkgrad" gradcheck --strict --device cuda --op batch_norm_train
  if command -v compute-sanitizer >/dev/null; then
    part memcheck 60 "${ours[@]}" compute-sanitizer --error-exitcode 9 "$here/bin/sinkgrad" gradcheck --strict --device cuda --op sinkhorn_attention
    part racecheck 60 "${ours[@]}" compute-sanitizer --tool racecheck --error-exitcode 9 "$here/bin/sinkgrad" gradcheck --strict --device cuda --op sinkhorn_attention
  else
    echo "gpu_check: compute-sanitizer is not on this machine, memcheck and racecheck are skipped" >&2
  fi
  part bench_f32 70 "${ours[@]}" "$here/bin/sinkgrad" bench --device cuda --large --seconds 0.05 --json "$output/bench_f32.json"
  part bench_bf16 50 "${ours[@]}" "$here/bin/sinkgrad" bench --device cuda --large --seconds 0.05 --suite attention --precision bf16 --json "$output/bench_bf16.json"
  part bench_cudnn 20 "${ours[@]}" SINKGRAD_BATCH_NORM=cudnn "$here/bin/sinkgrad" bench --device cuda --seconds 0.05 --suite ops --filter batch_norm
  if python3 -c 'import torch' 2>/dev/null; then
    part bench_torch 80 python3 "$here/bench_torch.py" --device cuda --large --json "$output/bench_torch.json"
  else
    echo "gpu_check: python3 has no torch, the comparison is skipped" >&2
  fi
  for result in bench_f32 bench_bf16 bench_torch; do
    [ -s "$output/$result.json" ] && { printf ',\n  "%s_results": ' "$result" && cat "$output/$result.json"; } >>"$json"
  done
  printf '\n}\n' >>"$json"
  echo "gpu_check: results in $json" >&2
  ! grep -qE '"(info|gradcheck|gradcheck_cudnn|memcheck|racecheck|cuda_tests|bench_f32|bench_bf16|bench_cudnn|bench_torch)": \{"exit_code": [^0]' "$json"
}

case "${1:-}" in
  pack) pack ;;
  run) run "${2:-.}" ;;
  *) sed -n '2,4s/^# //p' "$0" && exit 2 ;;
esac
