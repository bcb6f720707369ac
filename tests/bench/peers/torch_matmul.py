#!/usr/bin/env python3
"""Medians of torch's matmul (cuBLAS) for rows of kernbench: {"matmul/bf16/4096x4096x4096": {"torch-cublas": seconds}}.

usage: torch_matmul.py [--repeat N] NAME...      names as kernbench gives them; others are left out of the answer
"""

import argparse
import json
import re

import torch

import torch_timer

NAME = re.compile(r"matmul/(\w+)/(\d+)x(\d+)x(\d+)(/tb)?")


def call_of(dtype, m, n, k, transposed):
    a, b = torch_timer.random((m, k), dtype), torch_timer.random((n, k) if transposed else (k, n), dtype)
    if transposed:
        b = b.t()
    if dtype == torch_timer.DTYPES["f8e4m3"]:
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    if dtype == torch.int8:
        return lambda: torch._int_mm(a, b)
    out = torch.empty((m, n), dtype=dtype, device="cuda")
    return lambda: torch.matmul(a, b, out=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=0, help="runs that count; default: about a second's worth")
    parser.add_argument("names", nargs="+")
    args = parser.parse_args()
    timer, results = torch_timer.Timer(args.repeat), {}
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    for name in args.names:
        match = NAME.fullmatch(name)
        dtype = match and torch_timer.DTYPES.get(match[1])
        if not dtype:
            continue
        seconds = timer.median(call_of(dtype, *map(int, match.group(2, 3, 4)), bool(match[5])))
        if seconds is not None:
            results[name] = {"torch-cublas": seconds}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
