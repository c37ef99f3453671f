"""Two losses that share a graph each add gradients to everything they reach: the loss of the discriminator D
reaches the generator G through G's fakes, and the loss of G passes through D. pix2pix keeps the gradients apart by
hand: it uses ``detach`` in D's loss and ``requires_grad_(False)`` on D for G's loss, and calls each ``zero_grad``
right before its ``backward``.

Without ``detach`` and ``requires_grad_``, the result depends on where ``zero_grad`` is. A call right after ``step``
is fine with one loss and wrong with two: the other loss adds gradients after that, and G's loss teaches D to accept
fakes as real. With a call right before ``backward``, the result is right, but gradients are computed only to be
cleared, and G's graph has to be retained. With gradgate, an update only fills what its optimizer owns: you don't
detach, switch or clear anything by hand, and the weights and the FLOP are those of pix2pix.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import gradgate as gg

SIZE, HIDDEN, SAMPLES, UPDATES = 16, 32, 64, 100


def bce(output, real):
    return F.binary_cross_entropy_with_logits(output, torch.full_like(output, real))


def d_loss(discriminator, x, y, fake):
    of_fake, of_real = (discriminator(torch.cat([x, image], 1)) for image in (fake, y))
    return (bce(of_fake, 0.0) + bce(of_real, 1.0)) / 2


def g_loss(discriminator, x, y, fake):
    return bce(discriminator(torch.cat([x, fake], 1)), 1.0) + 100 * F.l1_loss(fake, y)


# Four ways to train on pairs, each in pix2pix's order: first D, then G on the same fakes.


def as_pix2pix(generator, discriminator, g_optimizer, d_optimizer, pairs):
    for x, y in pairs:
        fake = generator(x)
        discriminator.requires_grad_(True)
        d_optimizer.zero_grad()
        d_loss(discriminator, x, y, fake.detach()).backward()
        d_optimizer.step()
        discriminator.requires_grad_(False)
        g_optimizer.zero_grad()
        g_loss(discriminator, x, y, fake).backward()
        g_optimizer.step()


def cleared_after_the_step(generator, discriminator, g_optimizer, d_optimizer, pairs):
    for x, y in pairs:
        fake = generator(x)
        d_loss(discriminator, x, y, fake).backward(retain_graph=True)  # leaves gradients in G
        d_optimizer.step()
        d_optimizer.zero_grad()
        g_loss(discriminator, x, y, fake).backward()  # adds to them, and leaves gradients in D
        g_optimizer.step()
        g_optimizer.zero_grad()


def cleared_before_backward(generator, discriminator, g_optimizer, d_optimizer, pairs):
    for x, y in pairs:
        fake = generator(x)
        d_optimizer.zero_grad()
        d_loss(discriminator, x, y, fake).backward(retain_graph=True)  # leaves gradients in G, cleared below
        d_optimizer.step()
        g_optimizer.zero_grad()
        g_loss(discriminator, x, y, fake).backward()  # leaves gradients in D, which the next zero_grad clears
        g_optimizer.step()


def by_gradgate(generator, discriminator, g_optimizer, d_optimizer, pairs):
    g_accumulator, d_accumulator = gg.Accumulator(g_optimizer), gg.Accumulator(d_optimizer)
    for x, y in pairs:
        fake = generator(x)
        with d_accumulator.update() as update:
            update.backward(d_loss(discriminator, x, y, fake), count=SAMPLES)
        with g_accumulator.update() as update:
            update.backward(g_loss(discriminator, x, y, fake), count=SAMPLES)


def trained(way, updates):
    """Train small networks on generated pairs. Return the weights of both, and D's loss on held-out pairs."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(SIZE, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, SIZE)).double()
    discriminator = nn.Sequential(nn.Linear(2 * SIZE, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)).double()
    nets = generator, discriminator
    optimizers = [torch.optim.Adam(net.parameters(), lr=2e-3, betas=(0.5, 0.999)) for net in nets]
    x = torch.randn(updates + 10, SAMPLES, SIZE, dtype=torch.float64)
    y = x.roll(1, -1).relu()  # what G should draw: the bright pixels of x, shifted by one
    way(*nets, *optimizers, zip(x[:updates], y[:updates], strict=True))
    with torch.no_grad():
        x, y = x[updates:].flatten(0, 1), y[updates:].flatten(0, 1)
        loss = d_loss(discriminator, x, y, generator(x)).item()
    return [nn.utils.parameters_to_vector(net.parameters()) for net in nets], loss


def backward_flops(way):
    """Return the FLOP of an update's backward passes, whose matrix products are mm; forward passes use addmm."""
    with FlopCounterMode(display=False) as work:
        trained(way, updates=1)
    return work.get_flop_counts()["Global"][torch.ops.aten.mm]


def main():
    right, _ = trained(as_pix2pix, UPDATES)
    figures = {}
    print(f"{'':26}distance to pix2pix's weights   loss   MFLOP of backward")
    print(f"{f'{UPDATES} updates of each':26}{'of G':16}{'of D':16}of D   in an update")
    for way in (as_pix2pix, cleared_after_the_step, cleared_before_backward, by_gradgate):
        found, loss = trained(way, UPDATES)
        off = [((a - b).norm() / b.norm()).item() for a, b in zip(found, right, strict=True)]
        flops = backward_flops(way)
        figures[way.__name__] = {"off": off, "loss": loss, "flops": flops}
        print(f"  {way.__name__:24}{off[0]:<16.1g}{off[1]:<16.1g}{loss:<7.2f}{flops / 1e6:.2f}")
    return figures


if __name__ == "__main__":
    main()
