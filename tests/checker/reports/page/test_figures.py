"""What the figures show is what happened."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from gradgate.checker import watch
from gradgate.checker.reports import Report

# private: each figure's numbers are those of the run, before plotly draws them
from gradgate.checker.reports.page import _curves, _flows, _memory, _overview, _page, _timeline
from gradgate.checker.reports.page._run_view import RunView
from gradgate.events import Planned
from tests.checker.reports.page.runs import EVERY, accumulated, adversaries


def seen(report: Report) -> RunView:
    return RunView(report.logs[0])


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_plotly_knows_every_property_of_the_figures(make: Callable[[], Report]) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    report = make()
    sections = _page._sections(report.logs[0], report.findings).values()
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


def test_a_window_is_drawn_with_what_each_micro_batch_counts() -> None:
    it = seen(accumulated())
    chosen = _timeline.typical(it)
    assert chosen is not None
    bars = _timeline.phases(it, chosen)
    backward = [bar for bar in bars if bar.doing == "backward"]
    assert [bar.row for bar in backward] == [f"micro-batch {number}" for number in range(1, 5)]
    assert {bar.weight for bar in backward} == {"mean of 8 items × 0.25"}
    assert {bar.doing for bar in bars} == {"forward", "backward", "clip", "clear", "schedule", "step"}
    in_order = sorted(bars, key=lambda bar: bar.start)
    assert all(first.start + first.seconds <= then.start + 1e-9 for first, then in pairwise(in_order))
    assert all(bar.seconds >= 0 for bar in bars)
    assert sum(bar.seconds for bar in bars) <= chosen.seconds + 1e-9


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
    curves = _curves.curves(seen(watching.report))
    for module, points in curves.items():
        for step, norms in points.items():
            gradient, ratio = expected[step - 1][module]
            assert norms.gradient == pytest.approx(gradient, rel=1e-12)
            assert norms.change / norms.weights == pytest.approx(ratio, rel=1e-12)
    assert sum(map(len, curves.values())) == 8


def grads(layer: nn.Module) -> list[torch.Tensor]:
    return [each.grad for each in layer.parameters() if each.grad is not None]


def test_a_plan_is_drawn_beside_its_budget() -> None:
    table = _memory.rows(seen(accumulated()).run.of(Planned)[-1])
    *parts, whole = table
    assert len(parts) >= 2
    assert all(0 < row.share <= 1 for row in parts)
    assert whole.name == "the whole batch"
    assert whole.share > 1


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


def test_numbered_blocks_of_a_deep_model_are_taken_together_and_can_be_opened() -> None:
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
    view = seen(watching.report)
    assert view.order == ["model.embed", "model.h.0-23.attn", "model.h.0-23.mlp.0"]
    opened = view.opened()
    assert opened is not None
    assert len(opened.order) == 1 + 2 * 24
    assert opened.order[1:5] == ["model.h.0.attn", "model.h.0.mlp.0", "model.h.1.attn", "model.h.1.mlp.0"]
    assert opened.opened() is None
    assert seen(adversaries()).opened() is None


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
    (losses,) = _overview.losses(view).values()
    assert losses == pytest.approx(dict(enumerate(values, start=1)), rel=1e-12)
    assert _overview.rates(view) == {"optimizer (SGD)": dict(enumerate(rates, start=1))}
    assert _overview.norms(view)["optimizer (SGD)"] == pytest.approx(
        dict(enumerate(norms, start=1)), rel=1e-12
    )


def test_a_finding_stands_at_the_step_after_which_it_can_first_be_told() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch() as watching:
        for step in range(12):
            if step < 6:
                optimizer.zero_grad()  # from the seventh step on, nothing is cleared
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
    report = watching.report
    (finding,) = report.findings
    assert finding.category == "missing-zero-grad"
    view = seen(report)
    (step,) = _overview.first_steps(view.log, view.step_numbers, report.findings)
    assert step == 8  # the second step with gradients that were used before
    drawn = _overview.draw(view, report.findings)
    assert drawn is not None
    assert [line["x0"] for line in drawn["layout"]["shapes"]] == [8]


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
