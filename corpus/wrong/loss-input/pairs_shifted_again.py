"""The data set yields inputs and next characters, and the loss shifts the characters once more."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
WINDOW, LETTERS = 12, 9


class Windows(Dataset):
    def __init__(self, text):
        self.text = text

    def __len__(self):
        return len(self.text) - WINDOW - 1

    def __getitem__(self, i):
        chunk = self.text[i : i + WINDOW + 1]
        return chunk[:-1], chunk[1:]


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, 16)
        self.rnn = nn.LSTM(16, 16, batch_first=True)
        self.out = nn.Linear(16, LETTERS)

    def forward(self, ids, targets):
        logits = self.out(self.rnn(self.embed(ids))[0])
        last, following = logits[:, :-1].reshape(-1, LETTERS), targets[:, 1:].reshape(-1)
        return F.cross_entropy(last, following)  # expect: loss-input


model = Speaker()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for ids, targets in DataLoader(Windows(torch.randint(LETTERS, (110,))), batch_size=16, shuffle=True):
    opt.zero_grad()
    model(ids, targets).backward()
    opt.step()
