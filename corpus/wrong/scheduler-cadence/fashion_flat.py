"""The milestones are counted in epochs but the scheduler is stepped after every batch, so the learning rate is a hundredth after two updates."""

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

# hyper parameters
n_epochs = 3
batch_size = 64
learning_rate = 0.08
milestones = [1, 2]  # epochs at which the learning rate drops

# data
data, target = load_digits(return_X_y=True)
X = torch.from_numpy(data).float() / 16
y = torch.from_numpy(target)
shuffle = torch.randperm(len(X))
X_train, y_train = X[shuffle[:640]], y[shuffle[:640]]
X_test, y_test = X[shuffle[640:1000]], y[shuffle[640:1000]]


def get_batches():
    order = torch.randperm(len(X_train))
    for start in range(0, len(order), batch_size):
        sel = order[start : start + batch_size]
        yield X_train[sel], y_train[sel]


# network
model = nn.Sequential(
    nn.Linear(64, 48),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(48, 10),
    nn.LogSoftmax(dim=1),
)

optimizer = optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
scheduler = optim.lr_scheduler.MultiStepLR(optimizer, milestones=milestones, gamma=0.1)

train_losses, test_losses = [], []
for epoch in range(n_epochs):
    running_loss = 0
    n_batches = 0
    for images, labels in get_batches():
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()  # expect: scheduler-cadence
        running_loss += loss.item()
        n_batches += 1
    with torch.no_grad():
        model.eval()
        log_ps = model(X_test)
        test_loss = F.nll_loss(log_ps, y_test).item()
        accuracy = (log_ps.argmax(1) == y_test).float().mean().item()
    model.train()
    train_losses.append(running_loss / n_batches)
    test_losses.append(test_loss)
    print(
        "Epoch: {}/{}.. ".format(epoch + 1, n_epochs),
        "Training Loss: {:.3f}.. ".format(train_losses[-1]),
        "Test Loss: {:.3f}.. ".format(test_losses[-1]),
        "Test Accuracy: {:.3f}".format(accuracy),
    )
