"""Codes are put on the unit sphere without gradients, so that the encoder gets none at all.

Only the classifier on top of the codes is trained.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_blobs(n):
    y = torch.randint(4, (n,))
    centres = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0], [0.0, -2.0]])
    return centres[y] + 0.7 * torch.randn(n, 2), y


def main():
    torch.manual_seed(1)
    x, y = make_blobs(128)
    encoder = nn.Linear(2, 8)
    classifier = nn.Linear(8, 4)
    params = list(encoder.parameters()) + list(classifier.parameters())
    opt = torch.optim.SGD(params, lr=0.5)

    for step in range(8):
        code = torch.tanh(encoder(x))
        with torch.no_grad():  # expect: broken-graph
            code = code / code.norm(dim=1, keepdim=True)
        logits = 5 * classifier(code)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        accuracy = (logits.argmax(1) == y).float().mean()
        if step % 4 == 3:
            print(f"step {step}: loss {loss.item():.3f} accuracy {accuracy.item():.2f}")


if __name__ == "__main__":
    main()
