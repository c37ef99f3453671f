"""Tables in notebooks show what print shows. They load nothing, run nothing, and escape all text."""

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import gradgate as gg
from gradgate.notebook_tables import Bar, card

HOSTILE = "<script>alert(1)</script>"


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        assert all(name in ("style", "class") for name, _ in attrs)
        assert all("url(" not in (value or "") for _, value in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())


def flow() -> object:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 1)})
    model.add_module(HOSTILE, nn.Linear(2, 2))
    return gg.flow(lambda: model["b"](model["a"](torch.ones(1, 2)).detach()).sum(), model)


def update() -> object:
    weight = nn.Parameter(torch.tensor([2.0]))
    accumulator = gg.Accumulator(torch.optim.SGD([weight], lr=0.1))
    with accumulator.update() as update:
        for slope, count in update.micro_batches([(3.0, 1), (5.0, 3)]):
            update.backward((weight * slope).sum(), count=count)
    return update


def report() -> object:
    model = nn.Module()
    model.register_parameter(HOSTILE, nn.Parameter(torch.ones(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gg.watch() as watching:
        for _ in range(4):
            next(model.parameters()).square().sum().backward()
            optimizer.step()
    return watching


SAYS = {
    flow: ["a", "2", "6", "ModuleDict", "not used"],
    update: ["loss", "9", "over 4 items", "gradient norm", "4.5", "2 micro-batches, stepped"],
    report: ["GG201 missing-zero-grad", "Found 1 error."],
}


@pytest.mark.parametrize("make", SAYS)
def test_a_card_shows_the_content_and_escapes_it(make: Callable[[], object]) -> None:
    text = make()._repr_html_()  # type: ignore[attr-defined]
    seen = Reader(text)
    assert seen.open == []
    assert "script" not in seen.tags
    for said in SAYS[make]:
        assert any(said in part for part in seen.text), said
    if make in (flow, report):
        assert any(HOSTILE in part for part in seen.text)


def test_an_open_or_discarded_update_shows_how_far_it_came() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    accumulator = gg.Accumulator(torch.optim.SGD([weight], lr=0.1))
    with pytest.raises(KeyError), accumulator.update() as update:  # noqa: PT012
        update.backward((weight * 3.0).sum(), count=1)
        assert "open, after 1 micro-batch" in update._repr_html_()
        raise KeyError
    assert "after 1 micro-batch" in update._repr_html_()
    assert "open" not in update._repr_html_()


def test_a_bar_is_as_long_as_its_share_and_no_longer_than_the_whole() -> None:
    widths = [
        re.findall(r"width:([\d.]+)%", card("", "", [[Bar(share)]]))[0] for share in (0.0, 0.25, 1.0, 1.7)
    ]
    assert widths == ["0.0", "25.0", "100.0", "100.0"]
