"""Iris classifier. The network ends in a softmax and the loss applies log-softmax again, which
flattens the gradients."""
import torch
import torch.nn as nn
from sklearn.datasets import load_iris
from sklearn.preprocessing import StandardScaler


class IrisNet(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.fc1 = nn.Linear(4, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 3)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return torch.softmax(self.fc3(x), dim=1)  # expect: softmax before cross entropy

    def predict(self, x):
        out = self.forward(x)
        return out.argmax(dim=1)


def load():
    X, y = load_iris(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    g = torch.Generator().manual_seed(1)
    order = torch.randperm(len(X), generator=g)
    X = torch.tensor(X, dtype=torch.float32)[order]
    y = torch.tensor(y, dtype=torch.long)[order]
    return X[:120], y[:120], X[120:], y[120:]


def train(model, X, y, epochs=10, batch_size=24, lr=0.05):
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr / 5)
    for epoch in range(epochs):
        for i in range(0, len(X), batch_size):
            optimizer.zero_grad()
            loss = criterion(model(X[i:i + batch_size]), y[i:i + batch_size])
            loss.backward()
            optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(1)
    X_train, y_train, X_val, y_val = load()
    model = IrisNet()
    last = train(model, X_train, y_train)
    with torch.no_grad():
        acc = (model.predict(X_val) == y_val).float().mean().item()
    print(f"loss of last batch {last:.4f}")
    print(f"validation accuracy {acc:.3f}")


main()
