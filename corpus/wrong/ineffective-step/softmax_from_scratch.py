"""The update binds a new tensor to a local name and leaves the parameter as it was: the accuracy stays at 0.167
instead of reaching 0.82."""

import torch
from sklearn.datasets import load_iris

torch.manual_seed(0)

iris = load_iris()
X = torch.tensor(iris.data, dtype=torch.float32)
X = (X - X.mean(0)) / X.std(0)
y = torch.tensor(iris.target)

num_inputs, num_outputs, batch_size, lr, num_epochs = 4, 3, 30, 0.1, 2

W = torch.normal(0, 0.01, size=(num_inputs, num_outputs), requires_grad=True)
b = torch.zeros(num_outputs, requires_grad=True)


def softmax(X):
    X_exp = torch.exp(X)
    return X_exp / X_exp.sum(1, keepdim=True)


def net(X):
    return softmax(torch.matmul(X, W) + b)


def cross_entropy(y_hat, y):
    return -torch.log(y_hat[range(len(y_hat)), y])


def data_iter(batch_size):
    indices = torch.randperm(len(X))
    for i in range(0, len(X), batch_size):
        batch = indices[i : i + batch_size]
        yield X[batch], y[batch]


def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            grad = param.grad / batch_size
            param = param - lr * grad  # expect: ineffective-step


def clear(params):
    for param in params:
        param.grad = None


for epoch in range(num_epochs):
    for features, labels in data_iter(batch_size):
        clear([W, b])
        l = cross_entropy(net(features), labels)  # noqa: E741
        l.sum().backward()
        sgd([W, b], lr, batch_size)
    with torch.no_grad():
        accuracy = (net(X).argmax(1) == y).float().mean()
    print(f"epoch {epoch + 1}, loss {l.mean():.4f}, accuracy {accuracy:.3f}")
