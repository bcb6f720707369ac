#!/usr/bin/env python3
"""How soon a daemon is ready, what its first call costs, what it costs when nobody calls. Writes
tests/bench/results/<machine>-start.json.

start/ready: from the start of the process to readiness. start/first_request: the first call's Timing.total over the
median of the calls after it, in each process; the largest of all starts is a row of its own. start/idle_cpu: of one CPU.

usage: run_start.py --bin build/bin --machine h200 --backend cuda [--starts 10] [--calls 30] [--idle 10]
"""

import argparse
import json
import statistics
import sys
import time

import daemon
import results_file

CALLS = {
    "small": ("attention", "--random", "1x8x128x64"),
    "large": ("attention", "--random", "1x32x1024x128", "--causal"),
}


def totals(kernd, words, count):
    return [json.loads(kernd.kernctl("--json", *words))["timing_us"]["total"] for _ in range(count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, help="the folder of kernd and kernctl")
    parser.add_argument("--machine", required=True, help="a short name for this machine, for the file's name")
    parser.add_argument("--backend", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--idle", type=float, default=10, help="seconds without a call")
    parser.add_argument("--log", default="kernd-start.log")
    args = parser.parse_args()
    ready, prewarm, ratios, firsts, medians, idle = [], [], {}, {}, {}, 0.0
    with open(args.log, "w", encoding="utf-8") as log:
        for number in range(args.starts):
            kind = list(CALLS)[number % len(CALLS)]
            with daemon.started(args.bin, ["--backend", args.backend], log) as kernd:
                ready.append(kernd.ready_s)
                prewarm.append(kernd.metrics()["kernd_prewarm_seconds"])
                first, *others = totals(kernd, CALLS[kind], 1 + args.calls)
                median = statistics.median(others)
                firsts.setdefault(kind, []).append(first)
                medians.setdefault(kind, []).append(median)
                ratios.setdefault(kind, []).append(first / median)
                if number == args.starts - 1:
                    before, begun = kernd.cpu_seconds(), time.monotonic()
                    time.sleep(args.idle)
                    idle = (kernd.cpu_seconds() - before) / (time.monotonic() - begun)
    rows = [("start/ready", statistics.median(ready), "s"), ("start/ready/worst", max(ready), "s"),
            ("start/prewarm", statistics.median(prewarm), "s"), ("start/idle_cpu", 100 * idle, "%")]
    for kind in ratios:
        rows += [(f"start/first_request/{kind}", statistics.median(ratios[kind]), "x"),
                 (f"start/first_request/{kind}/worst", max(ratios[kind]), "x"),
                 (f"start/first_request/{kind}/total", statistics.median(firsts[kind]), "us"),
                 (f"start/later_request/{kind}/total", statistics.median(medians[kind]), "us")]
    gpu, driver = daemon.gpu() if args.backend == "cuda" else ("", "")
    results = [{"name": name, "value": round(value, 4), "unit": unit} for name, value, unit in rows]
    for row in results:
        print(f"{row['name']:40} {row['value']:12.4g} {row['unit']}")
    print(results_file.write(args.machine, "start", "Release", results, gpu=gpu, driver=driver))
    return 0


if __name__ == "__main__":
    sys.exit(main())
