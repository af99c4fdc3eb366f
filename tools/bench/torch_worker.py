"""What the comparisons with PyTorch share: worker processes that time it under an allocator setting, runs of `sinkgrad bench`, and the clock."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

# "tuned": malloc keeps large blocks, a favour to PyTorch: its temporaries then cost no page faults.
ALLOCATORS = {"default": {}, "tuned": {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "268435456"}}
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "reference"))


def words(text):
    return text.split(",")


def add_arguments(parser):
    parser.add_argument("--sinkgrad", default="build/bin/sinkgrad", help="our program")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of running per measurement and round, at least")
    parser.add_argument("--allocators", type=words, default=list(ALLOCATORS))
    parser.add_argument("--processor-time", action="store_true", help="time what is computed, not what passes: --threads 1 on a busy machine")
    parser.add_argument("--json", help="also write all results to this file")


def median_time(work, seconds, processor_time):
    clock = time.process_time if processor_time else time.perf_counter
    times, begin = [], clock()
    while not times or clock() - begin < seconds:
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times)


def serve(handle):
    """In a worker: answers each line of JSON on standard input with a line, handle(request) or what went wrong."""
    for line in sys.stdin:
        try:
            answer = handle(json.loads(line))
        except Exception as error:  # a formulation that this PyTorch refuses must not end the run
            answer = {"error": str(error).splitlines()[0][:200]}
        print(json.dumps(answer), flush=True)


class Worker:
    """The calling script again, with `arguments`, under an allocator setting; it serves until close()."""

    def __init__(self, allocator, arguments):
        command = [sys.executable, sys.argv[0]] + [str(a) for a in arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **ALLOCATORS[allocator]})

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def ours(args, suite, name, folder, *more):
    """One run of `sinkgrad bench` on the case of that name: its entry, and the whole report."""
    report = os.path.join(folder, "ours.json")
    command = [args.sinkgrad, "bench", "--device", "cpu", "--suite", suite, "--filter", name, "--seconds", str(args.seconds), "--json", report, *more]
    command += ["--processor-time"] if args.processor_time else []
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": str(args.threads)})
    result = json.loads(pathlib.Path(report).read_text())
    return result["cases"][0], result


def new_report(args):
    """What every report begins with; also printed."""
    import torch

    report = {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(), "threads": args.threads, "processor_time": args.processor_time, "rounds": args.rounds, "cases": []}
    print(f"PyTorch {report['torch']} ({report['capability']}), {args.threads} threads, load average {os.getloadavg()[0]:.1f}")
    return report


def add_case(args, report, case):
    report["cases"].append(case)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
