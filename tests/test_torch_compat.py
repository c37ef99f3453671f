"""Private names stand in one file, and what is lost with one is said."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradgate as gg
from corpus.scripts import FOLDER
from gradgate import torch_compat
from gradgate.checker.reports import report_on
from gradgate.checker.rules import rules
from gradgate.errors import UpdateError
from gradgate.torch_compat import Private, stack_formatter
from tests.test_scripts import run

PACKAGE = Path(gg.__file__).parent
ENTRIES = {name: one for name, one in vars(torch_compat).items() if isinstance(one, Private)}

# Documented, underscore or not: where, says the docstring of torch_compat.
DOCUMENTED = re.compile(
    r"_saved_\w+|_getframe|_current_frames|_exit|_thread|_python_dispatch|_fields|_replace|_foreach_\w+"
)
# Of torch: where one of our own attributes has the same name, only ours, of `self`, may be spelled.
_WEIGHT = torch.ones(1, requires_grad=True)
_OPTIMIZER = torch.optim.SGD([_WEIGHT], lr=1.0)
OF_TORCH = {
    name
    for thing in (
        *(
            nn.Linear(1, 1),
            nn.BatchNorm1d(1),
            _WEIGHT,
            _WEIGHT.untyped_storage(),
            torch.Generator(),
            _OPTIMIZER,
        ),
        *(torch.optim.lr_scheduler.ExponentialLR(_OPTIMIZER, 0.5), torch.amp.GradScaler(device="cpu")),
        torch.ops.aten.mm.default,
    )
    for name in dir(thing)
    if name.startswith("_") and not name.endswith("__")
} - {"_scale"}  # our windows have one, and so has a GradScaler
UNDOCUMENTED = {"hooks_dict_ref"}  # although it begins with a letter

# Of transformers and Accelerate. A test of integrations/ notices if they are gone, and so does the user's run.
ELSEWHERE = {"_encodings", "_get_num_items_in_batch", "_optimizers"}


def private_names(tree: ast.Module, mine: set[str], fields: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines and names that begin with an underscore and are nobody's here, or are torch's all the same.

    Args:
        tree: what is looked through.
        mine: modules, functions, classes and variables of this package: what may be imported.
        fields: attributes and methods of its classes.
    """
    for node in ast.walk(tree):
        names: list[str] = []
        own = mine
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "id", "")
            names, own = [node.attr], fields if owner in ("self", "cls") else fields - OF_TORCH
        elif isinstance(node, ast.Constant):
            names = [str(node.value)] if node.value in OF_TORCH else []
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr"):
            names, own = [str(one.value) for one in node.args[1:2] if isinstance(one, ast.Constant)], fields
        for name in names:
            dunder = name.startswith("__") and name.endswith("__")
            private = name.startswith("_") and not (name in own | ELSEWHERE or DOCUMENTED.fullmatch(name))
            if (private and not dunder) or name in UNDOCUMENTED:
                yield node.lineno, name


def given_names(trees: list[ast.Module]) -> tuple[set[str], set[str]]:
    """Return what is defined in modules, and in classes: attributes, methods and fields."""
    mine: set[str] = set()
    fields: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Module | ast.ClassDef):
            into = mine if isinstance(node, ast.Module) else fields
            for one in node.body:
                targets = getattr(one, "targets", [getattr(one, "target", None)])
                into |= {getattr(one, "name", ""), *(getattr(target, "id", "") for target in targets)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            fields |= {node.attr} if getattr(node.value, "id", "") in ("self", "cls") else set()
    return mine, fields


def spelled(package: Path) -> list[str]:
    files = [file for file in sorted(package.rglob("*.py")) if file.parent.name != "torch_compat"]
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    mine, fields = given_names(trees)
    mine |= {file.stem for file in files}
    return [
        f"{file.relative_to(package).as_posix()}:{line}: {name}"
        for file, tree in zip(files, trees, strict=True)
        for line, name in sorted(private_names(tree, mine, fields))
    ]


def test_no_other_file_spells_a_private_name_of_torch_or_of_python() -> None:
    assert spelled(PACKAGE) == []


def test_a_private_name_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "_gate.py").write_text(
        "import torch\n"
        "from torch._subclasses.fake_tensor import FakeTensor\n"
        "from torch.utils.data.dataloader import _BaseDataLoaderIter as Base\n"
        "import torch._dynamo\n"
        "from gradgate._gate import _mine\n"
        "def _mine(node, self):\n"
        "    self._here = node._saved_self\n"
        "    return torch._C.TensorBase, node._sequence_nr(), self._here, _mine(), node._mine\n"
        "getattr(torch.autograd.graph, '_engine_run_backward')\n"
        "node.__class__, node.name, x._replace(a=1)\n"
        "class Gate:\n"
        "    def open(self, module, handle):\n"
        "        self._parameters = module._parameters\n"
        "        return self._parameters, handle.hooks_dict_ref(), vars(module)['_buffers'], '_mine', 3\n"
    )
    (tmp_path / "torch_compat").mkdir()
    (tmp_path / "torch_compat" / "_modes.py").write_text("import torch._C\n")
    assert spelled(tmp_path) == [
        "_gate.py:2: _subclasses",
        "_gate.py:3: _BaseDataLoaderIter",
        "_gate.py:4: _dynamo",
        "_gate.py:8: _C",
        "_gate.py:8: _mine",
        "_gate.py:8: _sequence_nr",
        "_gate.py:9: _engine_run_backward",
        "_gate.py:13: _parameters",
        "_gate.py:14: _buffers",
        "_gate.py:14: hooks_dict_ref",
    ]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_nothing_is_lost_with_this_version(entry: Private[..., Any]) -> None:
    assert not entry.lost
    assert re.fullmatch(r"[a-z].*[^.]", entry.cannot)  # follows "gradgate cannot"
    codes = {rule.code for rule in rules()}
    assert set(entry.rules) <= codes | {"every rule"}


WATCHED = {name: one for name, one in ENTRIES.items() if one.rules}
# Scripts whose mistake is not seen any more.
MISSED = {
    "stack_formatter": ["wrong/zero-gradient/auxiliary_warmup"],
    "node_number": ["wrong/graph-retention/epoch_metrics"],
    "reads_losses": ["wrong/accumulation-scaling/config_classifier", "wrong/double-counting/aux_classifier"],
    "tensor_version": ["wrong/frozen-state-drift/batchnorm_stats"],
}
CODES = {rule.name: rule.code for rule in rules()}


@pytest.mark.parametrize(("name", "script"), [(name, one) for name, some in MISSED.items() for one in some])
def test_a_mistake_that_cannot_be_seen_any_more_has_its_rule_in_the_report(
    name: str, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = FOLDER / f"{script}.py"
    found = run(file, watch=True)
    assert found.log is not None
    assert found.log.unseen == ()
    assert file.parent.name in {finding.category for finding in found.findings}

    monkeypatch.setattr(ENTRIES[name], "use", ENTRIES[name].otherwise)
    blind = run(file, watch=True)
    assert blind.computed == found.computed
    assert file.parent.name not in {finding.category for finding in blind.findings}
    assert blind.log is not None
    (note,) = [note for note in report_on([blind.log]).summary.notes if "may miss mistakes" in note]
    assert note.startswith(
        f"gradgate cannot {ENTRIES[name].cannot} with torch {torch.__version__} and Python 3."
    )
    assert CODES[file.parent.name] in note
    assert ENTRIES[name].names in note
    assert " ".join(note.split()) in " ".join(str(report_on([blind.log])).split())


@pytest.mark.parametrize("name", WATCHED)
def test_other_rules_still_find_what_they_look_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENTRIES[name], "use", ENTRIES[name].otherwise)
    file = FOLDER / "wrong/param-not-in-optimizer/layer_list.py"
    outcome = run(file, watch=True)
    assert "param-not-in-optimizer" in {finding.category for finding in outcome.findings}
    assert outcome.log is not None
    assert outcome.log.failures == ()
    assert len(outcome.log.unseen) == 1


def test_a_name_that_is_gone_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(stack_formatter), "use", raising=False)
    monkeypatch.delattr(torch.fx.traceback, "format_stack")
    assert stack_formatter.lost
    weight = nn.Parameter(torch.ones(2))
    with gg.watch() as watching:
        weight.sum().backward()
    assert "torch.fx.traceback.format_stack is missing or behaves differently" in " ".join(
        str(watching).split()
    )
    assert str(watching).startswith("No mistakes found, but not everything could be checked.")


def test_a_name_that_nobody_asks_any_more_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(stack_formatter), "use", raising=False)
    monkeypatch.setattr(torch, "set_anomaly_enabled", lambda *_: None)
    assert stack_formatter.lost


def test_a_part_of_torch_that_cannot_be_watched_ends_no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.amp.GradScaler, "update")
    held, forgotten = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([held], lr=0.1)
    with gg.watch() as watching:
        for _ in range(4):
            optimizer.zero_grad()
            forgotten.grad = None
            (held * forgotten).sum().backward()
            optimizer.step()
    assert [finding.code for finding in watching.findings] == ["GG501"]
    (note,) = watching.summary.notes
    assert "has no attribute 'update'" in note
    assert "incomplete" in note


def test_what_has_no_other_way_to_the_same_result_is_refused() -> None:
    lost: Private[[], None] = Private("torch._gone", "see it", find=lambda: torch._gone)
    message = (
        f"gradgate cannot see it with torch {torch.__version__} and Python 3.{sys.version_info[1]} (torch._gone is "
        "missing or behaves differently). Use versions that gradgate is tested with: docs/limits.md names them."
    )
    for act in (lost, lost.require):
        with pytest.raises(UpdateError, match=f"^{re.escape(message)}$"):
            act()


def test_an_update_is_the_same_the_public_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        accumulator = gg.Accumulator(optimizer, model=model, clip_value=0.1, clear=gg.decay(0.5))
        data = torch.randn(6, 3)
        for _ in range(3):
            with accumulator.update() as update:
                for part in update.micro_batches(data.split(4)):
                    update.backward(model(part).square().mean(), count=len(part))
        return [parameter.detach() for parameter in model.parameters()]

    quick = trained()
    for name in ("run_backward", "transforming"):
        monkeypatch.setattr(ENTRIES[name], "use", ENTRIES[name].otherwise)
    for one, other in zip(quick, trained(), strict=True):
        assert torch.equal(one, other)


def test_without_version_counters_no_accumulator_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENTRIES["tensor_version"], "use", ENTRIES["tensor_version"].otherwise)
    with pytest.raises(UpdateError, match="see that a tensor was written in place"):
        gg.Accumulator(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1))
