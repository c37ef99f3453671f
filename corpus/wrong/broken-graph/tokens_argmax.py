"""The generated sequence is turned into hard one-hot tokens by argmax, so the reader's loss never reaches the writer's
embedding or weights except through its small language term."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(50)
N_CONCEPTS, VOCAB, LEN = 8, 6, 3


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.concept = nn.Embedding(N_CONCEPTS, 24)
        self.out = nn.Linear(24, LEN * VOCAB)

    def forward(self, c):
        return self.out(torch.tanh(self.concept(c))).view(-1, LEN, VOCAB)


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(LEN * VOCAB, 32), nn.ReLU(), nn.Linear(32, N_CONCEPTS)
        )

    def forward(self, message):
        return self.net(message)


speaker, listener = Speaker(), Listener()
optimizer = torch.optim.Adam([*speaker.parameters(), *listener.parameters()], lr=0.01)


def play(batch):
    logits = speaker(batch)
    message = F.one_hot(logits.argmax(-1), VOCAB).float()  # expect: broken-graph
    guess = listener(message)
    usage = logits.softmax(-1).mean((0, 1))
    entropy_bonus = -(usage * usage.log()).sum()
    return F.cross_entropy(guess, batch) - 0.01 * entropy_bonus, guess


for epoch in range(4):
    wins = 0
    for _ in range(10):
        batch = torch.randint(0, N_CONCEPTS, (32,))
        loss, guess = play(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wins += (guess.argmax(1) == batch).sum().item()
    print(f"round {epoch} success {wins / 320:.3f}")
