#!/usr/bin/env python3
"""One visit to a GPU for the tensor-core matmul kernels, in some five minutes: their tests, the sanitizers on small
cases, and every tile beside cuBLASLt. Writes OUT/matmul_mma.json and a log of each step.

usage: run_matmul_mma.py --bin build/bin --out OUT [--skip STEP...]
steps: tests, skinny_tests, tiles, wgmma_tiles, memcheck, racecheck, initcheck, synccheck, bf16, bf16_nt, f16, f16_sm75, tf32, i8, i8_sm75,
skinny, skinny_nt, wgmma, wgmma_nt, wgmma_f16
"""

import argparse
import json
import pathlib
import sys

from run_attention_mma import Visit

TESTS = ("Blocks/MatmulGpuRandom.*/0:Blocks/MatmulGpuRandom.*/1:All/MatmulGpuLayouts.*:MatmulGpuInvariance.*:MatmulGpu.*-"
         "*Past2To31")
SMALL = "All/MatmulGpuLayouts.PaddedLines/*_nt:All/MatmulGpuLayouts.PaddedLines/*_tn:All/MatmulGpuLayouts.FewResults*/*_nn"
TILES = ("32x32x32", "64x64x32", "128x128x32", "128x256x64")
HOPPER_TILES = ("128x128x64", "128x256x64")
SKINNY = ["1x4096x4096", "8x4096x4096", "17x4096x4096", "32x4096x4096", "17x4095x4097", "512x512x512"]
SHAPES = ["256x256x256", "512x512x512", "1024x1024x1024", "2048x2048x2048", "4096x4096x4096", "8192x8192x8192",
          "4096x4097x4095", "300x7000x500", "17x4096x4096", "64x64x16384"]
# dtype -> the method's name, and what kernbench is told.
METHODS = {
    "bf16": ("matmul_bf16_sm80_mma", ["--dtype", "bf16"]),
    "f16": ("matmul_f16_sm80_mma", ["--dtype", "f16"]),
    "bf16_nt": ("matmul_bf16_sm80_mma", ["--dtype", "bf16", "--transpose-b"]),
    "f16_sm75": ("matmul_f16_sm75_mma", ["--dtype", "f16"]),
    "tf32": ("matmul_tf32_sm80_mma", ["--dtype", "f32", "--tf32", "--transpose-b"]),
    "i8": ("matmul_i8_sm80_mma", ["--dtype", "i8", "--transpose-b"]),
    "i8_sm75": ("matmul_i8_sm75_mma", ["--dtype", "i8", "--transpose-b"]),
    "skinny": ("matmul_bf16_sm80_skinny", ["--dtype", "bf16"]),
    "skinny_nt": ("matmul_bf16_sm80_skinny", ["--dtype", "bf16", "--transpose-b"]),
    "wgmma": ("matmul_bf16_sm90_wgmma", ["--dtype", "bf16"]),
    "wgmma_nt": ("matmul_bf16_sm90_wgmma", ["--dtype", "bf16", "--transpose-b"]),
    "wgmma_f16": ("matmul_f16_sm90_wgmma", ["--dtype", "f16"]),
}


def rows_of(output):
    """The results that kernbench printed before or after its complaints; none where it printed none."""
    try:
        return json.loads(output[output.index("{"):output.rindex("}") + 1])["results"]
    except (ValueError, KeyError):
        return []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of the built programs")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--skip", nargs="*", default=[], help="steps to leave out")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    visit = Visit(args)
    test = args.bin / "matmul_gpu_test"
    visit.run("tests", [test, f"--gtest_filter={TESTS}", "--gtest_brief=1"], 90, {"KERND_ROWS": "mma"})  # wgmma, too
    visit.run("skinny_tests", [test, f"--gtest_filter={TESTS}", "--gtest_brief=1"], 60, {"KERND_ROWS": "_skinny"})
    visit.run("tiles", [args.bin / "matmul_mma_tiles"], 40)
    visit.run("wgmma_tiles", [args.bin / "matmul_wgmma_tiles"], 40)
    visit.answer["tiles"] = []
    for step, (method, words) in METHODS.items():
        if step in args.skip:
            continue
        shapes = SHAPES if step in ("bf16", "f16", "wgmma") else SHAPES[2:6]
        tiles = HOPPER_TILES if "sm90" in method else TILES
        if method.endswith("_skinny"):
            shapes, tiles = SKINNY, ("",)
        for tile in tiles:
            output = visit.run(f"{step}_{tile}", [args.bin / "kernbench", "--backend", "cuda", "matmul", *shapes, *words,
                                                  "--kernel", f"{method}_{tile}".rstrip("_"), "--peer", "cublaslt-best", "--repeat", "7",
                                                  "--unit", "TFLOP/s", "--json"], 20)
            visit.answer["tiles"] += [{"kernel": method, "tile": tile, **row} for row in rows_of(output)]
    for tool, limit in (("racecheck", 30), ("memcheck", 30), ("synccheck", 20), ("initcheck", 25)):
        visit.run(tool, ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", test, f"--gtest_filter={SMALL}",
                         "--gtest_brief=1"], limit, {"KERND_EXACT_BUFFERS": "1", "KERND_ROWS": "mma"})
    (args.out / "matmul_mma.json").write_text(json.dumps(visit.answer, indent=1), encoding="utf-8")
    for row in visit.answer["tiles"]:
        print(f"{row['kernel']} {row['tile']:>10} {row['name']}: {row['value']:.4g} TFLOP/s, ratio {row.get('ratio', 0):.2f}")
    return max((step["code"] != 0 for step in visit.answer["steps"].values()), default=0)


if __name__ == "__main__":
    sys.exit(main())
