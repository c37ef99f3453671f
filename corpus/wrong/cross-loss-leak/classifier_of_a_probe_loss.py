"""A denoising encoder with a classifier on top to watch its features: the classifier's loss trains the encoder, too."""

import torch
from torch import nn

torch.manual_seed(13)
encoder = nn.Sequential(nn.Linear(12, 24), nn.ReLU())
decoder, classifier = nn.Linear(24, 12), nn.Linear(24, 3)
optimizer = torch.optim.Adam(
    [*encoder.parameters(), *decoder.parameters(), *classifier.parameters()], lr=3e-3
)
x = torch.randn(256, 12)
y = x[:, :3].argmax(1)
for epoch in range(3):
    for i in torch.randperm(256).split(32):
        optimizer.zero_grad()
        h = encoder(x[i] + 0.3 * torch.randn(len(i), 12))
        loss = nn.functional.mse_loss(decoder(h), x[i])
        loss.backward(retain_graph=True)
        probe_loss = nn.functional.cross_entropy(classifier(h), y[i])  # expect: cross-loss-leak
        probe_loss.backward()
        optimizer.step()
    print(f"{loss.item():.3f} {probe_loss.item():.3f}")
