# Each round adds data and fits the model again, with an optimizer of its own: dataset aggregation, and the
# hyperparameters of a Gaussian process. The third model is drawn anew before each of its fits.
import torch
from torch import nn

torch.manual_seed(0)


def fit(model, x, y, epochs=10):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(8):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()


def tune(log_scale, x, y):
    optimizer = torch.optim.Adam([log_scale], lr=0.05)
    for _ in range(25):
        optimizer.zero_grad()
        kernel = (-(x - x.T).square() / log_scale.exp()).exp() + 0.1 * torch.eye(len(x))
        nll = (y.T @ torch.linalg.solve(kernel, y)).squeeze() + torch.logdet(kernel)
        nll.backward()
        optimizer.step()


policy = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
drawn = nn.Linear(1, 1)
log_scale = nn.Parameter(torch.zeros(1))
x = torch.rand(24, 1)
for number in range(5):
    x = torch.cat([x, torch.rand(8, 1)])
    y = (3 * x).sin()
    fit(policy, x, y)
    tune(log_scale, x, y)
    for weight in drawn.parameters():
        weight.data.normal_()
    optimizer = torch.optim.Adam(drawn.parameters(), lr=1e-2)
    for rows in torch.randperm(len(x)).split(8):
        optimizer.zero_grad()
        nn.functional.mse_loss(drawn(x[rows]), y[rows]).backward()
        optimizer.step()
    print(number, log_scale.item())

net = nn.Linear(1, 1)
for number in range(len(tasks := [1, 2, 3])):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for rows in torch.randperm(len(x)).split(8):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[rows]), tasks[number] * x[rows]).backward()
        optimizer.step()
