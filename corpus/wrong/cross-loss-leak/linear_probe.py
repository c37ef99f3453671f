"""The linear probe that is to measure the code's quality reads it without a detach, so its label loss also trains the
unsupervised encoder."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(0)
X, y = load_digits(return_X_y=True)
X, y = torch.tensor(X[:640] / 16, dtype=torch.float32), torch.tensor(y[:640])

encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64))
probe = nn.Linear(8, 10)
ae_opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
probe_opt = torch.optim.Adam(probe.parameters(), lr=1e-2)

for epoch in range(3):
    rec_sum, hits = 0.0, 0
    for idx in torch.randperm(640).split(64):
        x, label = X[idx], y[idx]
        code = encoder(x)
        rec_loss = F.mse_loss(decoder(code), x)

        # online linear evaluation
        logits = probe(code)  # expect: cross-loss-leak
        probe_loss = F.cross_entropy(logits, label)

        ae_opt.zero_grad()
        probe_opt.zero_grad()
        (rec_loss + probe_loss).backward()
        ae_opt.step()
        probe_opt.step()
        rec_sum += rec_loss.item() / 10
        hits += (logits.argmax(1) == label).sum().item()
    print(f"epoch {epoch}: rec {rec_sum:.4f}  probe acc {hits / 640:.3f}")
