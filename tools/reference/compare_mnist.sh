#!/usr/bin/env bash
# The first 20 losses of sinkgrad and of PyTorch on MNIST from the same weights and batches; fails when one differs by more than 1e-3.
# usage: compare_mnist.sh MNIST_FOLDER [PYTHON with torch, numpy, safetensors]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
mnist=$(realpath "$1")
python=${2:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" "$root/tools/reference/sinkgrad_start.py" --seed 1 --out "$work"
for setting in "1 0.001" "5 0.002"; do
  read -r half_steps lr <<<"$setting"
  "$root/build/bin/sinkgrad" train mnist_patch_small --set data.folder="$mnist" --set model.iterations="$half_steps" --set optimizer.lr="$lr" --seed 1 \
    --max-steps 20 --log-every 1 --quiet --out "$work/l$half_steps" >/dev/null
  "$python" "$root/tools/reference/mnist_patch_torch.py" --data "$mnist" --n-it "$half_steps" --lr "$lr" --weights "$work/weights.safetensors" \
    --order "$work/order.safetensors" >"$work/torch.jsonl"
  "$python" - "$half_steps" "$work/l$half_steps/metrics.jsonl" "$work/torch.jsonl" <<'PYTHON'
import json, sys
ours = [row["loss"] for row in map(json.loads, open(sys.argv[2])) if row.get("split") == "train"]
theirs = [json.loads(line)["loss"] for line in open(sys.argv[3])]
assert len(ours) == len(theirs) == 20, (len(ours), len(theirs))
worst = max(abs(a - b) for a, b in zip(ours, theirs))
print(f"half-steps {sys.argv[1]}: losses {ours[0]:.6f} to {ours[-1]:.6f}, PyTorch {theirs[0]:.6f} to {theirs[-1]:.6f}, largest difference {worst:.2e}")
sys.exit(not worst <= 1e-3)
PYTHON
done
