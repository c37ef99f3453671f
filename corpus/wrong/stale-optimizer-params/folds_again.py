"""Each fold builds a new model, but the one optimizer keeps the first fold's parameters, so the other folds'
models are scored untrained."""

import numpy as np
import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

SEED = 3
torch.manual_seed(SEED)
X, y = load_wine(return_X_y=True)
X = StandardScaler().fit_transform(X).astype(np.float32)


def make_net():
    return torch.nn.Sequential(torch.nn.Linear(13, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


net = make_net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)  # expect: stale-optimizer-params
loss_fn = torch.nn.CrossEntropyLoss()
scores = []

for fold, (tr, te) in enumerate(StratifiedKFold(3, shuffle=True, random_state=SEED).split(X, y)):
    if fold > 0:
        net = make_net()  # expect: stale-optimizer-params
    x_tr, y_tr = torch.from_numpy(X[tr]), torch.from_numpy(y[tr])
    for epoch in range(4):
        for b in torch.randperm(len(tr)).split(24):
            loss = loss_fn(net(x_tr[b]), y_tr[b])
            net.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        pred = net(torch.from_numpy(X[te])).argmax(1).numpy()
    scores.append(float((pred == y[te]).mean()))
    print(f"fold {fold}: accuracy {scores[-1]:.3f}")
print(f"mean {np.mean(scores):.3f}")
