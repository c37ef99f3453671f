"""Batches that cannot be read, trimmed or split, budgets that are too small, and wrong calls of losses."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradgate as gg
from gradgate.losses import clip_loss, info_nce, siglip_loss
from gradgate.planning import Plan

MODEL = nn.Linear(8, 1)
LENGTHS = [1, 2, 4]
MASK = torch.arange(4) < torch.tensor(LENGTHS)[:, None]
IDS = torch.where(MASK, torch.arange(1, 13).view(3, 4), 0)
FOUR = torch.ones(4, 8)
ROWS = torch.ones(3, 5)


def plan(batch: Any = FOUR, **options: Any) -> Plan:
    weight = nn.Parameter(torch.ones(()))

    def loss_fn(part: Any) -> Tensor:
        tensors = part.values() if isinstance(part, dict) else [part]
        return sum((weight * each).mean() for each in tensors if isinstance(each, Tensor))  # type: ignore[return-value]

    return gg.plan(loss_fn, batch, **{"budget_bytes": "1 MB", **options})


def of_text(**options: Any) -> Plan:
    """Plan ids and a mask, and what is given besides."""
    more = options.pop("more", {})
    return plan({"ids": IDS, "mask": MASK, **more}, **{"lengths": "mask", **options})


def returning(loss: Any) -> Plan:
    return gg.plan(lambda _: loss, FOUR, budget_bytes="1 MB")


def on_the_left() -> dict[str, Tensor]:
    return {"ids": IDS.flip(1), "mask": MASK.flip(1)}


def padded_to_powers_of_two() -> Plan:
    def loss_fn(x: Tensor) -> Tensor:
        padded = F.pad(MODEL(x), (0, 0, 0, (1 << (len(x) - 1).bit_length()) - len(x)))
        return padded.exp().sin().mean()

    return gg.plan(loss_fn, torch.ones(300, 8), budget_bytes="4 KB")


def kept_in_a_slot() -> Plan:
    class Slotted:
        __slots__ = ("kept",)

    slotted = Slotted()

    def loss_fn(x: Tensor) -> Tensor:
        loss = MODEL(x).mean()
        setattr(slotted, "kept", x * 2)  # noqa: B010 - a name that the plan does not see
        return loss

    return gg.plan(loss_fn, FOUR, budget_bytes="1 MB")


def on_a_device_that_does_not_tell() -> Plan:
    model = nn.Linear(8, 1, device="meta")
    return gg.plan(lambda x: model(x.to("meta")).mean(), FOUR)


def state_unseen() -> Plan:
    optimizer = torch.optim.Adafactor(MODEL.parameters())  # asks for a number in its step
    return gg.plan(lambda x: MODEL(x).mean(), FOUR, budget_bytes="1 MB", optimizer=optimizer)


def nested(*parts: Tensor) -> Tensor:
    return torch.nested.nested_tensor(list(parts), layout=torch.jagged)


def differentiate_twice() -> None:
    (gradient,) = torch.autograd.grad(clip_loss(Q, Q.detach()), Q, create_graph=True)
    gradient.sum().backward()


Q = torch.eye(3, requires_grad=True)
WIDER = {"ids": torch.cat([IDS, IDS], 1), "mask": torch.cat([MASK, ~MASK], 1)}

CASES: dict[str, Any] = {
    "a budget without a unit": lambda: plan(budget_bytes="8"),
    "an unknown amount of free memory": on_a_device_that_does_not_tell,
    "a budget below the model": lambda: gg.plan(lambda x: MODEL(x).mean(), FOUR, budget_bytes=10),
    "a sample beyond the budget": lambda: gg.plan(lambda x: MODEL(x).mean(), FOUR, budget_bytes=75),
    "a text beyond the budget": lambda: of_text(budget_bytes=60),
    "a batch without samples": lambda: plan(torch.ones(0, 8)),
    "no batch": lambda: plan({"rate": 2.0}),
    "several batches": lambda: plan([{"x": FOUR}, {"x": FOUR}]),
    "fields of different sizes": lambda: plan({"x": FOUR, "y": torch.ones(3)}),
    "a list of another size": lambda: plan({"x": FOUR, "y": [1, 2, 3]}),
    "a mask of the length of the batch": lambda: plan({"x": torch.ones(4, 4, 8), "mask": torch.ones(4, 4)}),
    "a nested tensor": lambda: plan({"x": nested(ROWS, ROWS)}),
    "a sparse tensor": lambda: plan({"x": FOUR, "graph": torch.eye(4).to_sparse()}),
    "a packed sequence": lambda: plan({"x": nn.utils.rnn.pack_sequence([ROWS, ROWS])}),
    "a dict of samples by number": lambda: plan({7: ROWS, 9: ROWS}),
    "an unreadable field": lambda: plan({"x": FOUR, "y": object.__new__(type("Thing", (), {}))}),
    "a list of as many lists": lambda: plan({"x": torch.ones(2), "y": [torch.ones(2), torch.ones(2)]}),
    "two readings of a batch": lambda: plan({"y": [[torch.ones(2)], [torch.ones(2)], [torch.ones(2)]]}),
    "an unknown field": lambda: plan({"x": FOUR}, batch_dim={"y": 0}),
    "a dimension that is a word": lambda: plan(FOUR, batch_dim="rows"),
    "a dimension too many": lambda: plan({"x": torch.ones(4)}, batch_dim={"x": 1}),
    "a planned loss that is a vector": lambda: returning(MODEL(FOUR)),
    "a planned loss without a graph": lambda: returning(torch.ones(())),
    "a planned loss that is a number": lambda: returning(3.0),
    "lengths by an unknown key": lambda: of_text(lengths="sizes"),
    "lengths by a key of no dict": lambda: plan(FOUR, lengths="mask"),
    "lengths of fewer samples": lambda: plan(FOUR, lengths=[1, 2]),
    "lengths that are a number": lambda: plan(FOUR, lengths=5),
    "a negative length": lambda: plan(FOUR, lengths=[1, 2, -3, 4]),
    "padding on the left": lambda: plan(on_the_left(), lengths="mask"),
    "a mask of the padding": lambda: plan({"ids": IDS, "mask": ~MASK}, lengths="mask"),
    "lengths of texts padded on the left": lambda: plan({"ids": on_the_left()["ids"]}, lengths=LENGTHS),
    "lengths beside fields of two widths": lambda: plan({"ids": IDS, "x": torch.ones(3, 9)}, lengths=LENGTHS),
    "a field that may be padded": lambda: of_text(more={"image": torch.rand(3, 4, 4)}),
    "trimming an unknown field": lambda: of_text(trim=["image"]),
    "trimming a field of another width": lambda: of_text(more={"x": torch.ones(3, 7)}, trim=["ids", "x"]),
    "trimming one of two dimensions": lambda: of_text(more={"x": torch.ones(3, 4, 4)}, trim=["ids", "x"]),
    "a length beyond the columns": lambda: plan({"ids": IDS}, lengths=[1, 2, 9], trim=["ids"]),
    "a later field of another width": lambda: of_text().split({**WIDER, "ids": IDS}),
    "another batch with the first one's lengths": lambda: plan(IDS, lengths=LENGTHS).split(IDS.clone()),
    "a rank that does not exist": lambda: plan().split(FOUR, rank=2, ranks=2),
    "another kind of batch": lambda: plan({"x": FOUR}).split(FOUR),
    "an estimate that is uncertain": padded_to_powers_of_two,
    "a state that is not counted": state_unseen,
    "a fake tensor in a slot": kept_in_a_slot,
    "a loss differentiated twice": differentiate_twice,
    "fewer keys than queries": lambda: info_nce(torch.ones(4, 5), ROWS),
    "positives that are fractions": lambda: info_nce(ROWS, ROWS, positives=torch.ones(3)),
    "positives given as a mask": lambda: info_nce(ROWS, ROWS, positives=torch.eye(3) > 0),
    "positives out of range": lambda: info_nce(ROWS, ROWS, positives=torch.tensor([0, 1, 3])),
    "negatives for all queries": lambda: info_nce(ROWS, ROWS, negatives=torch.ones(4, 5)),
    "weights in a column": lambda: clip_loss(ROWS, ROWS, weights=torch.ones(3, 1)),
    "pairs of different sizes": lambda: clip_loss(torch.ones(4, 5), ROWS),
    "a temperature of 0": lambda: siglip_loss(ROWS, ROWS, temperature=0),
    "a temperature for each row": lambda: siglip_loss(ROWS, ROWS, temperature=torch.ones(3)),
    "an unknown reduction": lambda: clip_loss(ROWS, ROWS, reduction="avg"),  # type: ignore[arg-type]
    "SigLIP's reduction": lambda: siglip_loss(ROWS, ROWS, reduction="none"),  # type: ignore[arg-type]
    "the mean of nothing": lambda: gg.Tally().mean,
}
