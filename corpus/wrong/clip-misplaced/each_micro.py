"""The running sum of the gradients is clipped after each micro-batch instead of once before the update, so early
micro-batches are shrunk again and again."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
torch.set_num_threads(1)

D_MODEL, N_HEAD, VOCAB, CTX = 32, 4, 20, 10
ACCUM, MAX_GRAD_NORM = 4, 0.1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D_MODEL), nn.LayerNorm(D_MODEL)
        self.qkv = nn.Linear(D_MODEL, 3 * D_MODEL)
        self.proj = nn.Linear(D_MODEL, D_MODEL)
        self.mlp = nn.Sequential(nn.Linear(D_MODEL, 2 * D_MODEL), nn.GELU(), nn.Linear(2 * D_MODEL, D_MODEL))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, N_HEAD, C // N_HEAD).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln2(x))


tok, pos, block = nn.Embedding(VOCAB, D_MODEL), nn.Parameter(torch.zeros(CTX, D_MODEL)), Block()
nn.init.normal_(tok.weight, std=0.2)
params = list(tok.parameters()) + [pos] + list(block.parameters())
opt = torch.optim.SGD(params, lr=0.5)

data = torch.randint(0, VOCAB, (240, CTX // 2 + 1)).repeat(1, 2)[:, : CTX + 1]
for epoch in range(2):
    loss_acc = 0.0
    for i, b in enumerate(data[torch.randperm(120)].split(6)):
        logits = block(tok(b[:, :-1]) + pos) @ tok.weight.T
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), b[:, 1:].reshape(-1)) / ACCUM
        loss.backward()
        loss_acc += loss.item()
        torch.nn.utils.clip_grad_norm_(params, MAX_GRAD_NORM)  # expect: clip-misplaced
        if (i + 1) % ACCUM == 0:
            opt.step()
            opt.zero_grad()
    print(f"{epoch=} loss={loss_acc / 10:.3f}")
