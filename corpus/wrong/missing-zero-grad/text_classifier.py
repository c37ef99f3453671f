"""Gradients are cleared once per epoch and stepped upon at every batch: the eighth step of an epoch is given
the sum of eight batches, and the weights go 4.0 times as far.
"""

import torch
from torch import nn, optim

POSITIVE = "good great fine lovely superb charming bright funny moving clever".split()
NEGATIVE = "bad awful dull boring weak clumsy flat tired grim pointless".split()
FILLER = "the a film plot actor scene it was and very rather with of in this".split()


def make_reviews(n, gen):
    vocab = {w: i for i, w in enumerate(POSITIVE + NEGATIVE + FILLER)}
    texts, labels = [], []
    for _ in range(n):
        label = int(torch.randint(2, (1,), generator=gen))
        mood = POSITIVE if label else NEGATIVE
        picks = [mood[int(torch.randint(10, (1,), generator=gen))] for _ in range(2)]
        picks += [FILLER[int(torch.randint(15, (1,), generator=gen))] for _ in range(6)]
        texts.append([vocab[w] for w in picks])
        labels.append(label)
    return torch.tensor(texts), torch.tensor(labels), len(vocab)


class BagClassifier(nn.Module):
    def __init__(self, vocab_size, embed_dim=16, num_class=2):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, mode="mean")
        self.fc = nn.Linear(embed_dim, num_class)

    def forward(self, text):
        return self.fc(self.embedding(text))


def run_epoch(model, optimizer, criterion, texts, labels, batch_size):
    model.train()
    optimizer.zero_grad()  # expect: missing-zero-grad
    total_acc, total_count, total_loss = 0, 0, 0.0
    for text, label in zip(texts.split(batch_size), labels.split(batch_size)):
        predicted = model(text)
        loss = criterion(predicted, label)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # expect: missing-zero-grad
        total_acc += (predicted.argmax(1) == label).sum().item()
        total_count += label.size(0)
        total_loss += loss.item() * label.size(0)
    return total_loss / total_count, total_acc / total_count


def main():
    torch.manual_seed(12)
    texts, labels, vocab_size = make_reviews(128, torch.Generator().manual_seed(12))
    model = BagClassifier(vocab_size)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(1, 4):
        loss, acc = run_epoch(model, optimizer, criterion, texts, labels, batch_size=16)
        print(f"| epoch {epoch} | loss {loss:.3f} | accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
