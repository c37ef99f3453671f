"""kl_div takes the student's log-probabilities, and gets its probabilities: the student is hardly drawn to the teacher."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 4)).requires_grad_(False)
student = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
config = {"temperature": 2.0, "weight": 0.7, "steps": 10}
for step in range(config["steps"]):
    x = torch.randn(64, 10)
    y = x[:, :4].argmax(1)
    t = config["temperature"]
    logits = student(x)
    soft = F.softmax(teacher(x) / t, dim=-1)
    distill = (
        F.kl_div(F.softmax(logits / t, dim=-1), soft, reduction="batchmean") * t * t
    )  # expect: loss-input
    loss = config["weight"] * distill + (1 - config["weight"]) * F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        print(f"step {step + 1}: {loss.item():.4f}")
