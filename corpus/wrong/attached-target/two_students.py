"""Two networks learn from each other, and each loss also moves the other network towards its own output."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine
from torch import nn

torch.manual_seed(17)
x, y = load_wine(return_X_y=True)
x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
x = (x - x.mean(0)) / x.std(0)
networks = {
    "narrow": nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 3)),
    "wide": nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3)),
}
optimizers = {name: torch.optim.SGD(each.parameters(), lr=0.1) for name, each in networks.items()}
for epoch in range(2):
    for rows in torch.randperm(len(x)).split(30):
        outputs = {name: each(x[rows]) for name, each in networks.items()}
        for name, optimizer in optimizers.items():
            (other,) = outputs.keys() - {name}
            log_probabilities = F.log_softmax(outputs[name], dim=1)
            target = F.softmax(outputs[other], dim=1)
            agreement = F.kl_div(log_probabilities, target, reduction="batchmean")  # expect: attached-target
            loss = F.nll_loss(log_probabilities, y[rows]) + agreement
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
        for optimizer in optimizers.values():
            optimizer.step()
    print(epoch, round(loss.item(), 3))
