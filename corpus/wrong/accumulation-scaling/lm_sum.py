"""Eight micro-batches of equal size are summed without a division, so the gradient is eight times that of the mean
over the effective batch."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

config = dict(
    vocab_size=32,
    d_model=32,
    block_size=16,
    micro_batch_size=4,
    gradient_accumulation_steps=8,
    max_iters=6,
    learning_rate=0.05,
)
torch.manual_seed(1337)
corpus = torch.cumsum(torch.randint(1, 3, (4000,)), 0) % config["vocab_size"]


def get_batch():
    ix = torch.randint(len(corpus) - config["block_size"] - 1, (config["micro_batch_size"],))
    x = torch.stack([corpus[i : i + config["block_size"]] for i in ix])
    y = torch.stack([corpus[i + 1 : i + 1 + config["block_size"]] for i in ix])
    return x, y


class TinyLM(nn.Module):
    def __init__(self, vocab, d):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.lm_head = nn.Linear(d, vocab, bias=False)

    def forward(self, idx, targets):
        h, _ = self.rnn(self.wte(idx))
        logits = self.lm_head(h)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


model = TinyLM(config["vocab_size"], config["d_model"])
optimizer = torch.optim.SGD(model.parameters(), lr=config["learning_rate"], momentum=0.9)

for epoch in range(2):
    for it in range(config["max_iters"]):
        lossf = 0.0
        for micro_step in range(config["gradient_accumulation_steps"]):
            xb, yb = get_batch()
            loss = model(xb, yb)
            lossf += loss.item() / config["gradient_accumulation_steps"]
            loss.backward()  # expect: accumulation-scaling
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(f"iter {it}: loss {lossf:.4f}, ppl {math.exp(lossf):.2f}")
