#!/usr/bin/env python3
"""A million small calls, and ten thousand of random sizes: memory before and after. Writes
tests/bench/results/<machine>-soak.json. Exit code 1 where a pool holds more than after the warm-up, or the process
has grown by more than --slack-mib.

usage: run_soak.py --bin build/bin --machine h200 --backend cuda [--small 1000000] [--random 10000]
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile
import time

import daemon
import results_file

POOLS = ("memory", "device", "pinned")
MIX = 64  # problems of a mix; each drawn alike


def pools(metrics):
    return {f"{pool}_used": metrics.get(f'kernd_memory_used_bytes{{pool="{pool}"}}', 0) for pool in POOLS}


def state(kernd):
    """Bytes of each pool, of the process, and of the GPU by its driver. The last replies may still be on their way out."""
    for _ in range(100):
        metrics = kernd.metrics()
        if not any(pools(metrics).values()):
            break
        time.sleep(0.05)
    now = pools(metrics)
    now["process"] = metrics["process_resident_memory_bytes"]
    now["gpu"] = daemon.gpu_memory_mib(kernd.process.pid) << 20
    return now


def calls(kernd):
    return sum(value for name, value in kernd.metrics().items()
               if name.startswith('kernd_requests_total{code="OK",method="Compute/'))


def random_mix(path, seed):
    """Problems of sizes from 1 to some thousands, evenly over their orders of magnitude."""
    draw = random.Random(seed)

    def size(most):
        return max(1, round(2 ** draw.uniform(0, most)))

    lines = []
    for _ in range(MIX // 2):
        lines.append(f"1 matmul {size(11)}x{size(11)}x{size(11)} {draw.choice(('F32', 'F16', 'BF16'))}")
        heads = size(4)
        lines.append(f"1 attention {size(3)}x{heads}x{size(10)}x{8 * size(4)},{heads},{size(11)} "
                     f"{draw.choice(('F32', 'F16', 'BF16'))}")
    path.write_text("\n".join(lines) + "\n")


def soak(kernd, words, wanted, seconds=20):
    """Calls until `wanted` have been answered. How many there were."""
    before = calls(kernd)
    while (done := calls(kernd) - before) < wanted:
        kernd.kernctl("bench", *words, "--concurrency", "8", "--connections", "4", "--warmup", "1ms", "--duration",
                      f"{seconds}s", "--check", "0")
        print(f"  {calls(kernd) - before:.0f} of {wanted} calls", flush=True)
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, help="the folder of kernd and kernctl")
    parser.add_argument("--machine", required=True, help="a short name for this machine, for the file's name")
    parser.add_argument("--backend", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--random", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slack-mib", type=int, default=64, help="that the process may grow by after its warm-up")
    parser.add_argument("--log", default="kernd-soak.log")
    args = parser.parse_args()
    rows, grown = [], []
    with tempfile.TemporaryDirectory() as folder, open(args.log, "w", encoding="utf-8") as log:
        mix = pathlib.Path(folder) / "mix"
        random_mix(mix, args.seed)
        small = ("--op", "matmul", "--shape", "16x16x16", "--dtype", "F32")
        loads = (("small", small, args.small), ("random", ("--mix", str(mix)), args.random))
        with daemon.started(args.bin, ["--backend", args.backend, "--log-calls", "false"], log) as kernd:
            # What a pool keeps is then there: of random sizes as many as will be counted, as eight large ones may meet.
            for _, words, wanted in loads:
                soak(kernd, words, min(wanted, 10_000))
            for name, words, wanted in loads:
                before = state(kernd)
                done = soak(kernd, words, wanted)
                after = state(kernd)
                rows.append({"name": f"soak/{name}/calls", "value": done, "unit": "calls"})
                for what, value in after.items():
                    rows.append({"name": f"soak/{name}/{what}", "value": value, "unit": "bytes"})
                    more = value - before[what]
                    rows.append({"name": f"soak/{name}/{what}/grown", "value": more, "unit": "bytes"})
                    slack = args.slack_mib << 20 if what in ("process", "gpu") else 0
                    if more > slack:
                        grown.append(f"{name}: {what} grew by {more:.0f} bytes")
    gpu, driver = daemon.gpu() if args.backend == "cuda" else ("", "")
    print(json.dumps(rows, indent=1))
    print(results_file.write(args.machine, "soak", "Release", rows, gpu=gpu, driver=driver))
    for line in grown:
        print(line, file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
