"""The watcher looks around without running the user's code: each object's methods run as often as unwatched."""

import functools
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from gradgate.checker.recording import Watcher

CALLS: Counter[str] = Counter()
METHODS = (
    *("__getattribute__", "__len__", "__iter__", "__bool__", "__eq__", "__hash__", "__repr__", "__str__"),
    *(
        "__getitem__",
        "__contains__",
        "__float__",
        "__int__",
        "__index__",
        "__lt__",
        "__dir__",
        "__reversed__",
    ),
    *("items", "keys", "values", "get", "parameters", "named_parameters", "modules", "named_modules"),
    *("children", "named_children", "buffers", "named_buffers", "__next__", "__missing__", "__format__"),
)


def counted(kind: type) -> type:
    """Return a subclass that counts every call of a method that its base has, and computes its class."""

    def counting(name: str) -> Callable[..., Any]:
        method = getattr(kind, name)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            CALLS[f"{kind.__name__}.{name}"] += 1
            return method(*args, **kwargs)

        return call

    def own_class(_: Any) -> type:
        CALLS[f"{kind.__name__}.__class__"] += 1
        return kind

    methods = {name: counting(name) for name in METHODS if getattr(kind, name, None) is not None}
    return type(f"Counted{kind.__name__}", (kind,), {**methods, "__class__": property(own_class)})


class Lazy:
    """What a proxy is before it loads: whoever touches it imports half a library."""

    def __init__(self) -> None:
        object.__setattr__(self, "fields", {"weight": torch.ones(2)})

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        CALLS["Lazy.__dict__"] += 1
        return {}

    def __getattr__(self, name: str) -> Any:
        CALLS[f"Lazy.{name}"] += 1
        raise ImportError(name)

    def __call__(self, *args: Any) -> Any:
        return args[0] if args else None


class Sequence:
    """A list of the user's own, which is none of Python's."""

    def __init__(self, *items: Any) -> None:
        self.inner = list(items)

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Any:
        return iter(self.inner)

    def __getitem__(self, place: int) -> Any:
        return self.inner[place]


class Rate:
    """The function of a schedule, as an object."""

    def __init__(self) -> None:
        self.horizon = counted(int)(9)

    def __call__(self, step: int) -> float:
        return 1.0 / (1 + step)


class Scaled(nn.Module):
    def __init__(self, held: list[Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.spare = nn.Linear(2, 2)
        self.dropout = nn.Dropout(0.1)
        self.held = held

    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return self.norm(self.inner(x))


def strangers() -> list[Any]:
    kinds = (dict, OrderedDict, list, tuple, str, Lazy, Sequence, set, ModuleType)
    made = [counted(kind)(*(["x"] if kind is ModuleType else [])) for kind in kinds]
    dict.__setitem__(made[0], "weight", torch.ones(1))
    list.append(made[2], torch.ones(1))
    return made


def train(held: list[Any]) -> None:
    """Train with the user's own objects wherever torch takes some."""
    a, b, c, d, e, f, g, h, i = held
    torch.manual_seed(0)
    model = counted(Scaled)(held)
    parameters = [*nn.Module.parameters(model)]
    momentum = counted(float)(0.9)
    optimizer = torch.optim.SGD(counted(Sequence)(*parameters), lr=0.1, momentum=momentum)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, counted(Rate)())
    batches = counted(Sequence)(*torch.randn(8, 2))
    loader = torch.utils.data.DataLoader(batches, batch_size=4, shuffle=True)
    parameters[0].register_hook(counted(Lazy)())
    kept = []
    for _ in range(6):
        for x in loader:
            model.train()
            model.zero_grad()
            loss = model(x, held, a, key=b).square().mean()
            inner = counted(torch.distributions.Normal)(loss.reshape(1), torch.ones(1))
            torch.distributions.Independent(inner, 1).sample()
            torch.autograd.backward(counted(Sequence)(loss), retain_graph=True)
            kept.append(counted(dict)(loss=loss, key=c))
            torch.autograd.grad(loss, counted(Sequence)(*parameters[:2]), retain_graph=True)
            nn.utils.clip_grad_norm_(counted(Sequence)(*parameters), counted(float)(1.0))
            with torch.no_grad():
                parameters[-1].mul_(counted(float)(1.0))
            model.eval()
            optimizer.step(counted(Lazy)())
        scheduler.step()
    del d, e, f, g, h, i


def calls_of(watch: bool) -> Counter[str]:
    held = strangers()
    scope: dict[str, Any] = {f"name_{place}": each for place, each in enumerate(held)}
    sys.modules["a_lazy_module"] = held[-1]
    code = compile("train(held)", "<stdin>", "exec")  # globals of the user's own
    watcher = Watcher(strict=True)
    CALLS.clear()
    try:
        if watch:
            watcher.start()
        exec(code, scope | {"train": train, "held": held})
    finally:
        watcher.stop()
        del sys.modules["a_lazy_module"]
    if watch:
        watcher.log()
        assert watcher.steps == 12
    return Counter(CALLS)


def test_the_users_objects_are_called_as_often_as_unwatched() -> None:
    plain = calls_of(watch=False)
    assert plain["Sequence.__iter__"] > 12  # torch itself iterates over what it is given
    watched = calls_of(watch=True)
    # Under a mode, torch reads the arguments of an operation twice.
    assert (watched - plain).keys() <= {"float.__getattribute__", "float.__class__"}
    # What torch makes a list of, the watcher has made one of before: torch asks that one for its class.
    assert {name for name in plain if watched[name] != plain[name]} <= {
        "Sequence.__class__",
        "Sequence.__getattribute__",
        "float.__class__",
        "float.__getattribute__",
    }


def test_a_look_that_runs_the_users_code_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = calls_of(watch=False)
    # private: the watcher as it would be with isinstance, which reads __class__
    name = "gradgate.checker.recording._names.is_a"
    monkeypatch.setattr(name, lambda thing, *kinds: isinstance(thing, kinds))
    assert calls_of(watch=True) - plain
