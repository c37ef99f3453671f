"""Model, optimizer and scheduler are built again for each fold: the restarts are what cross-validation is."""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold

X, y = load_breast_cancer(return_X_y=True)
aucs = []
for fold, (tr, va) in enumerate(KFold(3, shuffle=True, random_state=0).split(X)):
    torch.manual_seed(fold)
    mu, sd = X[tr].mean(0), X[tr].std(0)
    xt, xv = (torch.tensor((X[i] - mu) / sd, dtype=torch.float32) for i in (tr, va))
    yt = torch.tensor(y[tr], dtype=torch.float32)
    model = torch.nn.Sequential(
        torch.nn.Linear(30, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    for epoch in range(3):
        model.train()
        for idx in torch.randperm(len(xt)).split(64):
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(xt[idx]).squeeze(1), yt[idx])
            loss.backward()
            optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        aucs.append(roc_auc_score(y[va], model(xv).squeeze(1).numpy()))
print("auc", np.round(aucs, 4))
