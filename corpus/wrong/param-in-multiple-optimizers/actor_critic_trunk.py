"""Both optimizers own the shared trunk and step it after one backward of the summed loss: 7e-3 in the first
update in place of 2e-3."""

import torch
from torch import nn
from torch.distributions import Categorical
from torch.optim import Adam


class Corridor:
    """Walk right for a reward; eight walkers at once."""

    def __init__(self, length=6, n=8):
        self.length, self.n = length, n
        self.position = torch.zeros(n, dtype=torch.long)

    def observe(self):
        return nn.functional.one_hot(self.position, self.length).float()

    def step(self, action):
        self.position = (self.position + 2 * action - 1).clamp(0, self.length - 1)
        done = self.position == self.length - 1
        reward = done.float() - 0.01
        self.position[done] = 0
        return reward, done


class Agent:
    def __init__(self, obs_dim, n_actions):
        self.trunk = nn.Sequential(nn.Linear(obs_dim, 32), nn.ReLU())
        self.pi = nn.Linear(32, n_actions)
        self.v = nn.Linear(32, 1)
        shared = list(self.trunk.parameters())
        self.pi_opt = Adam([*shared, *self.pi.parameters()], lr=2e-3)  # expect: param-in-multiple-optimizers
        self.v_opt = Adam([*shared, *self.v.parameters()], lr=5e-3)  # expect: param-in-multiple-optimizers

    def __call__(self, obs):
        h = self.trunk(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)

    def learn(self, log_probs, values, returns):
        advantage = returns - values
        loss = -(log_probs * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean()
        self.pi_opt.zero_grad()
        self.v_opt.zero_grad()
        loss.backward()
        self.pi_opt.step()
        self.v_opt.step()


def main(updates=6, horizon=8, gamma=0.95):
    torch.manual_seed(14)
    env, agent = Corridor(), Agent(6, 2)
    for update in range(updates):
        log_probs, values, rewards, dones = [], [], [], []
        for _ in range(horizon):
            dist, value = agent(env.observe())
            action = dist.sample()
            reward, done = env.step(action)
            log_probs.append(dist.log_prob(action))
            values.append(value)
            rewards.append(reward)
            dones.append(done)
        running, returns = agent(env.observe())[1].detach(), []
        for reward, done in zip(reversed(rewards), reversed(dones)):
            running = reward + gamma * running * (~done)
            returns.insert(0, running)
        agent.learn(torch.stack(log_probs), torch.stack(values), torch.stack(returns))
        print(f"update {update}: reward {torch.stack(rewards).sum().item():.2f}")


main()
