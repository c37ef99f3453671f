"""The optimizer holds a parameter that no loss uses.

## What it does
Looks for trainable parameters that an optimizer holds but no backward call ever reaches, and follows their values
in the first steps:

- What is computed from them is in no loss: the finding is at the line that computes the last such value. If this
  line also computes values that a loss uses, the value may be left out on purpose, and the finding is a note.
- Nothing is computed from them, and a layer of the same shape in the same module is used twice: the finding is at
  the second use.
- Nothing is computed from them: the finding is at the line that makes them. It is a note if a line of the script
  reads the layer's name, so that an option may turn it off, if the line also makes layers that are trained, or if
  the script loads their values.

## Why is this bad?
The parameter keeps its random initial value, and the model lacks a part of its design.

## Example
    x = x + self.attn(self.norm1(x))
    x = x + self.mlp(self.norm1(x))     # norm2 is never used

## Use instead
    x = x + self.mlp(self.norm2(x))

or remove the layer from the model. To train a head, add its loss to the loss that is back-propagated.

## Known limits
If a constant replaces a layer's output, the finding is at the line that makes the layer. Latent codes that no step
changes are not found if the optimizer holds tensors of data in their place.

## Sources
docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html, ``find_unused_parameters``.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._parameter_usage import replaced, unreached
from gradgate.checker.analysis._queries import within
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._source import inside, tree_of
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.analysis._values import flow
from gradgate.checker.fixes import Fix
from gradgate.checker.rules._rule import Finding, Rule, Severity, Text
from gradgate.checker.rules.flow._graph_fixes import kept
from gradgate.checker.rules.texts import flow_reach as texts
from gradgate.events import Ids, Site


def _judge(run: Run) -> Iterator[Finding]:
    missing = unreached(run) - flow(run).left_out_terms - flow(run).behind_losses()
    for swap in replaced(run):
        missing -= swap.old
    found: dict[_Place, Ids] = defaultdict(frozenset)
    for path, ids in _by_module(run, missing).items():
        found[_place(run, path, ids)] |= ids
    for place, ids in found.items():
        yield RULE.say(
            place.site,
            place.text,
            fix=partial(_assigned, name=place.what) if place.text is texts.UNUSED else (),
            severity=place.severity,
            count=run.log.steps,
            about=ids,
            what=place.what,
            names=run.names(ids),
            steps=run.log.steps,
        )


class _Place(NamedTuple):
    """A line to change, and what to say of it."""

    site: Site
    text: Text
    severity: Severity
    what: str = ""  # the operation whose result is unused, or the layer that is used twice


def _by_module(run: Run, missing: Ids) -> dict[str, Ids]:
    """Group parameters by the outermost module of which no loss uses a parameter."""
    found: dict[str, Ids] = defaultdict(frozenset)
    for number in missing:
        parts = run.name(number).split(".")
        paths = (".".join(parts[:length]) for length in range(1, len(parts)))
        found[next((path for path in paths if within(run, path) <= missing), run.name(number))] |= {number}
    return found


def _place(run: Run, path: str, ids: Ids) -> _Place:
    shadow = flow(run)
    end, alone = shadow.end_of(ids)
    if end is not None:
        node = shadow.nodes[end]
        return _Place(node.site, texts.UNUSED, "warning" if alone else "info", node.op)
    module, _, _ = path.rpartition(".")
    layers = grouped((run.name(n).removeprefix(f"{module}.").split(".")[0], n) for n in within(run, module))
    for name, several in layers.items():
        uses = shadow.uses_of(several) if _shapes(run, several) == _shapes(run, ids) else []
        if len(uses) > 1:
            return _Place(uses[1], texts.USED_TWICE, "warning", name)
    made = run.parameters[min(ids)].made or run.made[min(run.owners[min(ids)])][0].site
    # A line that also makes trained layers may be a library's model, or a list of which some are not needed.
    beside = run.written_to(ids) or any(run.parameters[number].made[:1] == made[:1] for number in run.reached)
    return _Place(made, texts.NEVER_USED, "info" if beside or _is_read(run, path) else "warning")


def _is_read(run: Run, path: str) -> bool:
    """Return whether a line of the script reads a layer by its name: an option may turn it off."""
    name = next((part for part in reversed(path.split(".")) if not part.isdigit()), path)
    nodes = (node for file in run.files for node in inside(ast.expr, tree_of(file)))
    return any(last_name(node) == name and isinstance(getattr(node, "ctx", None), ast.Load) for node in nodes)


def _shapes(run: Run, ids: Iterable[int]) -> list[tuple[int, ...]]:
    return sorted(run.parameters[number].shape for number in ids)


def _assigned(at: Statement, name: str) -> Fix:
    """Keep the result of a tensor's method, such as ``index_add``."""
    return kept(at) if method(at.node) == name else ()


RULE = Rule("GG401", "unreached-parameter", "warning", __doc__ or "", _judge)
