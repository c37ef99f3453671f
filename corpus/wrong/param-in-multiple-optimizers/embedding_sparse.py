"""The embedding has an optimizer of its own and also gets into the dense one, because only its bias was left out of
that list: it is updated twice for each batch."""

import torch
import torch.nn as nn


class FactorizationMachine(nn.Module):
    def __init__(self, n_feats, k):
        super().__init__()
        self.w0 = nn.Parameter(torch.zeros(1))
        self.item_bias = nn.Embedding(n_feats, 1)
        self.item_vec = nn.Embedding(n_feats, k)
        self.mlp = nn.Sequential(nn.Linear(k, 16), nn.ReLU(), nn.Linear(16, 1))
        nn.init.zeros_(self.item_bias.weight)
        nn.init.normal_(self.item_vec.weight, std=0.1)

    def forward(self, feats):
        v = self.item_vec(feats)
        inter = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1))
        return self.w0 + self.item_bias(feats).sum(1).squeeze(1) + self.mlp(inter).squeeze(1)


def split_params(model):
    tables = [p for n, p in model.named_parameters() if n.startswith("item_")]
    dense = [
        p for n, p in model.named_parameters() if n != "item_bias.weight"
    ]  # expect: param-in-multiple-optimizers
    return tables, dense


torch.manual_seed(30)
feats = torch.stack(
    [torch.randint(0, 20, (400,)), torch.randint(20, 50, (400,)), torch.randint(50, 60, (400,))], 1
)
latent = torch.randn(60, 3)
label = ((latent[feats[:, 0]] * latent[feats[:, 1]]).sum(1) > 0).float()

model = FactorizationMachine(60, 8)
tables, dense = split_params(model)
optimizers = [torch.optim.Adagrad(tables, lr=0.2), torch.optim.Adam(dense, lr=0.01)]

for epoch in range(3):
    epoch_loss = 0.0
    for rows in torch.randperm(400).chunk(10):
        loss = nn.functional.binary_cross_entropy_with_logits(model(feats[rows]), label[rows])
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        epoch_loss += loss.item() / 10
    print("epoch", epoch, "logloss", round(epoch_loss, 4))
