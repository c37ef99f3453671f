"""The image features are detached before they start the decoder, so the image encoder gets no gradient from
the captions."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
BOS, EOS = 0, 1
COLOURS = {0: 2, 1: 3, 2: 4}


def render(n):
    colour = torch.randint(0, 3, (n,))
    count = torch.randint(1, 4, (n,))
    img = torch.zeros(n, 3, 6, 6)
    for k in range(n):
        for j in range(count[k]):
            img[k, colour[k], 2 * j : 2 * j + 2, 1:4] = 1
    caption = torch.stack([torch.full((n,), BOS), count + 4, colour + 2, torch.full((n,), EOS)], 1)
    return img + 0.1 * torch.randn_like(img), caption


class ImageEncoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)
        self.fc = nn.Linear(8 * 4, dim)

    def forward(self, img):
        return self.fc(F.relu(self.conv(img)).flatten(1))


class CaptionDecoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.word = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, features, tokens):
        h0 = features.detach().unsqueeze(0)  # expect: broken-graph
        states, _ = self.gru(self.word(tokens), h0)
        return self.out(states)


encoder, decoder = ImageEncoder(24), CaptionDecoder(8, 24)
optimizer = torch.optim.Adam(list(encoder.parameters()) + list(decoder.parameters()), lr=0.01)

for epoch in range(3):
    for _ in range(8):
        img, cap = render(24)
        logits = decoder(encoder(img), cap[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), cap[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} caption loss {loss.item():.4f}")
