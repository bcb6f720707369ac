#!/usr/bin/env python3
"""Times softmax(Q K^T) V in numpy, F32, as its users write it: the peer of kernbench's attention rows.

usage: attention_numpy.py ROUNDS NAME...      NAME as kernbench prints it: attention/f32/b1h8/d64/L1024/causal
Prints {NAME: median milliseconds}. Its BLAS takes its threads from OPENBLAS_NUM_THREADS.
"""

import json
import re
import statistics
import sys
import time

import numpy as np


def attention(q, k, v, visible):
    """Q, K, V [B, H, L, D]; visible [L, L] or None."""
    logits = q @ k.transpose(0, 1, 3, 2)
    logits *= np.float32(1 / np.sqrt(q.shape[-1]))
    if visible is not None:
        logits[..., ~visible] = -np.inf
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    return logits @ v


def main():
    rounds = int(sys.argv[1])
    result = {}
    for name in sys.argv[2:]:
        b, h, d, length, causal = re.fullmatch(r"attention/\w+/b(\d+)h(\d+)/d(\d+)/L(\d+)/(causal|full)", name).groups()
        shape = (int(b), int(h), int(length), int(d))
        random = np.random.default_rng(1)
        q, k, v = (random.standard_normal(shape, dtype=np.float32) for _ in range(3))
        visible = np.tri(int(length), dtype=bool) if causal == "causal" else None
        attention(q, k, v, visible)
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            attention(q, k, v, visible)
            times.append(time.perf_counter() - start)
        result[name] = statistics.median(times) * 1e3
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
