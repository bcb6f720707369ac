#!/usr/bin/env python3
"""Runs kernbench on the GPU and its peers in turns and writes tests/bench/results/<machine>-kernels.json.

cuBLASLt's best candidate runs in kernbench's own process, torch's matmul and attention in a process each where torch is.
Rows of one suite run close together, so that all meet the same clocks; the log beside the results has every line.

usage: run_gpu_kernels.py --bench build/bin/kernbench --machine h200 [--quick] [--python python3] [--rounds 3]
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import results_file

HERE = pathlib.Path(__file__).resolve().parent

# Lines of kernbench's command line. Suites with the same operation share a run of torch.
CUBES = [f"{size}x{size}x{size}" for size in (512, 1024, 2048, 4096, 8192)]
CROOKED = ["4096x4097x4095", "1000x1000x1000", "300x7000x500"]
SKINNY = ["1x4096x4096", "8x4096x4096", "17x4096x4096"]
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
HEADS = {64: 32, 128: 16, 256: 8}
FULL = {
    "matmul": [
        [*CUBES, *CROOKED, *SKINNY, "--dtype", "bf16,f16"],
        [*CUBES[:4], "--dtype", "f32"],
        [*CUBES[:3], "--dtype", "f64"],
        [*CUBES[1:], "--dtype", "f8e4m3,i8", "--transpose-b"],
        [*CUBES[1:4], *CROOKED, "--dtype", "bf16", "--kernel", "matmul_bf16_sm75_simt"],
        [*CUBES, *CROOKED, *SKINNY, "--dtype", "bf16", "--kernel", "matmul_bf16_sm90_wgmma"],
        [*CUBES, *CROOKED, *SKINNY, "--dtype", "bf16", "--kernel", "matmul_bf16_sm80_mma"],
        [*SKINNY, CUBES[0], "--dtype", "bf16", "--kernel", "matmul_bf16_sm80_skinny"],
        [*CUBES[2:], *CROOKED[:1], "--dtype", "bf16", "--kernel", "matmul_bf16_sm80_mma_128x128x32"],
        [*CUBES[:2], *SKINNY, "--dtype", "bf16", "--kernel", "matmul_bf16_sm80_mma_64x64x32"],
    ],
    "attention": [
        [*(f"1x{heads}x{length}x{dim}" for dim, heads in HEADS.items() for length in LENGTHS), "--dtype", "f16,bf16"],
        [*(f"1x{heads}x{length}x{dim}" for dim, heads in HEADS.items() for length in LENGTHS), "--dtype", "f16,bf16",
         "--causal"],
        [*(f"1x64x{length}x128,8" for length in (4096, 8192, 16384)), "--dtype", "bf16", "--causal"],
        [*(f"{batch}x32x1x128,8,8192" for batch in (1, 4, 16, 64)), "--dtype", "bf16"],
    ],
}
QUICK = {
    "matmul": [[*CUBES[1:4], *CROOKED[:1], *SKINNY[:1], "--dtype", "bf16"], [CUBES[1], "--dtype", "f32"]],
    "attention": [["1x16x1024x128", "1x16x4096x128", "--dtype", "bf16"], ["1x16x4096x128", "--dtype", "bf16", "--causal"],
                  ["1x32x1x128,8,8192", "--dtype", "bf16"]],
}
TORCH = {"matmul": "torch_matmul.py", "attention": "torch_attention.py"}


class Log:
    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8")

    def __call__(self, text):
        print(text, flush=True)
        print(text, file=self.file, flush=True)


def run(command, log):
    """What the command prints, as JSON, or None. A row that cannot run is a line of the log, not the end."""
    log("+ " + " ".join(command))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.stderr:
        log(done.stderr.rstrip())
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        log(f"ended with code {done.returncode} and no answer")
        return None


def own_rows(operation, suite, args, log, machine):
    """name -> [(seconds, peer's seconds or None)], over the rounds."""
    rows = {}
    for _ in range(args.rounds):
        for words in suite:
            peer = ["--peer", "cublaslt-best"] if operation == "matmul" else []
            answer = run([args.bench, "--backend", "cuda", operation, *words, *peer, "--unit", "us", "--json"], log)
            if answer is None:
                continue
            machine.update(answer["machine"])
            for row in answer["results"]:
                rows.setdefault(row["name"], []).append((row["value"] * 1e-6, row.get("peer_value", 0) * 1e-6))
    return rows


def torch_rows(operation, names, args, log):
    """name -> peer -> [seconds], over the rounds."""
    rows = {}
    for _ in range(args.rounds):
        answer = run([args.python, str(HERE / "peers" / TORCH[operation]), *names], log)
        if answer is None:
            break
        for name, peers in answer.items():
            for peer, seconds in peers.items():
                rows.setdefault(name, {}).setdefault(peer, []).append(seconds)
    return rows


def row_of(name, seconds, peer=None, peer_seconds=0):
    row = {"name": name, "value": round(seconds * 1e6, 3), "unit": "us"}
    if peer:
        row.update(peer=peer, peer_value=round(peer_seconds * 1e6, 3), ratio=round(peer_seconds / seconds, 4))
    return row


def results_of(own, torch):
    for name, pairs in own.items():
        seconds = statistics.median(pair[0] for pair in pairs)
        peers = {peer: statistics.median(values) for peer, values in torch.get(name, {}).items()}
        if pairs[0][1] > 0:
            peers["cublaslt-best"] = statistics.median(pair[1] for pair in pairs)
        if not peers:
            yield row_of(name, seconds)
        for peer, peer_seconds in sorted(peers.items()):
            yield row_of(name, seconds, peer, peer_seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="the kernbench program")
    parser.add_argument("--machine", required=True, help="a short name for this machine, for the file's name")
    parser.add_argument("--quick", action="store_true", help="a dozen rows, for a first look")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    results_file.RESULTS.mkdir(exist_ok=True)
    log = Log(results_file.RESULTS / f"{args.machine}-kernels.log")
    results, machine, out = [], {}, None
    for operation, suite in (QUICK if args.quick else FULL).items():
        own = own_rows(operation, suite, args, log, machine)
        torch = torch_rows(operation, list(own), args, log) if own else {}
        results += results_of(own, torch)
        if results:  # after each, so that a run that is cut off leaves what it had
            out = results_file.write(args.machine, "kernels", machine["build"], results, gpu=machine["gpu"],
                                     driver=machine["driver"])
    if not results:
        log("nothing could be measured")
        return 1
    for row in results:
        peer = f" {row['peer']} {row['peer_value']:.4g}  ratio {row['ratio']:.2f}" if "peer" in row else ""
        log(f"{row['name']:52} {row['value']:12.4g} {row['unit']:4}{peer}")
    log(str(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
