"""Preference optimization. The reference is a copy taken before training, evaluated without
gradients; at the first step the margin is zero, and later it is not."""
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, LENGTH, BETA = 10, 6, 1.0


class TinyLM(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.emb = nn.Embedding(VOCAB + 1, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        h, _ = self.rnn(self.emb(tokens))
        return self.out(h)


def with_bos(seq):
    bos = torch.full((len(seq), 1), VOCAB)
    return torch.cat([bos, seq[:, :-1]], 1)


def sequence_logp(model, seq):
    logp = F.log_softmax(model(with_bos(seq)), dim=-1)
    return logp.gather(-1, seq.unsqueeze(-1)).squeeze(-1).sum(1)


def preference_pairs(n):
    """The sequence with the larger sum of symbols is preferred."""
    a = torch.randint(0, VOCAB, (n, LENGTH))
    b = torch.randint(0, VOCAB, (n, LENGTH))
    better = (a.sum(1) >= b.sum(1)).unsqueeze(1)
    return torch.where(better, a, b), torch.where(better, b, a)


def pretrain(model, steps=10):
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        seq = torch.randint(0, VOCAB, (64, LENGTH))
        loss = -sequence_logp(model, seq).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model


def dpo_loss(policy, reference, chosen, rejected):
    pi_c, pi_r = sequence_logp(policy, chosen), sequence_logp(policy, rejected)
    with torch.no_grad():
        ref_c, ref_r = sequence_logp(reference, chosen), sequence_logp(reference, rejected)
    margin = BETA * ((pi_c - ref_c) - (pi_r - ref_r))
    return -F.logsigmoid(margin).mean(), margin.detach()


def main():
    torch.manual_seed(121)
    policy = pretrain(TinyLM())
    reference = TinyLM()
    reference.load_state_dict(policy.state_dict())
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    for step in range(25):
        chosen, rejected = preference_pairs(64)
        loss, margin = dpo_loss(policy, reference, chosen, rejected)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            print(f"step {step:2d}  loss {loss.item():.4f}  margin {margin.mean().item():.4f}")


main()
