"""The gradients are divided after each micro-batch, so the earlier ones are divided again and again: the four
weigh 1/256, 1/64, 1/16 and 1/4, and the update is off by 70 %.
"""

import torch
import torch.nn.functional as F

words = (
    "emma olivia ava isabella sophia charlotte mia amelia harper evelyn abigail emily elizabeth mila ella avery "
    "sofia camila aria scarlett victoria madison luna grace chloe penelope layla riley zoey nora lily eleanor"
).split()

chars = sorted(set("".join(words)))
stoi = {s: i + 1 for i, s in enumerate(chars)}
stoi["."] = 0
vocab_size = len(stoi)
block_size = 3

X, Y = [], []
for w in words:
    context = [0] * block_size
    for ch in w + ".":
        X.append(context)
        Y.append(stoi[ch])
        context = context[1:] + [stoi[ch]]
X, Y = torch.tensor(X), torch.tensor(Y)

g = torch.Generator().manual_seed(2147483647)
C = torch.randn((vocab_size, 8), generator=g)
W1 = torch.randn((block_size * 8, 64), generator=g) * (5 / 3) / (block_size * 8) ** 0.5
b1 = torch.randn(64, generator=g) * 0.01
W2 = torch.randn((64, vocab_size), generator=g) * 0.01
b2 = torch.zeros(vocab_size)
parameters = [C, W1, b1, W2, b2]
for p in parameters:
    p.requires_grad = True

batch_size = 32
n_micro = 4
optimizer = torch.optim.SGD(parameters, lr=0.5)

for i in range(6):
    optimizer.zero_grad()
    lossi = 0.0
    for _ in range(n_micro):
        ix = torch.randint(0, X.shape[0], (batch_size,), generator=g)
        h = torch.tanh(C[X[ix]].view(batch_size, -1) @ W1 + b1)
        loss = F.cross_entropy(h @ W2 + b2, Y[ix])
        loss.backward()
        lossi += loss.item() / n_micro
        for p in parameters:
            p.grad /= n_micro  # expect: accumulation-scaling
    optimizer.step()
    print(f"{i:4d}: {lossi:.4f}")
