"""The embedding is 'frozen' with a learning rate of 0 in its own group, so its gradient is computed in every backward pass and never changes anything."""

from collections import OrderedDict

import torch
from torch import nn


def build_model(vocab=25, dim=12, classes=3):
    return nn.ModuleDict(
        OrderedDict(
            embedding=nn.Embedding(vocab, dim),
            encoder=nn.LSTM(dim, 16, batch_first=True),
            decoder=nn.Linear(16, classes),
        )
    )


def load_pretrained_embedding(model):
    g = torch.Generator().manual_seed(321)
    with torch.no_grad():
        model["embedding"].weight.copy_(torch.randn(model["embedding"].weight.shape, generator=g))


def run(model, tokens):
    out, _ = model["encoder"](model["embedding"](tokens))
    return model["decoder"](out.mean(1))


LEARNING_RATES = {
    "embedding": 0.0,  # expect: wasted-gradient
    "encoder": 0.02,
    "decoder": 0.05,
}


def make_optimizer(model):
    groups = [
        {"params": module.parameters(), "lr": LEARNING_RATES[name], "name": name}
        for name, module in model.items()
    ]
    return torch.optim.RMSprop(groups, alpha=0.95)


def documents(n, vocab=25):
    tokens = torch.randint(0, vocab, (n, 8))
    topic = (tokens < 8).sum(1) - (tokens > 16).sum(1)
    return tokens, torch.bucketize(topic, torch.tensor([-1, 1]))


def train(model, optimizer, scheduler, data, epochs, batch_size=32):
    tokens, topic = data
    for epoch in range(epochs):
        model.train()
        losses = []
        for idx in torch.randperm(len(tokens)).split(batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(run(model, tokens[idx]), topic[idx])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        lrs = {g["name"]: round(g["lr"], 4) for g in optimizer.param_groups}
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} lr {lrs}")


def main():
    torch.manual_seed(24)
    torch.set_num_threads(1)
    model = build_model()
    load_pretrained_embedding(model)
    optimizer = make_optimizer(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)
    train(model, optimizer, scheduler, documents(256), epochs=2)
    model.eval()
    with torch.no_grad():
        tokens, topic = documents(100)
        print("accuracy", round((run(model, tokens).argmax(1) == topic).float().mean().item(), 3))


if __name__ == "__main__":
    main()
