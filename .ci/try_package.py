"""Try an installed gradgate, in an environment that holds nothing but its wheel: ``make package`` runs this."""

import tempfile
import warnings
from pathlib import Path

import torch

warnings.simplefilter("error")  # but not for what torch says of an environment without numpy

import gradgate as gg  # noqa: E402

assert "site-packages" in gg.__file__, f"a checkout was imported, not the wheel: {gg.__file__}"
for name in gg.__all__:
    getattr(gg, name)

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with gg.Accumulator(optimizer, model=model).update() as update:
    for x in update.micro_batches([torch.ones(3, 4), torch.ones(1, 4)]):
        update.backward(model(x).square().mean(), count=len(x))
assert update.count == 4

with gg.watch() as watching:
    for _ in range(12):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()  # and nothing is ever cleared
assert [finding.code for finding in watching.report.findings] == ["GG201"]
with tempfile.TemporaryDirectory() as folder:
    for ending in ("html", "json", "sarif", "txt"):
        watching.save(Path(folder) / f"report.{ending}")
        assert "GG201" in (Path(folder) / f"report.{ending}").read_text("utf-8")
