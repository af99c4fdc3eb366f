#!/usr/bin/env bash
# mpirun.sh RANKS COMMAND...: COMMAND as RANKS processes of one job on this machine, by Open MPI's mpirun. Adds what is needed to run as root
# and with more ranks than cores, shares the cores among the ranks, and lets a stopped job save. Ctrl-C and SIGTERM stop it.
#   tools/mpirun.sh 4 build/bin/sinkgrad train silhouettes_vit_small --out runs/four
set -euo pipefail
if [ $# -lt 2 ]; then
  sed -n '2,4s/^# \{0,3\}//p' "$0" >&2
  exit 2
fi
if ! command -v mpirun >/dev/null; then
  echo "mpirun.sh: there is no mpirun; it comes with Open MPI (Debian: openmpi-bin)" >&2
  exit 3
fi
ranks=$1
shift
cores=$(nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}
options=(-n "$ranks" --quiet --oversubscribe --bind-to none -x OMP_NUM_THREADS)
[ "$(id -u)" = 0 ] && options+=(--allow-run-as-root)
# Containers often forbid the copies between processes that Open MPI prefers on one machine.
options+=(--mca btl_vader_single_copy_mechanism none)
# mpirun itself leaves a job one second to end; SIGUSR1 it passes on, and sinkgrad takes its time to save. A second signal ends the job at once.
set -m  # a process group of its own, so that Ctrl-C reaches this script only
mpirun "${options[@]}" "$@" </dev/null &
job=$! signal=USR1
trap 'kill -$signal $job || true; signal=TERM' INT TERM
code=0
while wait $job || code=$?; kill -0 $job 2>/dev/null; do code=0; done
exit $code
