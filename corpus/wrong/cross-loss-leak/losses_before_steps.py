"""All losses, then all backward calls, then all steps: the critic's step also follows the generator's loss."""

import argparse

import torch
import torch.nn.functional as F


def mlp(*sizes):
    layers = []
    for i, o in zip(sizes[:-1], sizes[1:]):
        layers += [torch.nn.Linear(i, o), torch.nn.SiLU()]
    return torch.nn.Sequential(*layers[:-1])


def losses(nets, real, noise):
    fake = nets["generator"](noise)
    critic = F.relu(1 - nets["critic"](real)).mean() + F.relu(1 + nets["critic"](fake.detach())).mean()
    return {"critic": critic, "generator": -nets["critic"](fake).mean()}


def main(args):
    torch.manual_seed(args.seed)
    nets = {"generator": mlp(4, 32, 2), "critic": mlp(2, 32, 1)}
    optimizers = {name: torch.optim.SGD(net.parameters(), lr=args.lr) for name, net in nets.items()}
    for step in range(args.steps):
        real = torch.randn(64, 2) @ torch.tensor([[1.0, 0.4], [0.0, 0.3]]) + 2
        found = losses(nets, real, torch.randn(64, 4))
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        found["critic"].backward()
        found["generator"].backward()
        optimizers["critic"].step()  # expect: cross-loss-leak
        optimizers["generator"].step()
        if (step + 1) % 10 == 0:
            print(step + 1, {name: round(loss.item(), 3) for name, loss in found.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=8)
    main(parser.parse_args())
