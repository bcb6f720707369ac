#!/usr/bin/env python3
"""One visit to a GPU for the tensor-core attention kernels, in less than five minutes: their tests, the sanitizers on small
cases, tiles side by side, and the chosen kernels beside torch's. Writes OUT/attention_mma.json and a log of each step.

usage: run_attention_mma.py --bin build/bin --out OUT [--python python3] [--skip STEP...]
steps: tests, tiles, wgmma_tiles, kernbench-mma0 to 2, kernbench-wgmma0 and 1, torch, racecheck, memcheck, synccheck, initcheck
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TESTS = ("*TensorCore*:*PositionalProblems*:AttentionGpu.LargeStrides:AttentionGpu.ManySequences:AttentionGpu.RaggedPacked:AttentionGpu.Many*:"
         "AttentionGpu.HeadDims:AttentionGpuContract.*")
SMALL = "*TensorCoreProblems/0:*PositionalProblems/0:AttentionGpuContract.KeysThat*:AttentionGpuContract.Multi*"
KERNELS = ("attention_f16_sm80_mma", "attention_f16_sm90_wgmma")
PROBLEMS = [f"{batch}x{heads}x{length}x{dim}" for dim, heads in ((64, 32), (128, 16), (256, 8))
            for batch, length in ((32, 512), (16, 1024), (8, 2048), (4, 4096), (2, 8192), (1, 16384))]
DECODE = [f"{batch}x32x1x128,8,{keys}" for batch, keys in ((1, 8192), (4, 8192), (16, 8192), (64, 8192), (1, 131072))]


class Visit:
    def __init__(self, args):
        self.args, self.answer = args, {"steps": {}}

    def run(self, step, command, limit, environment=None):
        """The command's output, or "" where it is skipped, fails to start or passes its limit."""
        if step in self.args.skip:
            return ""
        start, code, output = time.monotonic(), None, ""
        try:
            done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=limit, env={**os.environ, **(environment or {})})
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode(errors="replace")
        except OSError as error:
            output = str(error)
        (self.args.out / f"{step}.log").write_text(output, encoding="utf-8")
        self.answer["steps"][step] = {"code": code, "seconds": round(time.monotonic() - start, 1)}
        last = output.strip().splitlines()[-1:] or [""]
        print(f"{step}: code {code}, {self.answer['steps'][step]['seconds']} s: {last[0][:150]}", flush=True)
        return output


def rows_of(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of the built programs")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--skip", nargs="*", default=[], help="steps to leave out")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    visit = Visit(args)
    test = args.bin / "attention_gpu_test"
    visit.run("tests", [test, f"--gtest_filter={TESTS}", "--gtest_brief=1"], 70)
    visit.answer["tiles"] = [row for step, program in (("tiles", "attention_mma_tiles"), ("wgmma_tiles", "attention_wgmma_tiles"))
                             for row in rows_of(visit.run(step, [args.bin / program], 40))]
    own = {}
    for kernel in KERNELS:
        # The second kernel cuts nothing along the keys: few queries are not for it.
        problems = [[*PROBLEMS], [*PROBLEMS, "--causal"], *([DECODE] if kernel == KERNELS[0] else [])]
        for i, words in enumerate(problems):
            step = f"kernbench-{kernel.rsplit('_', 1)[1]}{i}"
            output = visit.run(step, [args.bin / "kernbench", "--backend", "cuda", "attention", *words, "--dtype", "f16",
                                      "--kernel", kernel, "--unit", "us", "--repeat", "7", "--json"], 30)
            try:
                own.update((row["name"], row["value"]) for row in json.loads(output[output.index("{"):])["results"])
            except (ValueError, KeyError):
                print(f"{step}: no answer")
    visit.answer["kernbench_us"] = own
    names = sorted({name.rsplit("/", 1)[0] for name in own})  # without the kernel
    if names:
        output = visit.run("torch", [args.python, HERE / "peers" / "torch_attention.py", "--repeat", "7", *names], 40)
        try:
            visit.answer["torch_seconds"] = json.loads(output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            print("torch: no answer")
    for tool, limit in (("racecheck", 25), ("memcheck", 25), ("synccheck", 15), ("initcheck", 20)):
        # Racecheck does not follow arrivals at an mbarrier, by which warps hand jobs on in shared memory.
        without = {"KERND_WITHOUT_ROWS": "wgmma"} if tool == "racecheck" else {}
        visit.run(tool, ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", test, f"--gtest_filter={SMALL}",
                         "--gtest_brief=1"], limit, {"KERND_EXACT_BUFFERS": "1", **without})
    (args.out / "attention_mma.json").write_text(json.dumps(visit.answer, indent=1), encoding="utf-8")
    for row in visit.answer["tiles"]:
        print(f"d{row['d']} L{row['length']} {'causal' if row['causal'] else 'full'} {row['tile']}: {row['tflops']} TFLOP/s")
    for name, microseconds in own.items():
        peers = visit.answer.get("torch_seconds", {}).get(name.rsplit("/", 1)[0], {})
        print(f"{name}: {microseconds:.1f} us", *(f"{peer} {seconds * 1e6:.1f}" for peer, seconds in peers.items()))
    return max((step["code"] != 0 for step in visit.answer["steps"].values()), default=0)


if __name__ == "__main__":
    sys.exit(main())
