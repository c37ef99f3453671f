"""Most steps of a long run are only counted, not watched: counts and their totals cover the same steps."""

import re

from tests.checker.rules._watched import findings_of

LOOP = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=1e-6)
for step in range(1500):
    x = torch.randn(8, 4)
    loss = (net(x) - x[:, :1]).pow(2).mean()
{body}
"""


def test_gradients_that_are_never_cleared_are_found_in_a_long_run() -> None:
    (found,) = findings_of(LOOP.format(body="    loss.backward()\n    opt.step()"))
    assert found.code == "GG201"
    numbers = re.match(r"(\d+) of (\d+) watched steps of opt ", found.message)
    assert numbers is not None
    repeated, watched = map(int, numbers.groups())
    assert repeated == found.count == watched - 1 < 1000


def test_gradients_that_are_cleared_unused_are_counted_over_the_whole_run() -> None:
    body = "    opt.zero_grad()\n    (loss / 4).backward()\n    if step % 4 == 3:\n        opt.step()"
    (found,) = findings_of(LOOP.format(body=body))
    assert (found.code, found.count) == ("GG202", 1125)
    assert found.message.startswith("The gradients of 1125 of 1500 backward calls are cleared")


def test_a_search_at_the_start_of_a_long_run_may_clear_unused_gradients() -> None:
    body = "    opt.zero_grad()\n    loss.backward()\n    if step > 60:\n        opt.step()"
    assert findings_of(LOOP.format(body=body)) == []
