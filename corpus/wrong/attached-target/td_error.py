"""The value of the next state keeps its graph in the error of the critic."""

import torch
from torch import nn
from dataclasses import dataclass


@dataclass
class Args:
    gamma: float = 0.95
    lr: float = 1e-3


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, obs):
        return self.net(obs).squeeze(-1)


def td_error(critic, obs, rew, nxt, args):
    return rew + args.gamma * critic(nxt) - critic(obs)  # expect: attached-target


def main(args):
    torch.manual_seed(0)
    critic = Critic()
    opt = torch.optim.Adam(critic.parameters(), lr=args.lr)
    for _ in range(25):
        obs, nxt = torch.randn(16, 3), torch.randn(16, 3)
        delta = td_error(critic, obs, obs.sum(1), nxt, args)
        loss = delta.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())


main(Args())
