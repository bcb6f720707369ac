#!/usr/bin/env python3
"""Medians of torch's scaled_dot_product_attention, by each of its backends, for rows of kernbench:
{"attention/f16/b1h8/d64/L1024/causal": {"torch-cudnn": seconds, "torch-flash": ..., "torch-efficient": ...}}.

usage: torch_attention.py [--repeat N] NAME...   names as kernbench gives them; others are left out of the answer
"""

import argparse
import json
import re
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import torch_timer

NAME = re.compile(r"attention/(\w+)/b(\d+)h(\d+)(?:x(\d+))?/d(\d+)(?:x(\d+))?/L(\d+)(?:x(\d+))?/(causal|full)")
BACKENDS = {"torch-cudnn": SDPBackend.CUDNN_ATTENTION, "torch-flash": SDPBackend.FLASH_ATTENTION,
            "torch-efficient": SDPBackend.EFFICIENT_ATTENTION}


def seconds_of(timer, match):
    batch, heads, kv_heads, dim, v_dim, rows, keys = (
        int(match[i] or match[j]) for i, j in ((2, 2), (3, 3), (4, 3), (5, 5), (6, 5), (7, 7), (8, 7)))
    causal = match[9] == "causal"
    if causal and rows != keys:
        return {}  # torch aligns the diagonal at the other corner
    dtype = torch_timer.DTYPES[match[1]]
    q = torch_timer.random((batch, heads, rows, dim), dtype)
    k = torch_timer.random((batch, kv_heads, keys, dim), dtype)
    v = torch_timer.random((batch, kv_heads, keys, v_dim), dtype)
    results = {}
    for name, backend in BACKENDS.items():
        with sdpa_kernel(backend), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # why a backend does not take this problem
            seconds = timer.median(
                lambda: scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads))
        if seconds is not None:
            results[name] = seconds
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=0, help="runs that count; default: about a second's worth")
    parser.add_argument("names", nargs="+")
    args = parser.parse_args()
    timer, results = torch_timer.Timer(args.repeat), {}
    with torch.no_grad():
        for name in args.names:
            match = NAME.fullmatch(name)
            if match and match[1] in ("f16", "bf16", "f32"):
                results[name] = seconds_of(timer, match)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
