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
from gradgate.events import Span
from tests.checker.reports.page.runs import EVERY, accumulated, adversaries, sampled


def seen(report: Report) -> RunView:
    return RunView(report.logs[0])


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_plotly_knows_every_property_of_the_figures(make: Callable[[], Report]) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    report = make()
    sections = _page._sections(report.logs[0]).values()
    figures = [figure for section in sections for figure in section if not isinstance(section, str)]
    assert len(sections) == 6
    assert len(figures) >= 8
    for figure in figures:
        graph_objects.Figure(data=figure["data"], layout=figure["layout"])
        with pytest.raises(ValueError, match="Invalid property"):
            graph_objects.Figure(data=figure["data"], layout={**figure["layout"], "no_such": 1})


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
    figures = _flows.draw_map(seen(adversaries()))
    assert [figure["title"].partition(".")[0] for figure in figures] == ["c_loss", "g_loss"]
    modules = ["critic.0", "critic.2", "generator.0", "generator.2"]
    assert [figure["layout"]["yaxis"]["ticktext"] for figure in figures] == [modules, modules]
    of_critic, of_generator = (figure["data"][0]["z"] for figure in figures)
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
        for figure in _times.draw(RunView(log)):
            return dict(zip(figure["data"][0]["y"], figure["data"][0]["x"], strict=True))
        return None

    assert drawn(1) is None
    assert drawn(5) == {"forward": 0.75, "backward": 2.0, "step": 0.125}


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_a_curve_ends_at_the_last_step_or_the_figure_says_that_it_is_sampled(
    make: Callable[[], Report],
) -> None:
    view = seen(make())
    figures = [*_curves.draw(view), *_curves.draw_gradients(view), *_curves.draw_ratios(view)]
    titles = [figure["title"].partition(", ") for figure in figures]
    names = ["Loss", "Learning rate", "Gradient norm", "Gradient norm", "Change / weights"]
    assert [name for name, _, _ in titles] == names
    assert len(view.steps) > 80 or not any(measured for _, _, measured in titles)
    for figure, (_, _, measured) in zip(figures, titles, strict=True):
        assert figure["layout"]["xaxis"]["range"] == [0.5, len(view.steps) + 0.5]
        end = max(trace["x"][-1] for trace in figure["data"])
        assert end == len(view.steps) or measured.startswith("sampled at ")


def test_a_title_says_how_much_of_a_long_run_was_measured() -> None:
    view = seen(sampled())
    measured = sum(bool(event.norms) for _, event in view.steps)
    assert 0 < measured < len(view.steps) == 300
    loss, rate, norm = _curves.draw(view)
    titles = [figure["title"].partition(", ")[2] for figure in (loss, rate, norm)]
    assert titles[:2] == [f"sampled at {len(loss['data'][0]['x'])} of 300 backward calls", ""]
    assert titles[2] == f"sampled at {measured} of 300 steps"
    # Dots show which of the points that a line connects are measured.
    assert loss["data"][0]["mode"] == norm["data"][0]["mode"] == "lines+markers"


def test_a_second_optimizer_that_steps_on_the_same_loss_makes_no_curve_sampled() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
    with watch() as watching:
        for _ in range(3):
            model(torch.ones(4, 2)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    titles = [figure["title"] for figure in _curves.draw(seen(watching.report))]
    assert titles == ["Loss", "Learning rate", "Gradient norm"]


@pytest.mark.parametrize(
    ("lowest", "ticks"), [(0.05, [-2, -1, 0]), (3e-5, [-4, -2, 0]), (1e-17, [-15, -10, -5, 0])]
)
def test_a_logarithmic_axis_carries_a_few_whole_powers_of_ten(lowest: float, ticks: list[int]) -> None:
    scale = _curves._scale([lowest, 0.7, 0.9])
    low, high = scale["range"]
    assert scale["type"] == "log"
    assert 10**low <= lowest < 10 ** (low + 1)
    assert high == 0
    assert [power for power in range(low, high + 1) if power % scale["dtick"] == 0] == ticks


def test_values_of_one_size_have_a_linear_axis_from_zero() -> None:
    assert _curves._scale([0.2, 0.9])["rangemode"] == "tozero"


def test_a_run_of_one_step_has_no_figure_over_the_steps() -> None:
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with watch() as watching:
        layer(torch.ones(4, 2)).mean().backward()
        optimizer.step()
    assert list(_page._sections(watching.report.logs[0])) == ["flow"]


def test_the_loss_is_shown_as_the_script_names_it_and_a_division_before_is_named() -> None:
    layer, values = nn.Linear(2, 1), []
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    with watch() as watching:
        for _ in range(3):
            for _ in range(4):
                loss = layer(torch.randn(4, 2)).square().mean()
                (loss / 4).backward()
                values.append(loss.item())
                share = loss.detach() + layer(torch.randn(4, 2)).square().mean()
                share = share / 4
                share.backward()
                (
                    0.5 * layer(torch.randn(4, 2)).sum() / 4 / 2 + 0.25 * layer(torch.randn(4, 2)).sum()
                ).backward()
            optimizer.step()
            optimizer.zero_grad()
    shown = _curves.losses(seen(watching.report))
    whole, divided, _ = shown.values()
    assert whole == pytest.approx(
        {step: sum(values[4 * step - 4 : 4 * step]) / 4 for step in (1, 2, 3)}, rel=1e-6
    )
    assert [", divided by 4" in name for name in shown] == [False, True, False]
    assert max(divided.values()) < min(whole.values())


def test_a_loss_that_a_gradient_scaler_has_scaled_is_not_shown() -> None:
    layer, scaler = nn.Linear(2, 1), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with watch() as watching:
        for _ in range(3):
            scaler.scale(layer(torch.ones(4, 2)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert [figure["title"] for figure in _curves.draw(seen(watching.report))] == [
        "Learning rate",
        "Gradient norm",
    ]


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
