#!/usr/bin/env python3
"""Writes minilm/: Q, K and V of one attention layer of all-MiniLM-L6-v2 over a real text, and the layer's result.

The model (BERT, 6 layers, 12 heads of 32) runs here in float64, written out in PyTorch from its weights. Before
anything is written, the script checks that the whole model works: sentences that mean the same must lie closer together
than ones that do not. q, k, v .npy are F32, [1, 12, L, 32]; expected_o.npy is softmax(q k^T / sqrt(32)) v of exactly
these arrays in float64, rounded to F32, same shape: the layer's context before its output projection.

Needs Debian's python3-torch and python3-numpy, and the packages tokenizers and safetensors. MODEL is a folder with the
model's model.safetensors and tokenizer.json.

    python3 extract_minilm.py MODEL
"""

import hashlib
import pathlib
import sys

import numpy as np
import tokenizers
import torch
from safetensors.torch import load_file

LAYER, LAYERS, HEADS, HEAD_DIM = 3, 6, 12, 32
ALIKE = ("A man is eating a piece of bread.", "Someone eats some food.")
APART = "The stock market fell sharply on Monday."


class Model:
    """all-MiniLM-L6-v2 for one text at a time, so without padding or mask."""

    def __init__(self, folder):
        self.weights = {name: w.to(torch.float64) if w.is_floating_point() else w
                        for name, w in load_file(folder / "model.safetensors").items()}
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def linear(self, name, x):
        return torch.nn.functional.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def norm(self, name, x):
        return torch.nn.functional.layer_norm(
            x, x.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"], 1e-12)

    def heads(self, x):
        return x.reshape(x.shape[0], HEADS, HEAD_DIM).transpose(0, 1)

    def run(self, text):
        """Token embeddings after the last layer, and (q, k, v), [heads, tokens, head_dim], of each layer."""
        ids = torch.tensor(self.tokenizer.encode(text).ids)
        emb = "embeddings."
        x = (self.weights[emb + "word_embeddings.weight"][ids]
             + self.weights[emb + "position_embeddings.weight"][:len(ids)]
             + self.weights[emb + "token_type_embeddings.weight"][0])
        x = self.norm(emb + "LayerNorm", x)
        qkv = []
        for i in range(LAYERS):
            at = f"encoder.layer.{i}."
            q, k, v = (self.heads(self.linear(at + "attention.self." + name, x)) for name in ("query", "key", "value"))
            qkv.append((q, k, v))
            context = attention(q, k, v).transpose(0, 1).reshape(x.shape)
            x = self.norm(at + "attention.output.LayerNorm", x + self.linear(at + "attention.output.dense", context))
            inner = torch.nn.functional.gelu(self.linear(at + "intermediate.dense", x))
            x = self.norm(at + "output.LayerNorm", x + self.linear(at + "output.dense", inner))
        return x, qkv

    def embed(self, text):
        """The sentence embedding: mean over the tokens, of length 1."""
        mean = self.run(text)[0].mean(0)
        return mean / mean.norm()


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / HEAD_DIM ** 0.5, -1) @ v


def main():
    model = Model(pathlib.Path(sys.argv[1]))
    out = pathlib.Path(__file__).parent / "minilm"
    first, second, other = (model.embed(s) for s in (*ALIKE, APART))
    alike, apart = float(first @ second), float(first @ other)
    print(f"cosine of like sentences {alike:.3f}, of unlike ones {apart:.3f}")
    if not (alike > 0.5 and apart < 0.2):
        sys.exit("the embeddings make no sense: not the model that they should come from")

    text = (out / "text.txt").read_text(encoding="utf-8")
    _, qkv = model.run(text)
    q, k, v = (x.to(torch.float32) for x in qkv[LAYER])
    arrays = {"q": q, "k": k, "v": v, "expected_o": attention(*(x.to(torch.float64) for x in (q, k, v)))}
    for name, value in arrays.items():
        array = np.ascontiguousarray(value.to(torch.float32).numpy()[None])
        np.save(out / f"{name}.npy", array)
        digest = hashlib.sha256((out / f"{name}.npy").read_bytes()).hexdigest()
        print(f"{name}.npy {list(array.shape)} sha256 {digest}")


if __name__ == "__main__":
    main()
