#!/usr/bin/env python3
"""Runs kernbench and its peers in turns and writes tests/bench/results/<machine>-cpu-kernels.json.

The matmul rows have their peer, a oneDNN primitive alone, in the same process. The attention rows are set beside numpy's:
several rounds of one process each, one after the other, so that both meet the same machine.

usage: run_cpu_kernels.py --bench build/bin/kernbench --machine NAME [--threads 2] [--rounds 5] [--launcher "chrt -f 10"]
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

import results_file

# Lines of kernbench's command line. The peer computes BF16 to F32: so does ours.
CUBES = [f"{size}x{size}x{size}" for size in (64, 128, 256, 512, 768, 1024, 2048)]
MATMULS = (
    ["matmul", *CUBES, "1x4096x4096"],
    ["matmul", *CUBES[3:4], *CUBES[5:], "--dtype", "bf16", "--result-dtype", "f32"],
    ["matmul", *CUBES[3:4], *CUBES[5:], "--dtype", "i8"],
    ["matmul", *CUBES[:2], *CUBES[3:4], *CUBES[5:], "1x4096x4096", "--kernel", "matmul_f32_cpu_packed"],
)
ATTENTIONS = (
    ["attention", "1x8x1024x64", "1x8x128x64", "1x8x2048x128"],
    ["attention", "1x8x1024x64", "--causal"],
    ["attention", "1x8x1024x64", "--dtype", "bf16,f16,f8e4m3"],
)

HERE = pathlib.Path(__file__).resolve().parent
# Settings that keep OpenBLAS below its best; both sides run without them.
HOLDING_BACK = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def run(command, args):
    env = {name: value for name, value in os.environ.items() if name not in HOLDING_BACK}
    env["OPENBLAS_NUM_THREADS"] = str(args.threads)
    out = subprocess.run(shlex.split(args.launcher) + command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(out.stdout)


def kernbench(words, args):
    """The rows that it prints."""
    return run([args.bench, "--threads", str(args.threads), *words, "--json"], args)["results"]


def matmul_rows(args):
    for words in MATMULS:
        yield from kernbench([*words, "--peer", "onednn-primitive"], args)


def attention_rows(args):
    own, peer = {}, {}
    for _ in range(args.rounds):
        for row in (row for words in ATTENTIONS for row in kernbench([*words, "--repeat", "7"], args)):
            own.setdefault(row["name"], []).append(row["value"])
        for name, value in run([sys.executable, str(HERE / "attention_numpy.py"), "5", *own], args).items():
            peer.setdefault(name, []).append(value)
    for name, values in own.items():
        value, other = statistics.median(values), statistics.median(peer[name])
        yield {"name": name, "value": round(value, 4), "unit": "ms", "peer": "numpy-f32",
               "peer_value": round(other, 4), "ratio": round(other / value, 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="the kernbench program")
    parser.add_argument("--machine", required=True, help="a short name for this machine, for the file's name")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--launcher", default="", help="put before every command of both sides, to keep others off the cores")
    parser.add_argument("--build", default="Release")
    args = parser.parse_args()
    results = list(matmul_rows(args)) + list(attention_rows(args))
    results_file.write(args.machine, "cpu-kernels", args.build, results, note=f", {args.threads} threads")
    for row in results:
        peer = f" {row['peer']} {row['peer_value']:.4g}  ratio {row['ratio']:.2f}" if "peer" in row else ""
        print(f"{row['name']:44} {row['value']:10.4g} {row['unit']:8}{peer}")


if __name__ == "__main__":
    main()
