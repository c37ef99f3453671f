"""The soft update is written the wrong way round: the online network is pulled to the slow target after each step and
the target never moves."""

import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "s a r s2 done")
random.seed(0)
torch.manual_seed(0)


def make_net():
    return nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2))


def one_hot(i):
    return F.one_hot(torch.tensor(i), 5).float()


def soft_update(net, target_net, tau):
    with torch.no_grad():
        for p, tp in zip(net.parameters(), target_net.parameters()):
            p.copy_(tau * p + (1 - tau) * tp)  # expect: inplace-param-update


net, target_net = make_net(), make_net()
target_net.load_state_dict(net.state_dict())
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
buffer = deque(maxlen=500)

for epoch in range(2):
    for episode in range(12):
        pos, losses = 0, []
        for t in range(10):
            a = random.randrange(2) if random.random() < 0.5 else net(one_hot(pos)).argmax().item()
            nxt = min(4, pos + 1) if a else max(0, pos - 1)
            buffer.append(Transition(one_hot(pos), a, float(nxt == 4), one_hot(nxt), float(nxt == 4)))
            pos = nxt
            if pos == 4:
                break
        if len(buffer) < 32:
            continue
        batch = Transition(*zip(*random.sample(buffer, 32)))
        q = net(torch.stack(batch.s)).gather(1, torch.tensor(batch.a)[:, None]).squeeze(1)
        with torch.no_grad():
            nxt_q = target_net(torch.stack(batch.s2)).max(1).values
            target = torch.tensor(batch.r) + 0.9 * (1 - torch.tensor(batch.done)) * nxt_q
        loss = F.smooth_l1_loss(q, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        soft_update(net, target_net, tau=0.05)
        losses.append(loss.item())
    print(f"epoch {epoch}: td loss {losses[-1]:.4f}, q(start) {net(one_hot(0)).max().item():.3f}")
