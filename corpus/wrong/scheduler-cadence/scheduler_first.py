"""The scheduler advances before the optimizer, so the first value of the schedule is never used and every update runs
at the next one's rate."""

import torch
import torch.nn.functional as F

torch.manual_seed(6)

V, D, T = 24, 16, 12
stream = torch.cumsum(torch.randint(0, 3, (2000,)), 0) % V

emb = torch.nn.Embedding(V, D)
rnn = torch.nn.RNN(D, 32, batch_first=True)
out = torch.nn.Linear(32, V)
params = [*emb.parameters(), *rnn.parameters(), *out.parameters()]
opt = torch.optim.SGD(params, lr=1.0, momentum=0.5)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.7)

for epoch in range(2):
    total = 0.0
    for it in range(6):
        starts = torch.randint(0, len(stream) - T - 1, (16,))
        seq = torch.stack([stream[s : s + T + 1] for s in starts])
        logits = out(rnn(emb(seq[:, :-1]))[0])
        loss = F.cross_entropy(logits.reshape(-1, V), seq[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        sched.step()  # expect: scheduler-cadence
        opt.step()
        total += loss.item()
    print("epoch %d nll %.3f" % (epoch, total / 6))
