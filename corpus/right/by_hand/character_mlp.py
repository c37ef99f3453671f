"""Looks like training without an optimizer, with .data writes: the parameters are bare leaves in a list,
cleared and updated by hand."""

import torch
import torch.nn.functional as F

words = ["emma", "olivia", "ava", "isabella", "sophia", "charlotte", "mia", "amelia", "harper", "evelyn"]
chars = sorted(set("".join(words)))
stoi = {s: i + 1 for i, s in enumerate(chars)}
stoi["."] = 0
block_size = 3

# build the dataset
X, Y = [], []
for w in words:
    context = [0] * block_size
    for ch in w + ".":
        X.append(context)
        Y.append(stoi[ch])
        context = context[1:] + [stoi[ch]]
X, Y = torch.tensor(X), torch.tensor(Y)

g = torch.Generator().manual_seed(2147483647)
V = len(stoi)
C = torch.randn((V, 4), generator=g)
W1 = torch.randn((12, 50), generator=g) * (5 / 3) / 12**0.5
b1 = torch.randn(50, generator=g) * 0.01
W2 = torch.randn((50, V), generator=g) * 0.01
b2 = torch.randn(V, generator=g) * 0
parameters = [C, W1, b1, W2, b2]
for p in parameters:
    p.requires_grad = True

lossi = []
for i in range(30):
    # minibatch construct
    ix = torch.randint(0, X.shape[0], (32,), generator=g)
    # forward pass
    emb = C[X[ix]]
    h = torch.tanh(emb.view(emb.shape[0], -1) @ W1 + b1)
    logits = h @ W2 + b2
    loss = F.cross_entropy(logits, Y[ix])
    # backward pass
    for p in parameters:
        p.grad = None
    loss.backward()
    # update
    lr = 0.1 if i < 20 else 0.01  # step learning rate decay
    for p in parameters:
        p.data += -lr * p.grad
    # track stats
    lossi.append(loss.log10().item())

print(f"{10 ** lossi[0]:.4f} -> {10 ** lossi[-1]:.4f}")
