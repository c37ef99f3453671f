"""A vocabulary gets new words and only their vectors are to be trained. The whole table is in the
optimizer; the gradients of the old rows are masked by a hook and there is no decay on the table."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(171)

OLD, NEW, DIM, CONTEXT = 30, 6, 16, 4


class NextWord(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.table = nn.Embedding(vocab, DIM)
        self.mix = nn.Linear(CONTEXT * DIM, DIM)

    def forward(self, context):
        h = torch.tanh(self.mix(self.table(context).flatten(1)))
        return h @ self.table.weight.t()

    @torch.no_grad()
    def extend(self, extra):
        old = self.table.weight
        self.table = nn.Embedding(len(old) + extra, DIM)
        self.table.weight[:len(old)] = old
        self.table.weight[len(old):] = old.mean(0) + 0.1 * torch.randn(extra, DIM)


def sample(n, vocab):
    context = torch.randint(0, vocab, (n, CONTEXT))
    return context, (context[:, -1] + 1) % vocab


def fit(model, optimizer, vocab, steps):
    losses = []
    for _ in range(steps):
        context, target = sample(96, vocab)
        loss = F.cross_entropy(model(context), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


model = NextWord(OLD)
first = fit(model, torch.optim.Adam(model.parameters(), lr=1e-2), OLD, steps=30)
print(f"old words: {first[0]:.3f} -> {first[-1]:.3f}")

model.extend(NEW)
row_mask = torch.zeros(OLD + NEW, 1)
row_mask[OLD:] = 1.0
model.table.weight.register_hook(lambda grad: grad * row_mask)
for p in model.mix.parameters():
    p.requires_grad_(False)

optimizer = torch.optim.AdamW([model.table.weight], lr=5e-2, weight_decay=0.0)
second = fit(model, optimizer, OLD + NEW, steps=30)
print(f"all words: {second[0]:.3f} -> {second[-1]:.3f}")

with torch.no_grad():
    context, target = sample(500, OLD + NEW)
    hit = (model(context).argmax(1) == target).float()
new_target = target >= OLD
print(f"accuracy old {hit[~new_target].mean().item():.3f}, new {hit[new_target].mean().item():.3f}")
