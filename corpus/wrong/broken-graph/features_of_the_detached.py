"""The features to match are those of the pass that the critic's own loss needs, on the detached sound."""

import torch
from torch import nn
import torch.nn.functional as F


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.score = nn.Linear(10, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, sound):
        low = F.leaky_relu(self.first(sound), 0.1)
        high = F.leaky_relu(self.second(low), 0.1)
        return (low, high), self.score(high)


torch.manual_seed(1)
voice, critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 10)), Critic()
voice_adam = torch.optim.Adam(voice.parameters(), lr=1e-3)
critic_adam = torch.optim.Adam(critic.parameters(), lr=1e-3)
song = torch.randn(4, 10)
for _ in range(15):
    text = torch.randn(16, 4)
    sound, recording = voice(text), torch.sin(text @ song)
    features_real, real = critic(recording)
    features_fake, fake = critic(sound.detach())  # expect: broken-graph
    _, convincing = critic(sound)

    match = F.l1_loss(features_fake[0], features_real[0].detach())
    voice_adam.zero_grad()
    (F.mse_loss(convincing, torch.ones_like(convincing)) + 2 * match).backward(retain_graph=True)
    voice_adam.step()

    critic_adam.zero_grad()
    (F.mse_loss(real, torch.ones_like(real)) + F.mse_loss(fake, torch.zeros_like(fake))).backward()
    critic_adam.step()
