#!/usr/bin/env bash
# The main job: installs what is needed (as root), builds, and trains a Transformer and a Sinkformer side by side on real images.
# usage: tools/demo.sh [FOLDER]   (default: runs/demo)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/runs/demo}
[ $# -gt 0 ] || rm -rf "$out"  # only ever our own folder; a given one must be new
. "$root/tools/packages.sh"
install_packages $sinkgrad_packages
install_packages dataset-fashion-mnist || echo "sinkgrad: Fashion-MNIST cannot be installed here" >&2
build "$root/build" -DSINKGRAD_TESTS=OFF -DSINKGRAD_BENCH=OFF
sinkgrad="$root/build/bin/sinkgrad"
if [ -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ]; then
  echo "Fashion-MNIST, one layer of attention without MLP, patches of 14 and 7 pixels: softmax against 5 half-steps of Sinkhorn."
  "$sinkgrad" study fashion_patch_small --patches 14 7 --half-steps 5 --sinkhorn-lr 0.002 --set epochs=5 --set 'schedule.milestones=[4]' --out "$out"
else
  echo "Fashion-MNIST is not here: the Set Transformer against the Set Sinkformer on synthetic surfaces instead."
  "$sinkgrad" study set_shapes_small --half-steps 3 --set epochs=6 --set 'schedule.milestones=[5]' --out "$out"
fi
