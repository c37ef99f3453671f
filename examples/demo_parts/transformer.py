"""A small causal transformer without dropout, whose random numbers would differ from split to split.

Padding comes after the real characters, and each position only sees what is before it. So no real character sees
padding, and no mask is needed. The keys have no bias: softmax is invariant to it, so its gradient would be nothing
but rounding, which Adam would amplify.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each with a residual connection. [N, T, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, h: Tensor) -> Tensor:
        qkv = self.qkv(self.norm_1(h)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(attended.transpose(1, 2).flatten(-2))
        return h + self.mlp(self.norm_2(h))


class Transformer(nn.Module):
    """Map characters [N, T] to the logits of the next character [N, T, vocabulary]."""

    def __init__(
        self, vocabulary_size: int, *, longest: int, width: int = 64, heads: int = 4, layers: int = 2
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary_size, width)
        self.position = nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary_size))

    def forward(self, x: Tensor) -> Tensor:
        h = self.token(x) + self.position(torch.arange(x.shape[1]))
        return self.head(self.blocks(h))
