"""Character model with padding and accumulation. Each micro-batch is averaged over its own
tokens and divided by the number of micro-batches, although the token counts are unequal."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

PAD = 0
LINES = [
    "the sun rose over the quiet hills and the river",
    "she opened the old wooden box and found a letter",
    "rain again",
    "he ran",
    "no one in the village remembered the name of the man",
    "the train left the station at noon with only two passengers",
    "a bird",
    "stop",
]


class CharLM(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def encode(lines):
    chars = sorted(set("".join(lines)))
    stoi = {c: i + 1 for i, c in enumerate(chars)}
    return [torch.tensor([stoi[c] for c in s]) for s in lines], len(chars) + 1


def collate(seqs):
    return nn.utils.rnn.pad_sequence(seqs, batch_first=True, padding_value=PAD)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=15)
    ap.add_argument("--accum", type=int, default=4)
    ap.add_argument("--dim", type=int, default=24)
    ap.add_argument("--lr", type=float, default=0.3)
    args = ap.parse_args()

    torch.manual_seed(7)
    seqs, vocab = encode(LINES)
    model = CharLM(vocab, args.dim)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    micro = len(seqs) // args.accum

    for step in range(args.steps):
        batches = [collate(seqs[i * micro:(i + 1) * micro]) for i in range(args.accum)]
        total = sum(int((b[:, 1:] != PAD).sum()) for b in batches)
        opt.zero_grad()
        logged = 0.0
        for b in batches:
            logits = model(b[:, :-1])
            nll = F.cross_entropy(logits.reshape(-1, vocab), b[:, 1:].reshape(-1),
                                  ignore_index=PAD, reduction="sum")
            count = int((b[:, 1:] != PAD).sum())
            loss = nll / count / args.accum  # expect: mean of unequal token means
            loss.backward()
            logged += nll.item()
        opt.step()
        if step % 5 == 0:
            print(f"step {step:3d}  nll/token {logged / total:.4f}")
    print(f"final nll/token {logged / total:.4f}")


if __name__ == "__main__":
    main()
