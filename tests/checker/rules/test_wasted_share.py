"""GG405 says which part of a step the gradients of a GAN's other network take, if that is worth a note."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import gradgate as gg
from gradgate.checker.rules import Finding


def mlp(*widths: int) -> nn.Sequential:
    layers = [each for pair in pairwise(widths) for each in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def convolutions() -> tuple[nn.Module, nn.Module]:
    generator = nn.Sequential(
        *(nn.ConvTranspose2d(16, 32, 4), nn.BatchNorm2d(32), nn.ReLU()),
        nn.ConvTranspose2d(32, 3, 4, stride=2, padding=1),
    )
    critic = nn.Sequential(
        nn.Conv2d(3, 64, 4, stride=2, padding=1), nn.LeakyReLU(), nn.Conv2d(64, 1, 4), nn.Flatten(0)
    )
    return generator, critic


NETWORKS: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
    "a large discriminator": lambda: (mlp(16, 64, 32), mlp(32, 256, 256, 1)),
    "equal networks": lambda: (mlp(16, 96, 32), mlp(32, 96, 96, 1)),
    "convolutions": convolutions,
}


def train(
    networks: tuple[nn.Module, nn.Module],
    *,
    spare: bool,
    detach: bool = True,
    steps: int = 6,
    critic_steps: int = 1,
) -> None:
    """Train a GAN in DCGAN's order. ``spare``: the generator's loss computes no gradients of D's weights."""
    torch.manual_seed(0)
    G, D = networks
    noise = (32, 16, 1, 1) if isinstance(G[0], nn.ConvTranspose2d) else (32, 16)
    g_optimizer, d_optimizer = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
    for _ in range(steps):
        for _ in range(critic_steps):
            fake = G(torch.randn(noise))
            d_optimizer.zero_grad()
            real = torch.randn_like(fake)
            (F.softplus(-D(real)).mean() + F.softplus(D(fake.detach() if detach else fake)).mean()).backward()
            d_optimizer.step()
        g_optimizer.zero_grad()
        D.requires_grad_(not spare)
        F.softplus(-D(G(torch.randn(noise)))).mean().backward()
        D.requires_grad_(True)
        g_optimizer.step()


def notes(act: Callable[[], object]) -> list[Finding]:
    with gg.watch() as report:
        act()
    assert {finding.code for finding in report.findings} <= {"GG405"}
    return list(report.findings)


def flops(act: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        act()
    return float(counter.get_total_flops())


@pytest.mark.parametrize("critic_steps", [1, 2])
@pytest.mark.parametrize("case", NETWORKS)
def test_the_part_of_a_step_is_what_sparing_the_discriminator_saves(case: str, critic_steps: int) -> None:
    make = NETWORKS[case]

    def loop(spare: bool) -> None:
        train(make(), spare=spare, critic_steps=critic_steps)

    saved = 1 - flops(lambda: loop(True)) / flops(lambda: loop(False))
    found = notes(lambda: loop(False))
    assert [finding.evidence["share"] for finding in found] == (
        [pytest.approx(saved, rel=0.2)]  # G's forward pass for D's loss leaves no graph, and is not counted
    )
    assert all(
        f"about {finding.evidence['share']:.0%} of each step's FLOPs" in finding.message for finding in found
    )
    assert notes(lambda: loop(True)) == []


def test_the_part_of_a_step_is_what_detaching_the_generator_saves() -> None:
    def loop(detach: bool) -> None:
        train((mlp(16, 256, 32), mlp(32, 64, 1)), spare=True, detach=detach)

    saved = 1 - flops(lambda: loop(True)) / flops(lambda: loop(False))
    (finding,) = notes(lambda: loop(False))
    assert finding.evidence["share"] == pytest.approx(saved, rel=0.1)
    assert "Detach the output of" in finding.advice


def test_less_than_a_twentieth_of_a_step_is_no_note() -> None:
    assert notes(lambda: train((mlp(16, 512, 512, 32), mlp(32, 16, 1)), spare=False)) == []


def test_a_network_is_noted_once_however_many_losses_reach_it() -> None:
    def loop() -> None:
        torch.manual_seed(0)
        A, B, D = mlp(8, 32, 8), mlp(8, 32, 8), mlp(8, 128, 128, 1)
        optimizer = torch.optim.Adam(chain(A.parameters(), B.parameters()))
        d_optimizer = torch.optim.Adam(D.parameters())
        for _ in range(6):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            F.softplus(-D(A(x))).mean().backward()
            F.softplus(-D(B(x))).mean().backward()
            optimizer.step()
            d_optimizer.zero_grad()
            (
                F.softplus(-D(x)) + F.softplus(D(A(x).detach())) + F.softplus(D(B(x).detach()))
            ).mean().backward()
            d_optimizer.step()

    (finding,) = notes(loop)
    assert finding.count == 12
    assert 0.05 < finding.evidence["share"] < 0.3


def test_a_loss_network_that_is_not_frozen_is_noted_however_small_it_is() -> None:
    def loop() -> None:
        torch.manual_seed(0)
        model, features = mlp(64, 512, 64), mlp(64, 4)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(6):
            x = torch.randn(32, 64)
            optimizer.zero_grad()
            F.mse_loss(features(model(x)), features(x)).backward()
            optimizer.step()

    (finding,) = notes(loop)
    assert "features.requires_grad_(False)" in finding.advice


def test_what_also_serves_an_input_with_a_gradient_is_no_waste() -> None:
    def share(sought: bool) -> float:
        def loop() -> None:
            torch.manual_seed(0)
            G, D = mlp(16, 256, 256, 32), mlp(32, 64, 1)
            g_optimizer, d_optimizer = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
            for _ in range(6):
                z = torch.randn(32, 16, requires_grad=sought)
                d_optimizer.zero_grad()
                F.softplus(D(G(z))).mean().backward()
                d_optimizer.step()
                g_optimizer.zero_grad()
                D.requires_grad_(False)
                F.softplus(-D(G(z))).mean().backward()
                D.requires_grad_(True)
                g_optimizer.step()

        (finding,) = notes(loop)
        return float(finding.evidence["share"])

    assert share(True) == pytest.approx(
        share(False) / 2, rel=0.1
    )  # half of it are the gradients of activations


def test_the_advice_keeps_a_gradient_that_the_loop_reads() -> None:
    def loop(leaf: bool) -> list[float]:
        torch.manual_seed(0)
        encoder, decoder = mlp(64, 256, 32), mlp(32, 64)
        optimizers = [torch.optim.Adam(each.parameters()) for each in (encoder, decoder)]
        read = []
        for _ in range(6):
            x = torch.randn(32, 64)
            code = encoder(x).detach().requires_grad_() if leaf else encoder(x)
            code.retain_grad()
            optimizers[1].zero_grad()
            F.mse_loss(decoder(code), x).backward()
            optimizers[1].step()
            assert code.grad is not None
            read.append(code.grad.norm().item())
            optimizers[0].zero_grad()
            encoder(x).square().mean().backward()
            optimizers[0].step()
        return read

    (finding,) = notes(lambda: loop(leaf=False))
    assert "output.detach().requires_grad_()" in finding.advice
    assert not finding.fix
    assert notes(lambda: loop(leaf=True)) == []
    assert loop(leaf=True) == loop(leaf=False)
