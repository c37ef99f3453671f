"""The helper that draws a saliency map clears the model between the training loss's backward and the step:
every second of the 12 steps has no gradients at all.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.fc = nn.Linear(8 * 5 * 5, 2)

    def forward(self, x):
        return self.fc(F.avg_pool2d(F.silu(self.conv(x)), 2).flatten(1))


class Logger:
    def __init__(self, every):
        self.every = every
        self.lines = []

    def saliency(self, model, image, label):
        """Where would a change of the image change the score of its class?"""
        image = image.unsqueeze(0).clone().requires_grad_(True)
        score = model(image)[0, label]
        score.backward()  # expect: zero-grad-misplaced
        model.zero_grad()  # expect: zero-grad-misplaced
        return image.grad.abs().squeeze()

    def __call__(self, it, model, images, labels, loss):
        if it % self.every == 0:
            heat = self.saliency(model, images[0], labels[0])
            r, c = divmod(heat.argmax().item(), heat.size(1))
            self.lines.append(f"it {it}: loss {loss.item():.4f}, most salient pixel ({r}, {c})")


def batches(n_batches, size=16):
    g = torch.Generator().manual_seed(2)
    for _ in range(n_batches):
        labels = torch.randint(2, (size,), generator=g)
        images = 0.5 * torch.randn(size, 1, 10, 10, generator=g)
        images[labels == 1, :, 3:6, 3:6] += 1.0
        yield images, labels


def train(model, epochs=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    log = Logger(every=2)
    it = 0
    for _ in range(epochs):
        for images, labels in batches(6):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            log(it, model, images, labels, loss)
            optimizer.step()
            it += 1
    return log.lines


if __name__ == "__main__":
    torch.manual_seed(2)
    print("\n".join(train(ConvNet())))
