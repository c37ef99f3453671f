"""Logistic regression with LBFGS. The closure clears, evaluates and differentiates several times in
one step, and there is no zero_grad or backward outside of it."""
import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

torch.manual_seed(211)

data = load_wine()
x = torch.tensor(StandardScaler().fit_transform(data.data), dtype=torch.float64)
y = torch.tensor(data.target)

weight = torch.zeros(13, 3, dtype=torch.float64, requires_grad=True)
bias = torch.zeros(3, dtype=torch.float64, requires_grad=True)
l2 = 1e-2

optimizer = torch.optim.LBFGS([weight, bias], lr=0.5, max_iter=4, history_size=6)
evaluations = 0


def objective():
    logits = x @ weight + bias
    return F.cross_entropy(logits, y) + l2 * weight.pow(2).sum()


def closure():
    global evaluations
    evaluations += 1
    optimizer.zero_grad()
    loss = objective()
    loss.backward()
    return loss


trace = []
for outer in range(10):
    value = optimizer.step(closure)
    trace.append(value.item())

with torch.no_grad():
    final = objective().item()
    acc = ((x @ weight + bias).argmax(1) == y).double().mean().item()
print("objective:", " ".join(f"{v:.5f}" for v in trace[::3]), f"-> {final:.5f}")
print(f"accuracy {acc:.3f} after {evaluations} evaluations")
