"""How much of a step is unnecessary, if two losses share modules?

It runs three scripts as they are often written: a WGAN-GP critic whose loss runs back into the generator; a DCGAN
whose generator step computes gradients for the discriminator, which the next ``zero_grad`` discards; and style
transfer, which optimizes an image through a network whose weights all receive gradients. Each is compared with the
same step in gradgate, where an update fills only the gradients that its optimizer owns. Losses must be
bit-identical.
"""

import copy
from collections.abc import Callable

import torch
from _alternate import alternate, arguments, report, table
from torch import Tensor, nn
from torch.nn import functional as F

import gradgate as gg

Step = Callable[[], list[float]]


def gradient_penalty(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    share = torch.rand(len(real), 1, device=real.device)
    mixed = (share * real + (1 - share) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return ((gradient.norm(2, dim=1) - 1) ** 2).mean()


def wgan_gp(device: str) -> dict[str, Step]:
    """The critic's step of a multi-layer WGAN-GP on 28 x 28 pixels, batches of 64."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(100, 128), nn.LeakyReLU(0.2)]
    for width in (128, 256, 512):
        layers += [nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width, 0.8), nn.LeakyReLU(0.2)]
    generator = nn.Sequential(*layers, nn.Linear(1024, 784), nn.Tanh()).to(device)
    critic = nn.Sequential(
        nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)
    ).to(device)
    real = torch.rand(64, 784, device=device)

    def loss_of(generator: nn.Module, critic: nn.Module) -> Tensor:
        fake = generator(torch.randn(64, 100, device=device))
        return critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(critic, real, fake.detach())

    def plain_way() -> Step:
        g, d = copy.deepcopy(generator), copy.deepcopy(critic)
        optimizer = torch.optim.Adam(d.parameters(), lr=2e-4, betas=(0.5, 0.999))

        def step() -> list[float]:
            optimizer.zero_grad()
            loss = loss_of(g, d)
            loss.backward()
            optimizer.step()
            return [loss.item()]

        return step

    def our_way() -> Step:
        g, d = copy.deepcopy(generator), copy.deepcopy(critic)
        accumulator = gg.Accumulator(torch.optim.Adam(d.parameters(), lr=2e-4, betas=(0.5, 0.999)))

        def step() -> list[float]:
            with accumulator.update() as update:
                update.backward(loss_of(g, d), count=64)
            return [update.loss]

        return step

    return {"gradgate": our_way(), "the plain script": plain_way()}


def dcgan(device: str, batch: int = 64, width: int = 64) -> dict[str, Step]:
    """One iteration of DCGAN at 64 x 64 pixels, in the order of PyTorch's example."""
    torch.manual_seed(0)
    up: list[nn.Module] = [nn.ConvTranspose2d(100, width * 8, 4, 1, 0, bias=False)]
    down: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for factor in (4, 2, 1):
        wide, narrow = width * factor * 2, width * factor
        up += [nn.BatchNorm2d(wide), nn.ReLU(), nn.ConvTranspose2d(wide, narrow, 4, 2, 1, bias=False)]
    for factor in (1, 2, 4):
        narrow, wide = width * factor, width * factor * 2
        down += [nn.Conv2d(narrow, wide, 4, 2, 1, bias=False), nn.BatchNorm2d(wide), nn.LeakyReLU(0.2)]
    up += [nn.BatchNorm2d(width), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
    down += [nn.Conv2d(width * 8, 1, 4, 1, 0, bias=False), nn.Flatten(0)]
    generator, discriminator = nn.Sequential(*up).to(device), nn.Sequential(*down).to(device)
    real = torch.rand(batch, 3, 64, 64, device=device)
    ones, zeros = torch.ones(batch, device=device), torch.zeros(batch, device=device)
    score = F.binary_cross_entropy_with_logits

    def adam(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(module.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def plain_way(*, detach: bool) -> Step:
        g, d = copy.deepcopy(generator), copy.deepcopy(discriminator)
        g_optimizer, d_optimizer = adam(g), adam(d)

        def step() -> list[float]:
            d_optimizer.zero_grad()
            d_real = score(d(real), ones)
            d_real.backward()
            fake = g(torch.randn(batch, 100, 1, 1, device=device))
            d_fake = score(d(fake.detach() if detach else fake), zeros)
            d_fake.backward(retain_graph=not detach)
            d_optimizer.step()
            g_optimizer.zero_grad()
            g_loss = score(d(fake), ones)
            g_loss.backward()
            g_optimizer.step()
            return [d_real.item() + d_fake.item(), g_loss.item()]

        return step

    def our_way() -> Step:
        g, d = copy.deepcopy(generator), copy.deepcopy(discriminator)
        g_accumulator, d_accumulator = gg.Accumulator(adam(g)), gg.Accumulator(adam(d))

        def step() -> list[float]:
            with d_accumulator.update() as d_update:
                d_real = score(d(real), ones)
                d_update.backward(d_real, count=batch, name="real")  # each call frees its graph
                fake = g(torch.randn(batch, 100, 1, 1, device=device))
                d_fake = score(d(fake), zeros)
                d_update.backward(d_fake, count=batch, name="fake")
            with g_accumulator.update() as g_update:
                g_update.backward(score(d(fake), ones), count=batch)
            return [d_real.item() + d_fake.item(), g_update.loss]

        return step

    return {
        "gradgate": our_way(),
        "the plain script, as PyTorch's example": plain_way(detach=True),
        "the plain script, without its detach": plain_way(detach=False),
    }


def style_transfer(device: str, pixels: int = 96) -> dict[str, Step]:
    """One step of an image towards one image's content and another's style, with features of 8 convolutions."""
    torch.manual_seed(0)
    blocks, before = nn.ModuleList(), 3
    for width, convolutions in ((64, 2), (128, 2), (256, 4)):
        for _ in range(convolutions):
            blocks.append(nn.Sequential(nn.Conv2d(before, width, 3, padding=1), nn.ReLU()))
            before = width
        blocks.append(nn.MaxPool2d(2))
    blocks.to(device)
    content, style = (torch.rand(1, 3, pixels, pixels, device=device) for _ in range(2))

    def features(x: Tensor) -> list[Tensor]:
        found = []
        for block in blocks:
            x = block(x)
            found.append(x)
        return found[1::3]

    def gram(x: Tensor) -> Tensor:
        flat = x.flatten(2).squeeze(0)
        return flat @ flat.T / flat.numel()

    def loss_of(image: Tensor) -> Tensor:
        loss = image.new_zeros(())
        for of_image, of_content, of_style in zip(
            features(image), features(content), features(style), strict=True
        ):
            loss = loss + F.mse_loss(of_image, of_content) + 100 * F.mse_loss(gram(of_image), gram(of_style))
        return loss

    def plain_way() -> Step:
        image = content.clone().requires_grad_()
        optimizer = torch.optim.Adam([image], lr=0.003)

        def step() -> list[float]:
            loss = loss_of(image)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return [loss.item()]

        return step

    def our_way() -> Step:
        image = content.clone().requires_grad_()
        accumulator = gg.Accumulator(torch.optim.Adam([image], lr=0.003))

        def step() -> list[float]:
            with accumulator.update() as update:
                update.backward(loss_of(image), count=1)
            return [update.loss]

        return step

    return {"gradgate": our_way(), "the plain script": plain_way()}


def same_losses(ways: dict[str, Step], steps: int = 4) -> None:
    """Raise unless all variants produce bit-identical losses."""
    for number in range(steps):
        losses = []
        for way in ways.values():
            torch.manual_seed(number)
            losses.append(way())
        if any(found != losses[0] for found in losses):
            raise AssertionError(f"step {number}: losses differ: {losses}")


def main() -> None:
    question = "Two losses over shared modules: the share of a step that nobody uses"
    given = arguments(question)
    torch.set_num_threads(1)
    sections = []
    for title, ways in (
        ("a WGAN-GP critic step", wgan_gp),
        ("a DCGAN iteration at 64 pixels", dcgan),
        ("a step of style transfer", style_transfer),
    ):
        same_losses(ways(given.device))
        found = alternate(ways(given.device), rounds=given.rounds or 15, device=given.device)
        sections.append(table(title, found))
    report(question, sections, given.write)


if __name__ == "__main__":
    main()
