"""The advantage in the actor's loss is not detached, so the policy gradient flows into the critic's weights and is applied by the critic's step."""

import torch
from torch import nn
from torch.distributions import Categorical


class ChainMDP:
    n_states = 6

    def __init__(self, slip=0.1):
        self.slip = slip

    def reset(self):
        self.s, self.t = 0, 0
        return self.s

    def step(self, a):
        if torch.rand(()).item() < self.slip:
            a = 1 - a
        reward = 0.0
        if a == 1:
            self.s = min(self.s + 1, self.n_states - 1)
            reward = 1.0 if self.s == self.n_states - 1 else 0.0
        else:
            self.s, reward = 0, 0.1
        self.t += 1
        return self.s, reward, self.t >= 20


def one_hot(states, n=ChainMDP.n_states):
    return nn.functional.one_hot(torch.as_tensor(states), n).float()


def build_networks(hidden=16):
    actor = nn.Sequential(nn.Linear(ChainMDP.n_states, hidden), nn.Tanh(), nn.Linear(hidden, 2))
    critic = nn.Sequential(nn.Linear(ChainMDP.n_states, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    return actor, critic


def run_episode(env, actor):
    states, actions, rewards = [], [], []
    s, done = env.reset(), False
    while not done:
        with torch.no_grad():
            a = Categorical(logits=actor(one_hot(s))).sample().item()
        states.append(s)
        actions.append(a)
        s, r, done = env.step(a)
        rewards.append(r)
    return one_hot(states), torch.tensor(actions), rewards


def discounted(rewards, gamma):
    g, out = 0.0, []
    for r in rewards[::-1]:
        g = r + gamma * g
        out.append(g)
    return torch.tensor(out[::-1])


def losses(actor, critic, obs, actions, target):
    value = critic(obs).squeeze(-1)
    dist = Categorical(logits=actor(obs))
    advantage = target - value
    actor_loss = -(dist.log_prob(actions) * advantage).mean()  # expect: attached-target
    actor_loss = actor_loss - 0.01 * dist.entropy().mean()
    critic_loss = nn.functional.smooth_l1_loss(value, target)
    return actor_loss, critic_loss


def main(epochs=2, episodes=8, gamma=0.95):
    torch.manual_seed(66)
    torch.set_num_threads(1)
    env = ChainMDP()
    actor, critic = build_networks()
    actor_opt = torch.optim.Adam(actor.parameters(), lr=5e-3)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-2)
    for epoch in range(epochs):
        returns = []
        for _ in range(episodes):
            obs, actions, rewards = run_episode(env, actor)
            a_loss, c_loss = losses(actor, critic, obs, actions, discounted(rewards, gamma))
            actor_opt.zero_grad()
            critic_opt.zero_grad()
            (a_loss + c_loss).backward()
            actor_opt.step()
            critic_opt.step()
            returns.append(sum(rewards))
        print(f"epoch {epoch} return {sum(returns) / episodes:.2f} critic loss {c_loss.item():.3f}")


if __name__ == "__main__":
    main()
