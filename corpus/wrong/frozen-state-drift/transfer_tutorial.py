"""Transfer learning as tutorials write it: a frozen backbone, a new head, and `model.train()` for every epoch. The
backbone's batch norms go on adapting to the new data: from the first step to the last their means move by a quarter
of a standard deviation."""

import copy

import torch
from torch import nn


def backbone():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = backbone()
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(self.features(x))


def train_model(model, batches, criterion, optimizer, scheduler, num_epochs):
    best, best_correct = copy.deepcopy(model.state_dict()), 0
    for epoch in range(num_epochs):
        for phase in ("train", "val"):
            if phase == "train":
                model.train()  # expect: frozen-state-drift
            else:
                model.eval()
            correct, running = 0, 0.0
            for inputs, labels in batches[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running += loss.item()
                correct += int((outputs.argmax(1) == labels).sum())
            if phase == "train":
                scheduler.step()
            elif correct > best_correct:
                best, best_correct = copy.deepcopy(model.state_dict()), correct
            print(f"{epoch} {phase} {running:.3f}")
    model.load_state_dict(best)
    return model


def main():
    torch.manual_seed(0)
    data = [(0.5 + 2 * torch.rand(8, 3, 8, 8), torch.randint(2, (8,))) for _ in range(6)]
    model = Classifier(classes=10)
    for parameter in model.parameters():
        parameter.requires_grad = False
    model.fc = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    train_model(
        model, {"train": data[:4], "val": data[4:]}, nn.CrossEntropyLoss(), optimizer, scheduler, num_epochs=2
    )


main()
