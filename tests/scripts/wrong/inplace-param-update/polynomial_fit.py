"""A hand-written gradient step left over from an earlier version runs besides optimizer.step(), so every parameter is updated twice."""

import math

import torch

torch.manual_seed(0)
torch.set_num_threads(1)


class Polynomial3(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.randn(()))
        self.b = torch.nn.Parameter(torch.randn(()))
        self.c = torch.nn.Parameter(torch.randn(()))
        self.d = torch.nn.Parameter(torch.randn(()))

    def forward(self, x):
        return self.a + self.b * x + self.c * x**2 + self.d * x**3

    def string(self):
        return f"y = {self.a.item():.3f} + {self.b.item():.3f} x + {self.c.item():.3f} x^2 + {self.d.item():.3f} x^3"


# Create tensors to hold inputs and outputs; x is scaled to [-1, 1].
x = torch.linspace(-1, 1, 400)
y = torch.sin(math.pi * x)
x_val = torch.rand(100) * 2 - 1
y_val = torch.sin(math.pi * x_val)

model = Polynomial3()
criterion = torch.nn.MSELoss(reduction="mean")
learning_rate = 0.05
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.5)

history = []
for epoch in range(3):
    for idx in torch.randperm(400).split(40):
        # Forward pass: compute predicted y by passing x to the model
        y_pred = model(x[idx])
        loss = criterion(y_pred, y[idx])

        # Zero gradients, perform a backward pass, and update the weights.
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            for param in model.parameters():
                param -= learning_rate * param.grad  # expect: inplace-param-update
        optimizer.step()

    with torch.no_grad():
        val = criterion(model(x_val), y_val).item()
    history.append(val)
    print(f"epoch {epoch}: train {loss.item():.4f} val {val:.4f}")

print("Result:", model.string())
