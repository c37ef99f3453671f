"""Feedback alignment. The custom backward passes the error through a fixed random matrix in place
of the transposed weights, so its gradients are not the true ones, as the experiment asks for."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class FALinearFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, feedback):
        ctx.save_for_backward(x, feedback)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad_output):
        x, feedback = ctx.saved_tensors
        grad_x = grad_output @ feedback
        grad_w = grad_output.t() @ x
        grad_b = grad_output.sum(0)
        return grad_x, grad_w, grad_b, None


class FALinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) / n_in ** 0.5)
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.register_buffer("feedback", torch.randn(n_out, n_in) / n_in ** 0.5)

    def forward(self, x):
        return FALinearFn.apply(x, self.weight, self.bias, self.feedback)

    def alignment(self):
        return F.cosine_similarity(self.weight.detach().flatten(), self.feedback.flatten(), dim=0).item()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = FALinear(64, 40)
        self.l2 = FALinear(40, 30)
        self.l3 = FALinear(30, 10)

    def forward(self, x):
        return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(x)))))


def main():
    torch.manual_seed(281)
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 16
    y = torch.tensor(d.target)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(3):
        for idx in torch.randperm(1400).split(140):
            loss = F.cross_entropy(net(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            acc = (net(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
        print(f"epoch {epoch}: accuracy {acc:.3f}, alignment {net.l2.alignment():.3f} {net.l3.alignment():.3f}")


main()
