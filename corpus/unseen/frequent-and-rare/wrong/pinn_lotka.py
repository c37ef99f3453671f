"""Physics-informed net for predator and prey. The derivative is taken of the sum of both outputs,
so that both equations get dx/dt + dy/dt."""
import torch
import torch.nn as nn

ALPHA, BETA, DELTA, GAMMA = 1.1, 0.4, 0.1, 0.4
X0, Y0 = 2.0, 1.0
T_MAX = 3.0


class Solution(nn.Module):
    """Satisfies the initial condition by construction."""

    def __init__(self, hidden=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, hidden), nn.Tanh(),
            nn.Linear(hidden, hidden), nn.Tanh(),
            nn.Linear(hidden, 2),
        )
        self.register_buffer("start", torch.tensor([[X0, Y0]]))

    def forward(self, t):
        return self.start + t * self.net(t / T_MAX)


def derivatives(xy, t):
    return torch.autograd.grad(xy, t, torch.ones_like(xy), create_graph=True)[0]  # expect: derivative of the sum of two outputs


def rhs(xy):
    x, y = xy[:, :1], xy[:, 1:]
    return torch.cat([ALPHA * x - BETA * x * y, DELTA * x * y - GAMMA * y], 1)


def residual_loss(model, n):
    t = (torch.rand(n, 1) * T_MAX).requires_grad_(True)
    xy = model(t)
    residual = derivatives(xy, t) - rhs(xy)
    return residual.pow(2).mean()


def reference(n=3000):
    xy = torch.tensor([[X0, Y0]])
    dt = T_MAX / n
    for _ in range(n):
        k = rhs(xy)
        xy = xy + dt * rhs(xy + 0.5 * dt * k)
    return xy


def main():
    torch.manual_seed(50)
    model = Solution()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(30):
        optimizer.zero_grad()
        loss = residual_loss(model, 128)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:2d}  residual {loss.item():.4f}")
    with torch.no_grad():
        end = model(torch.tensor([[T_MAX]]))
    print("end (net):", [round(v, 3) for v in end[0].tolist()])
    print("end (ode):", [round(v, 3) for v in reference(300)[0].tolist()])


main()
