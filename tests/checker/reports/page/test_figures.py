"""What the figures show is what happened."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from gradgate.checker import watch
from gradgate.checker.reports import Report

# private: each figure's numbers are those of the run, before plotly draws them
from gradgate.checker.reports.page import _curves, _flows, _page, _times
from gradgate.checker.reports.page._run_view import RunView
from gradgate.events import Span, Stepped
from tests.checker.reports.page.runs import EVERY, accumulated, adversaries


def seen(report: Report) -> RunView:
    return RunView(report.logs[0])


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_plotly_knows_every_property_of_the_figures(make: Callable[[], Report]) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    report = make()
    sections = _page._sections(report.logs[0]).values()
    figures = [section for section in sections if isinstance(section, dict)]
    assert len(figures) == 6
    for figure in figures:
        graph_objects.Figure(figure)
        with pytest.raises(ValueError, match="Invalid property"):
            graph_objects.Figure({**figure, "layout": {**figure["layout"], "no_such": 1}})


def test_a_loss_that_reaches_the_other_network_is_waste_there() -> None:
    flows = {(flow.line.split(".")[0], flow.module): flow for flow in _flows.flows(seen(adversaries()))}
    assert {key: flow.usage == "wasted" for key, flow in flows.items()} == {
        ("c_loss", "generator.0"): True,
        ("c_loss", "generator.2"): True,
        ("c_loss", "critic.0"): False,
        ("c_loss", "critic.2"): False,
        ("g_loss", "generator.0"): False,
        ("g_loss", "generator.2"): False,
        ("g_loss", "critic.0"): True,
        ("g_loss", "critic.2"): True,
    }
    assert flows["c_loss", "critic.0"].end == "opt_c (Adam)"
    assert flows["g_loss", "critic.0"].end == _flows.CLEARED
    # What the last loss of the generator left in the critic stands there when the run ends: that is no waste.
    assert [len(flow.calls) for flow in flows.values()] == [5, 5, 5, 5, 4, 4, 5, 5]


def test_parameters_that_no_gradient_comes_to_are_shown_too() -> None:
    idle = [flow for flow in _flows.flows(seen(accumulated())) if flow.line == _flows.NO_LINE]
    assert [(flow.module, flow.end) for flow in idle] == [("unused", "optimizer (SGD)")]


def test_the_map_tells_step_by_step_what_was_used() -> None:
    figure = _flows.draw_map(seen(adversaries()))
    assert figure is not None
    modules = ["critic.0", "critic.2", "generator.0", "generator.2"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["", *modules, "", *modules]
    lines = [(title["y"], title["text"].partition(".")[0]) for title in figure["layout"]["annotations"]]
    assert lines == [(0, "c_loss"), (5, "g_loss")]
    cells = figure["data"][0]["z"]
    of_critic, of_generator = cells[1:5], cells[6:]
    # Steps alternate: the critic's, the generator's. 0: not reached, 1: used, 2: used by no step.
    assert of_critic == [[1, 0] * 5] * 2 + [[2, 0] * 5] * 2
    # What the last loss of the generator left in the critic nobody had cleared when the run ended.
    assert of_generator == [[0, 2] * 5] * 2 + [[0, 1] * 5] * 2


def test_the_times_of_an_update_are_medians_and_a_single_update_is_not_drawn() -> None:
    spans, at = [], 0.0
    for slow in (1.0, 1.0, 1.0, 1.0, 9.0):
        for doing, gap, seconds in (("backward", 0.5, slow), ("backward", 0.25, 1.0), ("step", 0.0, 0.125)):
            spans.append(Span(doing, at + gap, at + gap + seconds, 0))
            at = spans[-1].end

    def drawn(count: int) -> dict[str, float] | None:
        log = dataclasses.replace(accumulated().logs[0], spans=tuple(spans[: 3 * count]))
        figure = _times.draw(RunView(log))
        return (
            None if figure is None else dict(zip(figure["data"][0]["y"], figure["data"][0]["x"], strict=True))
        )

    assert drawn(1) is None
    assert drawn(5) == {"forward": 0.75, "backward": 2.0, "step": 0.125}


def test_a_logarithmic_axis_carries_powers_of_ten_and_a_sampled_curve_says_so() -> None:
    log = accumulated().logs[0]
    steps = [number for number, event in enumerate(log.events) if isinstance(event, Stepped)]
    events = list(log.events)
    events[steps[-1]] = dataclasses.replace(events[steps[-1]], norms=())  # type: ignore[type-var]
    figure = _curves.draw_ratios(RunView(dataclasses.replace(log, events=tuple(events))))
    assert figure is not None
    axis, values = figure["layout"]["yaxis"], [y for trace in figure["data"] for y in trace["y"] if y]
    assert (axis["type"], axis["dtick"]) == ("log", 1)
    assert 10 ** axis["range"][0] <= min(values) <= max(values) <= 10 ** axis["range"][1]
    title = figure["layout"]["xaxis"]["title"]["text"]
    assert title == f"optimizer step, sampled at {len(steps) - 1} of {len(steps)}"


def test_norms_and_ratios_are_those_of_the_steps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    expected: list[dict[str, tuple[float, float]]] = []
    with watch() as watching:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(3, 5, dtype=torch.float64)).square().mean().backward()
            before = [parameter.detach().clone() for parameter in model.parameters()]
            optimizer.step()
            row = {}
            for number, layer in enumerate(model):
                pairs = list(zip(layer.parameters(), before[2 * number : 2 * number + 2], strict=True))
                change, size, gradient = (
                    math.sqrt(sum(float(tensor.square().sum()) for tensor in tensors))
                    for tensors in ([a.detach() - b for a, b in pairs], [b for _, b in pairs], grads(layer))
                )
                row[f"model.{number}"] = (gradient, change / size)
            expected.append(row)
    curves = _curves.norms(seen(watching.report))
    for module, points in curves.items():
        for step, norms in points.items():
            gradient, ratio = expected[step - 1][module]
            assert norms.gradient == pytest.approx(gradient, rel=1e-12)
            assert norms.change / norms.weights == pytest.approx(ratio, rel=1e-12)
    assert sum(map(len, curves.values())) == 8


def grads(layer: nn.Module) -> list[torch.Tensor]:
    return [each.grad for each in layer.parameters() if each.grad is not None]


def test_many_modules_are_grouped_until_they_can_be_told_apart() -> None:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(12))
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    with watch() as watching:
        x = torch.ones(1, 2)
        for block in blocks:
            x = block(x)
        x.sum().backward()
        optimizer.step()
    assert seen(watching.report).order == [f"blocks.{number}" for number in range(12)]


def test_numbered_blocks_of_a_deep_model_are_taken_together() -> None:
    model = nn.ModuleDict(
        {
            "embed": nn.Linear(2, 2),
            "h": nn.ModuleList(
                nn.ModuleDict({"attn": nn.Linear(2, 2), "mlp": nn.Sequential(nn.Linear(2, 2))})
                for _ in range(24)
            ),
        }
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch() as watching:
        x = model["embed"](torch.ones(1, 2))
        for block in model["h"]:
            x = block["mlp"](block["attn"](x))
        x.sum().backward()
        optimizer.step()
    assert seen(watching.report).order == ["model.embed", "model.h.0-23.attn", "model.h.0-23.mlp.0"]


def test_the_overview_shows_losses_rates_and_norms_by_step() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    values, rates, norms = [], [], []
    with watch() as watching:
        for _ in range(3):
            optimizer.zero_grad()
            pair = []
            for _ in range(2):
                loss = model(torch.randn(4, 3, dtype=torch.float64)).square().mean() / 2
                loss.backward()
                pair.append(loss.item())
            values.append(sum(pair) / 2)
            rates.append(optimizer.param_groups[0]["lr"])
            norms.append(math.sqrt(sum(float(grad.square().sum()) for grad in grads(model))))
            optimizer.step()
            scheduler.step()
    view = seen(watching.report)
    (losses,) = _curves.losses(view).values()
    assert losses == pytest.approx(dict(enumerate(values, start=1)), rel=1e-12)
    assert _curves.rates(view) == {"optimizer (SGD)": dict(enumerate(rates, start=1))}
    assert _curves.whole_norms(view)["optimizer (SGD)"] == pytest.approx(
        dict(enumerate(norms, start=1)), rel=1e-12
    )


def test_what_one_loss_left_for_the_step_of_another_is_marked() -> None:
    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
    opt_g = torch.optim.SGD(generator.parameters(), lr=0.1)
    opt_c = torch.optim.SGD(critic.parameters(), lr=0.1)
    with watch() as watching:
        for _ in range(4):
            critic(torch.randn(4, 3)).sum().backward()
            opt_c.step()
            opt_c.zero_grad()  # too early: the generator's loss comes behind it
            (-critic(generator(torch.randn(4, 2)))).sum().backward()
            opt_g.step()
            opt_g.zero_grad()
    usages = {(flow.module, len(flow.calls)): flow.usage for flow in _flows.flows(seen(watching.report))}
    assert usages == {("critic", 4): "used", ("generator", 4): "used", ("critic", 3): "late"}
