"""The adversary's own loss also reaches the encoder, which is then stepped with it: the encoder's gradients are
off by 27 to 43%, towards showing what it should hide."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

torch.manual_seed(19)

encoder = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 6))
classifier = nn.Linear(6, 1)
adversary = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))

opt_main = torch.optim.Adam([*encoder.parameters(), *classifier.parameters()], lr=2e-3)
opt_adv = torch.optim.Adam(adversary.parameters(), lr=5e-3)
strength = 0.5

x = torch.randn(200, 8)
protected = (x[:, 0] + 0.3 * torch.randn(200) > 0).float()
outcome = (x[:, 1] + 0.8 * x[:, 0] > 0).float()

for epoch in range(2):
    for rows in torch.randperm(200).split(40):
        opt_main.zero_grad()
        opt_adv.zero_grad()
        z = encoder(x[rows])

        # how well can the adversary tell the group?
        guess = adversary(z).squeeze(1)  # expect: cross-loss-leak
        adv_loss = bce(guess, protected[rows])
        adv_loss.backward(retain_graph=True)
        opt_adv.step()

        # predict the outcome, and hide the group
        for p in adversary.parameters():
            p.requires_grad_(False)
        hidden = bce(adversary(z).squeeze(1), protected[rows])
        loss = bce(classifier(z).squeeze(1), outcome[rows]) - strength * hidden
        loss.backward()
        opt_main.step()
        for p in adversary.parameters():
            p.requires_grad_(True)
    print(f"epoch {epoch}: outcome+hiding {loss.item():.3f}, adversary {adv_loss.item():.3f}")
