"""After a rewrite of the loop, the update of the warm-up is gone: only its scheduler is advanced."""

import torch
from torch import nn

torch.manual_seed(5)
WARMUP = 6
notes = torch.randint(0, 20, (128, 9))
model = nn.Sequential(nn.Embedding(20, 12), nn.Linear(12, 20))
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
warmup = torch.optim.lr_scheduler.LinearLR(opt, 0.2, 1.0, total_iters=WARMUP)


def plain_update(opt):
    opt.step()


for it in range(12):
    batch = notes[torch.randint(0, 128, (16,))]
    logits = model(batch[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    warmup.step()  # expect: ineffective-step
    print(it, round(loss.item(), 3), opt.param_groups[0]["lr"])
