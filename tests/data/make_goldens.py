#!/usr/bin/env python3
"""Writes the golden cases of matmul, attention and number conversion: goldens/*.safetensors.

Every expected value is computed here with PyTorch in float64 (matrix products, softmax, logsumexp over whole matrices)
or taken from NumPy's and ml_dtypes' conversions; no code of kernd has a part in it. Inputs come from NumPy's PCG64,
seeded by the name of the case, so that a run writes the same bytes again.

A file holds the operands in their own dtypes (views as the buffer they look into), the expected results as F64, and the
problem as JSON in the metadata entry "problem". Needs Debian's python3-torch and python3-numpy, and ml_dtypes.

    python3 make_goldens.py [DIRECTORY]
"""

import json
import pathlib
import struct
import sys
import zlib

import ml_dtypes
import numpy as np
import torch

DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I32": np.int32, "I64": np.int64,
    "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64,
    "F8E4M3": ml_dtypes.float8_e4m3fn, "F8E5M2": ml_dtypes.float8_e5m2,
}
# Names of the safetensors format, where they are not ours.
WIRE = {"F8E4M3": "F8_E4M3", "F8E5M2": "F8_E5M2"}
NAN, INF = float("nan"), float("inf")


class Case:
    """One file: tensors, and a JSON problem."""

    def __init__(self, name, **problem):
        self.name, self.problem, self.tensors = name, problem, {}
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))

    def put(self, name, array, dtype):
        """Stores `array` rounded to `dtype`; returns what is stored, as a float64 torch tensor (bool for BOOL)."""
        stored = np.ascontiguousarray(np.asarray(array).astype(DTYPES[dtype]))
        self.tensors[name] = (dtype, stored)
        return self.value(stored)

    @staticmethod
    def value(stored):
        if stored.dtype == np.bool_:
            return torch.from_numpy(stored.copy())
        return torch.from_numpy(stored.astype(np.float64))

    def normal(self, name, shape, dtype, scale=1.0):
        return self.put(name, self.rng.standard_normal(shape) * scale, dtype)

    def view(self, name, buffer_shape, dtype, offset, shape, strides):
        """A tensor that looks into a larger random buffer."""
        self.normal(name, buffer_shape, dtype)
        return self.look(name, offset, shape, strides)

    def look(self, name, offset, shape, strides, of=None):
        """`name` as a view into the stored tensor `of`, by default the one of its own name."""
        dtype, stored = self.tensors[of or name]
        self.problem.setdefault("views", {})[name] = {
            "of": of or name, "offset": offset, "shape": list(shape), "strides": list(strides)}
        flat = stored.reshape(-1)[offset:]
        byte_strides = [s * flat.itemsize for s in strides]
        return self.value(np.lib.stride_tricks.as_strided(flat, shape, byte_strides).copy())

    def expect(self, name, tensor):
        self.tensors["expected_" + name] = ("F64", np.ascontiguousarray(tensor.to(torch.float64).numpy()))

    def save(self, directory):
        header = {"__metadata__": {"problem": json.dumps(self.problem, sort_keys=True)}}
        at = 0
        for name, (dtype, stored) in self.tensors.items():
            header[name] = {"dtype": WIRE.get(dtype, dtype), "shape": list(stored.shape),
                            "data_offsets": [at, at + stored.nbytes]}
            at += stored.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        data = b"".join(stored.tobytes() for _, stored in self.tensors.values())
        (directory / f"{self.name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


# ---------------------------------------------------------------------------------------------------- matmul

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


def matmul_case(name, a=(5, 7), b=(7, 6), dtype="F32", b_dtype=None, out=None, c=None, bias=None, bias_dtype=None,
                a_scale=None, b_scale=None, prepare=None, view=None, **options):
    """One matmul. a, b, c, bias: shapes; a_scale, b_scale: (kind, shape, block); `prepare` edits the raw arrays."""
    case = Case("matmul_" + name, **options)
    default = "BF16" if dtype.startswith("F8") else "I32" if dtype == "I8" else dtype
    output = out or default
    if out:
        case.problem["output_dtype"] = out
    integer = dtype == "I8"

    def operand(key, shape, of, spread=1.0):
        raw = case.rng.integers(-128, 128, shape) if of == "I8" else case.rng.standard_normal(shape) * spread
        if of == "I32":
            raw = np.rint(raw * 1000)
        if prepare:
            raw = prepare(key, raw)
        return case.put(key, raw, of)

    if view:  # {operand: (buffer shape, offset, shape, strides)}
        va = case.view("a", view["a"][0], dtype, *view["a"][1:])
        vb = case.view("b", view["b"][0], dtype, *view["b"][1:])
    else:
        va, vb = operand("a", a, dtype), operand("b", b, b_dtype or dtype)
    if options.get("transpose_a"):
        va = va.transpose(-1, -2)
    if options.get("transpose_b"):
        vb = vb.transpose(-1, -2)

    def scaled(key, scale, value):
        """`value` [R, K] times its scales, or the scales' [R, K] field when the product is taken in integers."""
        kind, shape, *block = scale
        s = case.put(key, np.exp2(case.rng.uniform(-3, 3, shape)), "F32")
        case.problem[key] = {"kind": kind, "block": block}
        if kind == "tensor":
            return value * s.reshape(())
        if kind == "row":
            return value * s[:, None]
        rows, k = value.shape[-2:]
        field = s.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:rows, :k]
        return value * field

    alpha, beta = options.get("alpha", 1.0), options.get("beta", 0.0)
    if a_scale:
        va = scaled("a_scale", a_scale, va)
    if b_scale:
        vb = scaled("b_scale", b_scale, vb.transpose(-1, -2)).transpose(-1, -2)
    if integer and not (a_scale or b_scale):
        product = torch.matmul(va.to(torch.int64), vb.to(torch.int64)).to(torch.float64)
    else:
        product = torch.matmul(va, vb)
    x = alpha * product if alpha != 0 else torch.zeros_like(product)
    if c is not None:
        vc = case.view("c", *view["c"][:1], output, *view["c"][1:]) if view and "c" in view else operand("c", c, output)
        if beta != 0:
            x = x + beta * vc
    if bias is not None:
        x = x + operand("bias", bias, bias_dtype or output)
    x = ACTIVATIONS[options.get("activation", "none")](x)
    if output == "I32":
        x = torch.clamp(torch.round(x), -2.0**31, 2.0**31 - 1)
    case.expect("d", x)
    return case


def matmul_cases():
    m = matmul_case
    yield m("f32")
    yield m("f64", dtype="F64")
    yield m("f16", dtype="F16")
    yield m("f16_to_f32", dtype="F16", out="F32")
    yield m("bf16", dtype="BF16")
    yield m("f8e4m3", dtype="F8E4M3")
    yield m("f8_mixed", dtype="F8E5M2", b_dtype="F8E4M3", out="F32")
    yield m("i8", dtype="I8", a=(5, 300), b=(300, 3))
    yield m("transpose_a", a=(7, 5), transpose_a=True)
    yield m("transpose_b", b=(6, 7), transpose_b=True)
    yield m("transpose_both", a=(7, 5), b=(6, 7), transpose_a=True, transpose_b=True)
    yield m("batch", a=(2, 3, 4, 5), b=(2, 3, 5, 3))
    yield m("batch_broadcast_both", a=(2, 1, 4, 5), b=(3, 5, 3))
    yield m("batch_one_b", a=(4, 3, 5), b=(5, 2))
    yield m("batch_one_a_transposed", a=(5, 4), b=(3, 6, 5), transpose_a=True, transpose_b=True)
    yield m("views", view={"a": ((2, 5, 9), 2, (2, 4, 6), (45, 9, 1)), "b": ((6, 2, 5), 1, (2, 6, 4), (5, 10, 1)),
                           "c": ((4, 6), 1, (4, 4), (6, 1))}, c=(), beta=0.5)
    yield m("alpha", alpha=-0.75)
    yield m("alpha_zero_ignores_nan", alpha=0.0, bias=(6,), prepare=lambda k, x: x * NAN if k in "ab" else x)
    yield m("beta", alpha=0.5, beta=-2.0, c=(5, 6))
    yield m("beta_zero_ignores_nan", beta=0.0, c=(5, 6), prepare=lambda k, x: x * NAN if k == "c" else x)
    yield m("c_broadcast", a=(3, 2, 4, 5), b=(2, 5, 3), beta=1.5, c=(2, 4, 3))
    yield m("c_broadcast_one", a=(3, 2, 4, 5), b=(2, 5, 3), beta=1.5, c=(3, 1, 4, 3))
    yield m("bias", bias=(6,))
    yield m("bias_f32_for_f16", dtype="F16", bias=(6,), bias_dtype="F32")
    yield m("relu", activation="relu")
    yield m("gelu", activation="gelu")
    yield m("silu", activation="silu")
    yield m("nan_rows", prepare=nan_row)
    yield m("relu_nan", activation="relu", prepare=nan_row)
    yield m("infinity", prepare=infinite_element)
    yield m("k_zero", a=(3, 0), b=(0, 4), bias=(4,), beta=2.0, c=(3, 4), activation="silu")
    yield m("m_zero", a=(2, 0, 5), b=(2, 5, 4))
    yield m("n_zero", a=(3, 5), b=(5, 0))
    yield m("batch_zero", a=(0, 3, 5), b=(5, 4))
    yield m("one_element", a=(1, 1), b=(1, 1))
    yield m("i8_to_f32", dtype="I8", out="F32")
    yield m("i8_bias_relu", dtype="I8", bias=(6,), activation="relu")
    yield m("i8_half_to_even", dtype="I8", alpha=0.5)
    yield m("i8_saturates", dtype="I8", alpha=1e6)
    yield m("i8_beta", dtype="I8", alpha=0.25, beta=0.25, c=(5, 6), bias=(6,), bias_dtype="F32")
    yield m("i8_scale_tensor", dtype="I8", out="F32", a_scale=("tensor", ()), b_scale=("tensor", (1,)))
    yield m("i8_scale_row", dtype="I8", out="BF16", a_scale=("row", (5,)), b_scale=("row", (6,)))
    yield m("i8_scale_block", dtype="I8", out="F32", a=(5, 11), b=(11, 6),
            a_scale=("block", (5, 3), 1, 4), b_scale=("block", (2, 3), 5, 4))
    yield m("f8_scale_row", dtype="F8E4M3", a_scale=("row", (5,)), b_scale=("tensor", ()))
    yield m("f8_scale_block", dtype="F8E4M3", a=(5, 11), b=(11, 6), out="F32",
            a_scale=("block", (3, 2), 2, 8), b_scale=("row", (6,)))
    yield m("f8_scale_block_transposed", dtype="F8E4M3", a=(11, 5), b=(6, 11), out="F32", transpose_a=True,
            transpose_b=True, a_scale=("block", (3, 2), 2, 8), b_scale=("block", (6, 3), 1, 4))
    yield m("everything", a=(2, 1, 7, 5), b=(3, 6, 7), dtype="BF16", out="F32", transpose_a=True, transpose_b=True,
            alpha=0.3, beta=-1.25, c=(3, 5, 6), bias=(6,), activation="gelu")


def nan_row(key, x):
    if key == "a":
        x[1, 2] = NAN
    return x


def infinite_element(key, x):
    if key == "a":
        x[1, 2] = INF
        x[3, 0], x[3, 1] = INF, -INF
    return x


# ------------------------------------------------------------------------------------------------- attention

def attention_case(name, layout="BHLD", batch=2, q_heads=2, kv_heads=2, q_rows=5, kv_rows=7, d=4, dv=6, dtype="F32",
                   mask=None, bias=None, bias_dtype="F32", slopes=False, sinks=None, q_scale=None, k_scale=None,
                   v_scale=None, views=None, edit=None, **options):
    """One attention. `mask` and `bias` are shapes; the operand scales numbers of entries; `edit` changes raw arrays."""
    case = Case("attention_" + name, layout=layout, **options)
    packed = layout == "PACKED"
    if packed:
        q_rows, kv_rows = options["q_offsets"][-1], options["kv_offsets"][-1]
        batch = len(options["q_offsets"]) - 1

    def shape_of(heads, rows, channels):
        return {"BHLD": (batch, heads, rows, channels), "BLHD": (batch, rows, heads, channels),
                "PACKED": (rows, heads, channels)}[layout]

    def to_bhld(x):
        return {"BHLD": x, "BLHD": x.transpose(1, 2) if x.dim() == 4 else x,
                "PACKED": x.transpose(0, 1).unsqueeze(0) if x.dim() == 3 else x}[layout]

    raw = {"q": case.rng.standard_normal(shape_of(q_heads, q_rows, d)) * 1.5,
           "k": case.rng.standard_normal(shape_of(kv_heads, kv_rows, d)) * 1.5,
           "v": case.rng.standard_normal(shape_of(kv_heads, kv_rows, dv))}
    if mask is not None:
        raw["mask"] = case.rng.random(mask) < 0.6
    if bias is not None:
        raw["bias"] = case.rng.standard_normal(bias)
    if edit:
        edit(raw)
    if views:
        q, k, v = views(case)
    else:
        q, k, v = (case.put(key, raw[key], dtype) for key in "qkv")
    q, k, v = to_bhld(q), to_bhld(k), to_bhld(v)
    mask_value = case.put("mask", raw["mask"], "BOOL") if mask is not None else None
    bias_value = case.put("bias", raw["bias"], bias_dtype) if bias is not None else None

    def vector(key, values):
        return case.put(key, values, "F32")

    slope = vector("alibi_slopes", 2.0 ** -case.rng.uniform(0, 4, q_heads)) if slopes else torch.zeros(q_heads)
    sink = vector("sinks", sinks) if sinks else None

    def operand_scale(key, entries):
        if not entries:
            return torch.ones(batch, kv_heads, dtype=torch.float64)
        s = vector(key, np.exp2(case.rng.uniform(-1, 1, entries)))
        return (s.reshape(-1, kv_heads) if entries > 1 else s.reshape(1, 1)).expand(batch, kv_heads)

    scales = [operand_scale(key, n) for key, n in (("q_scale", q_scale), ("k_scale", k_scale), ("v_scale", v_scale))]
    group = q_heads // kv_heads if kv_heads else 1
    o = torch.zeros(q.shape[:3] + (dv,), dtype=torch.float64)
    lse = torch.full(q.shape[:3], -INF, dtype=torch.float64)
    for b in range(batch):
        row = 0 if packed else b
        q0, q1, k0, k1 = 0, q_rows, 0, kv_rows
        if packed:
            q0, q1 = options["q_offsets"][b:b + 2]
            k0, k1 = options["kv_offsets"][b:b + 2]
        if "q_lengths" in options:
            q1 = options["q_lengths"][b]
        if "kv_lengths" in options:
            k1 = options["kv_lengths"][b]
        qs, ks, vs = (s[b].repeat_interleave(group)[:, None, None] for s in scales)
        qb = q[row, :, q0:q1] * qs
        kb = k[row].repeat_interleave(group, 0)[:, k0:k1] * ks
        vb = v[row].repeat_interleave(group, 0)[:, k0:k1] * vs
        lq, lk = q1 - q0, k1 - k0
        if lq == 0 or lk == 0 or q_heads == 0:
            continue
        logits = torch.einsum("hid,hjd->hij", qb, kb) * options.get("scale", d ** -0.5 if d else 1.0)
        if "softcap" in options:
            logits = options["softcap"] * torch.tanh(logits / options["softcap"])
        if bias_value is not None:
            logits = logits + bias_value.expand(batch, q_heads, q_rows, kv_rows)[b, :, :lq, :lk]
        off = lk - lq if options.get("alignment") == "bottom_right" else 0
        relative = torch.arange(lk)[None, :] - torch.arange(lq)[:, None] - off
        logits = logits - slope[:, None, None] * relative.abs()
        visible = torch.ones(lq, lk, dtype=torch.bool)
        if options.get("causal"):
            visible &= relative <= 0
        if "window_left" in options:
            visible &= relative >= -options["window_left"]
        if "window_right" in options:
            visible &= relative <= options["window_right"]
        visible = visible.expand(q_heads, lq, lk)
        if mask_value is not None:
            visible = visible & mask_value.expand(batch, q_heads, q_rows, kv_rows)[b, :, :lq, :lk]
        logits = torch.where(visible, logits, torch.full_like(logits, -INF))
        lse_b = torch.logsumexp(logits, -1)
        if sink is not None:  # a further column, without a value
            logits = torch.cat([logits, sink[:, None, None].expand(q_heads, lq, 1)], -1)
        weights = torch.softmax(logits, -1)[..., :lk]
        # A hidden key's value has no part, not even as 0 * NaN.
        terms = torch.where(visible[..., None], weights[..., None] * vb[:, None], torch.zeros((), dtype=torch.float64))
        o_b = torch.where((lse_b == -INF)[..., None], torch.zeros((), dtype=torch.float64), terms.sum(-2))
        o[row, :, q0:q1], lse[row, :, q0:q1] = o_b, lse_b
    if packed:
        o, lse = o[0].transpose(0, 1), lse[0]
    elif layout == "BLHD":
        o = o.transpose(1, 2)
    case.expect("o", o)
    case.expect("lse", lse)
    return case


def packed_qkv_views(case):
    """Q, K and V inside one buffer [B, L, 3, H, D], as a fused projection writes them; BLHD."""
    case.normal("qkv", (2, 6, 3, 2, 4), "F32")
    return [case.look(name, 8 * i, (2, 6, 2, 4), (144, 24, 4, 1), of="qkv") for i, name in enumerate("qkv")]


def cache_views(case):
    """K and V as slices of a cache with room for 10 positions; BHLD."""
    q = case.view("q", (2, 5, 3, 8), "F32", 4, (2, 3, 5, 4), (120, 8, 24, 1))
    k = case.view("k", (2, 3, 10, 4), "F32", 8, (2, 3, 7, 4), (120, 40, 4, 1))
    v = case.view("v", (2, 3, 10, 6), "F32", 12, (2, 3, 7, 6), (180, 60, 6, 1))
    return q, k, v


def attention_cases():
    a = attention_case
    br, tl = {"alignment": "bottom_right"}, {"alignment": "top_left"}
    offsets = {"q_offsets": [0, 3, 3, 7, 9], "kv_offsets": [0, 4, 6, 6, 11]}
    yield a("bhld")
    yield a("blhd", layout="BLHD")
    yield a("packed", layout="PACKED", **offsets)
    yield a("f16", dtype="F16")
    yield a("bf16", dtype="BF16", bias=(2, 2, 5, 7), bias_dtype="BF16")
    # What tensor cores take: channels by eights, no bias, and more than one tile of keys.
    wide = {"batch": 1, "q_heads": 2, "kv_heads": 1, "q_rows": 33, "kv_rows": 150, "d": 64, "dv": 64, "causal": True, **br}
    yield a("f16_wide", dtype="F16", **wide)
    yield a("bf16_wide", dtype="BF16", **wide)
    yield a("gqa", q_heads=6, kv_heads=2)
    yield a("mqa_blhd", layout="BLHD", q_heads=3, kv_heads=1)
    yield a("scale", scale=0.3)
    yield a("scale_zero", scale=0.0)
    yield a("scale_negative", scale=-1.25)
    yield a("softcap", softcap=0.9, scale=1.5)
    yield a("bias", bias=(2, 2, 5, 7))
    yield a("bias_broadcast", bias=(1, 2, 1, 7))
    yield a("bias_minus_infinity", bias=(1, 1, 5, 7), edit=fill("bias", np.s_[0, 0, 0:2, :], -INF))
    yield a("mask", mask=(2, 2, 5, 7))
    yield a("mask_keys", mask=(2, 1, 1, 7))
    yield a("mask_empty_rows", mask=(1, 1, 5, 7), edit=fill("mask", np.s_[0, 0, [1, 4]], False))
    yield a("causal_square", kv_rows=5, causal=True)
    yield a("causal_top_left_wide", causal=True, **tl)
    yield a("causal_top_left_tall", q_rows=7, kv_rows=4, causal=True, **tl)
    yield a("causal_bottom_right_wide", causal=True, **br)
    yield a("causal_bottom_right_tall", q_rows=7, kv_rows=4, causal=True, **br)
    yield a("window_left", q_rows=7, window_left=2)
    yield a("window_right", q_rows=7, window_right=1)
    yield a("window_both_bottom_right", window_left=1, window_right=2, **br)
    yield a("window_zero", q_rows=7, window_left=0, window_right=0)
    yield a("window_beyond", window_left=2**62, window_right=2**63 - 1, **br)
    yield a("causal_window", causal=True, window_left=3, **br)
    yield a("slopes", q_rows=7, slopes=True)
    yield a("slopes_bottom_right", slopes=True, causal=True, **br)
    yield a("kv_lengths", kv_lengths=[3, 7])
    yield a("lengths_zero", q_lengths=[5, 0], kv_lengths=[0, 7])
    yield a("lengths_causal_bottom_right", batch=3, q_lengths=[2, 5, 4], kv_lengths=[7, 2, 4], causal=True, **br)
    yield a("lengths_slopes_top_left", layout="BLHD", q_lengths=[2, 5], kv_lengths=[7, 2], slopes=True, **tl)
    yield a("packed_causal_bottom_right", layout="PACKED", q_heads=4, causal=True, **offsets, **br)
    yield a("packed_window_top_left", layout="PACKED", window_left=1, **offsets, **tl)
    yield a("sinks", sinks=[0.5, -1.5])
    yield a("sinks_large_and_none", sinks=[90.0, -INF])
    yield a("sinks_empty_rows", sinks=[0.25, 2.0], mask=(1, 1, 5, 7), edit=fill("mask", np.s_[0, 0, 2], False))
    yield a("large_logits", scale=300.0)
    yield a("nan_key", edit=nan_key, causal=True, kv_rows=5)
    yield a("nan_hidden", edit=nan_hidden, mask=(1, 1, 1, 7))
    yield a("nan_past_length", edit=nan_past_length, kv_lengths=[3, 7])
    yield a("f8e4m3", dtype="F8E4M3", q_scale=1, k_scale=1, v_scale=1)
    yield a("f8e5m2_scale_heads", dtype="F8E5M2", q_heads=4, q_scale=2, k_scale=2, v_scale=2)
    yield a("f8_scale_all", dtype="F8E4M3", q_heads=4, q_scale=4, k_scale=4, v_scale=4)
    yield a("views_packed_qkv", layout="BLHD", q_rows=6, kv_rows=6, d=4, dv=4, views=packed_qkv_views, causal=True)
    yield a("views_cache", q_heads=3, kv_heads=3, views=cache_views)
    yield a("no_keys", kv_rows=0)
    yield a("no_queries", q_rows=0)
    yield a("no_batch", batch=0)
    yield a("head_dim_zero", d=0, scale=1.0)
    yield a("v_head_dim_zero", dv=0)
    yield a("one_query", q_rows=1, kv_rows=13, q_heads=4, causal=True, **br)
    yield a("everything", layout="BLHD", batch=3, q_heads=4, kv_heads=2, q_rows=6, kv_rows=9, d=5, dv=3, scale=0.7,
            softcap=2.0, mask=(3, 1, 6, 9), bias=(1, 4, 1, 9), slopes=True, causal=True, window_left=5,
            q_lengths=[6, 3, 0], kv_lengths=[9, 5, 4], sinks=[0.1, -0.4, 1.0, -INF], **br)
    yield a("everything_packed_f8", layout="PACKED", q_heads=4, kv_heads=2, d=5, dv=3, dtype="F8E4M3", softcap=3.0,
            slopes=True, causal=True, window_left=2, sinks=[0.1, -0.4, 1.0, -INF], q_scale=2, k_scale=8, v_scale=1,
            **offsets, **br)


def nan_key(raw):
    raw["k"][0, 0, 3] = NAN  # seen by rows 3 and 4
    raw["v"][1, 1, 2, 1] = NAN  # one channel of rows 2 to 4


def fill(key, at, value):
    """An edit that sets raw[key][at]."""
    def edit(raw):
        raw[key][at] = value
    return edit


def nan_past_length(raw):
    raw["k"][0, :, 3:], raw["v"][0, :, 3:] = NAN, INF


def nan_hidden(raw):
    raw["mask"][..., 2] = False
    raw["mask"][..., 3] = True
    raw["k"][:, :, 2], raw["v"][:, :, 2] = NAN, INF


# ------------------------------------------------------------------------------------------------ conversion

def conversion_case():
    """All values of the small formats, and the encoding of numbers around their boundaries."""
    case = Case("conversion")
    samples = [0.0, -0.0, NAN, INF, -INF, 65504.0, 65519.99, 65520.0, 1e300, -1e300, 448.0, 463.9, 464.0, 464.1, 480.0,
               57344.0, 61439.0, 61440.0, 5e-324, 2.0**-24, 2.0**-25, 2.0**-25 * 1.0001, 2.0**-10, 2.0**-9, 2.0**-17,
               1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-40, 1 + 3 * 2.0**-11, 3.3895e38, 3.4e38]
    samples += list(case.rng.standard_normal(200) * np.exp2(case.rng.uniform(-30, 18, 200)))
    # To F32 first: ml_dtypes goes through it, and a second rounding must not be what is tested.
    with np.errstate(over="ignore"):
        x32 = np.array(samples, np.float64).astype(np.float32)
        case.put("samples", x32, "F32")
        for dtype in ("F16", "BF16", "F8E4M3", "F8E5M2"):
            bits = np.uint8 if dtype.startswith("F8") else np.uint16
            case.put("encoded_" + dtype, x32.astype(DTYPES[dtype]).view(bits), "I32")
        # NumPy goes from F64 to F16 in one step.
        x64 = np.array(samples, np.float64)
        case.put("samples_f64", x64, "F64")
        case.put("encoded_F16_from_f64", x64.astype(np.float16).view(np.uint16), "I32")
    for dtype in ("F8E4M3", "F8E5M2"):
        every = np.arange(256, dtype=np.uint8).view(DTYPES[dtype])
        case.put("decoded_" + dtype, every.astype(np.float32), "F32")
    return case


def main():
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "goldens")
    directory.mkdir(parents=True, exist_ok=True)
    cases = [*matmul_cases(), *attention_cases(), conversion_case()]
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        case.save(directory)
    print(f"{len(cases)} cases in {directory}")


if __name__ == "__main__":
    main()
