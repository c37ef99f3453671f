"""Of two optimizers that are cleared, only the decoder's steps: the encoder keeps its initial weights."""

import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.GRU(4, 16, batch_first=True), nn.Linear(16, 4)
encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
decoder_optimizer = torch.optim.SGD(decoder.parameters(), lr=0.05)


def train(x, y):
    encoder_optimizer.zero_grad()
    decoder_optimizer.zero_grad()
    _, hidden = encoder(x)
    loss = nn.functional.mse_loss(decoder(hidden[0]), y)
    loss.backward()  # expect: ineffective-step
    decoder_optimizer.step()  # expect: ineffective-step
    return loss.item()


for it in range(20):
    x = torch.randn(8, 5, 4)
    loss = train(x, x.mean(1))
    if it % 10 == 0:
        print(it, loss)
