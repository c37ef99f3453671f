"""The first backward serves only to get the gradient of the input; the parameter gradients that come with it are cleared
before the update's own backward."""

import torch
import torch.nn as nn

torch.manual_seed(8)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
labels = torch.randint(0, 2, (200,))
images = 0.3 * torch.rand(200, 1, 6, 6)
images[labels == 1, :, 1:3, 1:3] += 0.4
epsilon = 0.05


def fgsm_attack(image, data_grad):
    return torch.clamp(image + epsilon * data_grad.sign(), 0, 1)


for epoch in range(2):
    running = 0.0
    for data, target in zip(images.split(20), labels.split(20)):
        data = data.clone()
        data.requires_grad = True
        criterion(model(data), target).backward()
        perturbed = fgsm_attack(data.detach(), data.grad)

        optimizer.zero_grad()
        loss = 0.5 * criterion(model(data.detach()), target) + 0.5 * criterion(model(perturbed), target)
        loss.backward()
        optimizer.step()
        running += loss.item() / 10
    print(f"epoch {epoch} loss {running:.4f}")
