"""InfoNCE over a window of four micro-batches, with gradgate. Each micro-batch runs forward twice, first without a
graph; a tower is shared with an ordinary loss; one micro-batch's graph is kept. All on purpose."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import gradgate as gg

torch.manual_seed(0)
digits = load_digits()
images = torch.from_numpy(digits.images / 16).float()[:480]
labels = torch.from_numpy(digits.target)[:480]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.even, self.odd = (
            nn.Sequential(nn.Flatten(), nn.Linear(32, 32), nn.Dropout(0.1), nn.Linear(32, 16))
            for _ in range(2)
        )
        self.classifier = nn.Linear(16, 10)
        self.log_temperature = nn.Parameter(torch.tensor(-2.0))

    def forward(self, images):
        return F.normalize(self.even(images[..., ::2]), dim=1), F.normalize(
            self.odd(images[..., 1::2]), dim=1
        )


model = Towers()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulator = gg.Accumulator(optimizer, model=model, clip_norm=1.0)


def loss_fn(codes):
    return gg.losses.clip_loss(*codes, temperature=model.log_temperature.exp())


for epoch in range(2):
    order = torch.randperm(len(images))
    for batch in order.split(140):  # the last one holds 60
        with accumulator.update() as update:
            update.backward_coupled(model, [images[part] for part in batch.split(35)], loss_fn)
            for part in update.micro_batches(batch.split(35)):
                scores = model.classifier(model.even(images[part][..., ::2]))
                update.backward(F.cross_entropy(scores, labels[part]), count=len(part))
    print(f"epoch {epoch}: {update.losses['coupled'].mean:.3f} {update.losses['loss'].mean:.3f}")

again = accumulator.step_coupled(model, images[:70].split(35), loss_fn)
print(f"once more: {again.loss:.3f}")
