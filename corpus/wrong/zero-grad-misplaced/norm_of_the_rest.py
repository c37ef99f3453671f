"""The gradients of the reconstruction are cleared before the classification's backward: the decoder never trains.
The norm that is shown each step is that of the gradients which are left.
"""

import torch
import torch.nn.functional as F
from torch import nn


def grad_norm(module):
    return torch.stack([p.grad.norm() for p in module.parameters() if p.grad is not None]).norm().item()


torch.manual_seed(2)
encoder = nn.Sequential(nn.Linear(8, 12), nn.ReLU())
decoder, classifier = nn.Linear(12, 8), nn.Linear(12, 3)
optimizer = torch.optim.Adam(
    [*encoder.parameters(), *decoder.parameters(), *classifier.parameters()], lr=1e-2
)
for step in range(14):
    x = torch.randn(32, 8)
    labels = x[:, :3].argmax(1)
    reconstruction = F.mse_loss(decoder(encoder(x)), x)
    reconstruction.backward()
    optimizer.zero_grad()  # expect: zero-grad-misplaced
    classification = F.cross_entropy(classifier(encoder(x)), labels)
    classification.backward()
    norm = grad_norm(encoder)
    optimizer.step()
    if step % 4 == 0:
        print(step, f"{reconstruction.item():.4f} {classification.item():.4f} norm {norm:.3f}")
