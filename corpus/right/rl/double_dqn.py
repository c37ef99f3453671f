"""The target network is never trained and gets its weights by load_state_dict every few steps; the optimizer starts only
when the memory is full enough."""

import argparse
import random
from collections import deque

import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--episodes", type=int, default=24)
ap.add_argument("--sync-every", type=int, default=10)
ap.add_argument("--warmup", type=int, default=40)
args = ap.parse_args()
random.seed(0)
torch.manual_seed(0)


def net():
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))


def enc(p):
    v = torch.zeros(6)
    v[p] = 1
    return v


online, target = net(), net()
target.load_state_dict(online.state_dict())
opt = torch.optim.Adam(online.parameters(), lr=5e-3)
memory, steps, lengths = deque(maxlen=300), 0, []

for ep in range(args.episodes):
    pos, t, eps = 0, 0, max(0.1, 1 - ep / 12)
    while pos != 5 and t < 12:
        with torch.no_grad():
            act = random.randrange(2) if random.random() < eps else online(enc(pos)).argmax().item()
        nxt = min(5, pos + 1) if act else max(0, pos - 1)
        memory.append((enc(pos), act, float(nxt == 5), enc(nxt), float(nxt == 5)))
        pos, t = nxt, t + 1
        if len(memory) < args.warmup:
            continue
        s, a, r, s2, d = zip(*random.sample(memory, 32))
        s, s2 = torch.stack(s), torch.stack(s2)
        a, r, d = torch.tensor(a), torch.tensor(r), torch.tensor(d)
        q = online(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            best = online(s2).argmax(1, keepdim=True)
            backup = r + 0.9 * (1 - d) * target(s2).gather(1, best).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q, backup)
        opt.zero_grad()
        loss.backward()
        for p in online.parameters():
            p.grad.data.clamp_(-1, 1)
        opt.step()
        steps += 1
        if steps % args.sync_every == 0:
            target.load_state_dict(online.state_dict())
    lengths.append(t)
print(f"{steps} updates; length first 8: {sum(lengths[:8]) / 8:.1f}, last 8: {sum(lengths[-8:]) / 8:.1f}")
