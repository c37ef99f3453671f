"""Law, in trainers: gradients that autograd has stored in one memory are added up and divided once each."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.integrations import exact_cases
from tests.integrations.exact_cases import accelerate, lightning, tokens, transformers

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(isinstance.treespec|LeafSpec).*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging"),
]


class Placed(nn.Module):
    """Embeds places in several ways. Some of their gradients are one tensor, and some are views inside it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 9))
        self.place, self.kind = nn.Parameter(torch.randn(7, 6)), nn.Parameter(torch.randn(7, 6))
        self.first, self.rest = nn.Parameter(torch.randn(1, 6)), nn.Parameter(torch.randn(6, 6))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.cat([self.first, self.rest])
        places = self.place[None] + self.kind[None] + rows.unsqueeze(0)
        return self.layers[1:](self.layers[0](x) + places)


class Labelled(Placed):
    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = super().forward(input_ids)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def labelled(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=x, labels=y)["loss"]
    return loss


def run(trainer: str) -> list[float]:
    if trainer == "transformers":
        return transformers("bert", True, wrap=lambda _: Labelled(), truth=labelled)
    return {"lightning": lightning, "accelerate": accelerate}[trainer](tokens, True)


@pytest.mark.parametrize("trainer", ["lightning", "accelerate", "transformers"])
def test_gradients_in_one_memory_are_divided_once_each(trainer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_cases, "net", Placed)
    assert max(run(trainer)) < 1e-12
