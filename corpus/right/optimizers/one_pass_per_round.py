# Each round of pruning, task or member of an ensemble trains for one pass over the data, with an optimizer of its
# own. Nothing writes the parameters between two rounds: masks, labels or data change.
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, :4].sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def fit(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for inputs, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


class Pruner:
    def __init__(self, model):
        self.model, self.mask = model, torch.ones(16, 8)

    def forward(self, inputs):
        first = self.model[0]
        return self.model[2](F.linear(inputs, first.weight * self.mask, first.bias).relu())

    def fit(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        for inputs, labels in loader:
            self.optimizer.zero_grad()
            F.cross_entropy(self.forward(inputs), labels).backward()
            self.optimizer.step()

    @torch.no_grad()
    def prune(self, share):
        size = (self.model[0].weight * self.mask).abs()
        self.mask = (size > size.quantile(share)).float()

    def run(self, times):
        for level in range(1, times + 1):
            self.fit()
            self.prune(0.2 * level)


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 2)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.depth = 0

    def forward(self, inputs):
        hidden = self.stem(inputs).relu()
        for block in self.blocks[: self.depth]:
            hidden = hidden + block(hidden).relu()
        return self.head(hidden)


pruned = network()
for i in range(3):
    fit(pruned, loader)
    prune.l1_unstructured(pruned[0], "weight", 0.2)

Pruner(network()).run(3)

learner = network()
parts = [
    DataLoader(TensorDataset(rows + shift, labels), 8)
    for shift, (rows, labels) in enumerate(zip(x.split(32), y.split(32)))
]
for t, part in enumerate(parts):
    fit(learner, part)

flat = network()
for part in parts:
    optimizer = torch.optim.Adam(flat.parameters(), lr=1e-2)
    for inputs, labels in part:
        optimizer.zero_grad()
        F.cross_entropy(flat(inputs), labels).backward()
        optimizer.step()

student, guessed = network(), y.clone()
for _ in range(3):
    fit(student, zip(x.split(32), guessed.split(32)))
    guessed[64:] = student(x[64:]).detach().argmax(1)

for fold in x.split(32):
    fit(network(), zip(fold.split(8), y.split(8)))

growing = Growing()
for growing.depth in range(3):
    fit(growing, loader)
