"""CTC is given the scores of the last layer: without log_softmax it only pushes the scores up."""

import torch
from torch import nn

torch.manual_seed(0)
CLASSES, FRAMES = 6, 20


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 16, batch_first=True)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


model = Reader()
criterion = nn.CTCLoss(blank=0, zero_infinity=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
codes = torch.randn(CLASSES, 4)
for step in range(8):
    labels = torch.randint(1, CLASSES, (16, 4))
    x = codes[labels].repeat_interleave(FRAMES // 4, 1) + 0.1 * torch.randn(16, FRAMES, 4)
    scores = model(x).transpose(0, 1)
    lengths = torch.full((16,), FRAMES), torch.full((16,), 4)
    loss = criterion(scores, labels, *lengths)  # expect: loss-input
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 4 == 3:
        print(f"{step + 1} {loss.item():.3f}")
