"""The models that several benchmarks share."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradgate as gg

Batch = tuple[Tensor, Tensor]


def tiny(device: str = "cpu") -> tuple[nn.Module, list[Batch]]:
    """A 4-layer MLP of width 256, and 8 micro-batches of 8. Overhead is most visible here."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())][:-1]
    batches = [(torch.randn(8, 256), torch.randint(256, (8,))) for _ in range(8)]
    return nn.Sequential(*layers).to(device), [(x.to(device), y.to(device)) for x, y in batches]


class Transformer(nn.Module):
    """A language model of 6 layers, d = 256, 4 heads, 128 tokens."""

    def __init__(self, vocabulary: int = 512, width: int = 256, layers: int = 6, time: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(time, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.body(self.tokens(x) + self.places[: x.shape[1]], mask=mask, is_causal=True))


class Recurrent(nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self, vocabulary: int = 512, width: int = 256) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.body = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.tokens(x))[0])


def convolutional() -> nn.Module:
    """A network of six convolutions, for images of 32 by 32."""
    layers: list[nn.Module] = []
    for channels_in, channels in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(channels_in, channels, 3, padding=1), nn.GroupNorm(8, channels), nn.ReLU()]
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 10))


def texts(samples: int, device: str) -> Batch:
    ids = torch.randint(512, (samples, 129), device=device)
    return ids[:, :-1], ids[:, 1:]


def images(samples: int, device: str) -> Batch:
    return torch.randn(samples, 3, 32, 32, device=device), torch.randint(10, (samples,), device=device)


def medium(device: str = "cpu") -> tuple[nn.Module, list[Batch]]:
    """A 6-layer transformer, and 8 micro-batches of 2 sequences of 128 tokens."""
    text = [torch.randint(512, (2, 129)).to(device) for _ in range(8)]
    return Transformer().to(device), [(part[:, :-1], part[:, 1:]) for part in text]


def plain_update(
    model: nn.Module, batches: list[Batch], optimizer: torch.optim.Optimizer, clip_norm: float | None = None
) -> None:
    """The loop that people write by hand."""
    for batch in batches:
        (loss_of(model, batch) / len(batches)).backward()
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    optimizer.zero_grad()


def exact_update(model: nn.Module, batches: list[Batch], accumulator: gg.Accumulator) -> None:
    """The same update with gradgate."""
    with accumulator.update() as update:
        for batch in update.micro_batches(batches):
            update.backward(loss_of(model, batch), count=batch[1].numel())


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten())
