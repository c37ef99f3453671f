"""Labels that the model draws itself are passed back for the hooks of the layers, which collect the curvature of their
outputs. The gradients that this leaves in the parameters are to move nothing, so they are cleared."""

import torch
from sklearn.datasets import load_wine
from torch import nn

torch.manual_seed(4)
wine = load_wine()
X = torch.tensor(wine.data, dtype=torch.float32)
X = (X - X.mean(0)) / X.std(0)
y = torch.tensor(wine.target)

net = nn.Sequential(nn.Linear(13, 16), nn.Tanh(), nn.Linear(16, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
curvature = {}
collecting = False


def collect(layer, grad_input, grad_output):
    if collecting:
        squared = grad_output[0].pow(2).sum(0)
        curvature[layer] = 0.9 * curvature.get(layer, squared) + 0.1 * squared


for layer in net:
    if isinstance(layer, nn.Linear):
        layer.register_full_backward_hook(collect)

for epoch in range(2):
    for rows in torch.randperm(len(X)).split(24):
        logits = net(X[rows])
        loss = criterion(logits, y[rows])
        drawn = torch.distributions.Categorical(logits=logits.detach()).sample()
        collecting = True
        criterion(logits, drawn).backward(retain_graph=True)
        collecting = False
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f}", [round(c.mean().item(), 6) for c in curvature.values()])
