"""What errors and warnings say, as whole texts: where, what was found, why that is wrong, what to write instead."""

import ast
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import gradgate
from gradgate import errors
from tests.messages import Message, expected, messages, of_ranks, raises, ranks

SOURCE = Path(gradgate.__file__).parent
PACKAGES = (
    "accumulation",
    "batch_layout.py",
    "batch_size",
    "checker",
    "checker/reports",
    "coupled",
    "forward_state.py",
    "gates",
    "losses",
    "planning",
    "ranks",
    "tally.py",
    "byte_sizes.py",
)

ELSEWHERE = (
    # fully_shard, in tests/ranks/test_sharded.py, test_partly_sharded.py and test_coupled.py
    "Accumulator: noise_scale does not work with parameters that are sharded",
    "backward: into does not work under fully_shard",
    "backward: the graph holds gg.clip_gradient. Under fully_shard",
    "backward: the loss runs through a module under fully_shard",
    "backward: {!r} is a second loss, and under fully_shard",
    "micro_batches: rank {} has no micro-batch",
    "state_dict: under fully_shard",
    "update: FullyShardedDataParallel (FSDP1)",
    "update: fully_shard holds gradients",
    "update: parameters are sharded over ranks, but not by fully_shard",
    "update: ranks have reached different parameters",
    "update: the window ended before its last backward pass",
    "update: some modules are under fully_shard and others under DistributedDataParallel",
    "update: ranks {} and {} are at different points",
    "plan: {}. Measuring real passes instead is not possible under fully_shard",  # tests/ranks/test_dealt.py
    # a rank that is gone or out of memory, in tests/ranks/test_failing.py; meshes, in tests/ranks/test_meshes.py
    "update: rank {} of {} waited for",
    "Accumulator: ranks is a mesh of",
    "Accumulator: ranks is given, but this torch was built without",
    # prepared by Accelerate, in tests/integrations/test_exact_accelerate.py
    "update: the optimizer was prepared by Accelerate",
    # a whole report, in tests/checker/test_watch.py
    "watch: the loop shows mistakes",
    # in tests/accumulation
    "backward: the graph holds {}, which runs its own backward pass",
    "load_state_dict: the unfinished window was saved by rank",  # tests/ranks/test_resumed.py
    "load_state_dict: the optimizer's moments were wider",
    "step: memory ran out, and the window cannot be replayed: the forward pass has changed",
)


@pytest.mark.parametrize("name", messages())
def test_the_whole_text_is(name: str) -> None:
    found = messages()[name]()
    assert f"{found.kind}: {found.text}" == expected()[name]


def test_the_whole_texts_on_ranks_are() -> None:
    for name, found in of_ranks().items():
        assert f"{found.kind}: {found.text}" == expected()[name]


def test_no_text_is_left_over() -> None:
    assert list(expected()) == [*messages(), *ranks.CASES]


def test_a_message_of_another_cause_or_with_other_facts_is_told_apart() -> None:
    changed = {
        "a negative count": ("-1", "nan"),
        "a vector": ("[8]", "[2, 3]"),
        "closure": ("LBFGS", "Sharpness"),
    }
    texts = {name: expected()[name].partition(": ") for name in changed}
    kinds = {name: getattr(errors, kind) for name, (kind, _, _) in texts.items()}
    for cause, kind in kinds.items():
        for name, (_, _, text) in texts.items():
            rejected = nullcontext() if name == cause else pytest.raises(AssertionError)
            with rejected, raises(kind, cause):
                raise kind(text.replace(*changed[name]))
    kind, text = kinds["a vector"], texts["a vector"][2]
    with raises(kind, "a vector", "[2, 3]"):
        raise kind(text.replace("[8]", "[2, 3]"))
    with pytest.raises(AssertionError), raises(kind, "a vector", "[3, 2]"):
        raise kind(text.replace("[8]", "[2, 3]"))
    with pytest.raises(AssertionError), raises(Exception, "a vector"):
        raise errors.CountError(text)


def raised_in(package: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield file, first and last line, and text of each error or warning with a text of its own."""
    for file in sorted((SOURCE / package).glob("*.py")) or [SOURCE / package]:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            call = (
                node.exc
                if isinstance(node, ast.Raise)
                else node.value
                if isinstance(node, ast.Expr)
                else None
            )
            if not isinstance(call, ast.Call) or not call.args:
                continue
            kinds = {ast.unparse(part) for part in (call.func, *call.args[1:2])}
            found = (getattr(errors, kind, None) for kind in kinds)
            if any(isinstance(each, type) and issubclass(each, Exception) for each in found):
                yield (
                    file.relative_to(SOURCE).as_posix(),
                    node.lineno,
                    node.end_lineno or 0,
                    text_of(call.args[0]),
                )


def text_of(node: ast.expr) -> str:
    """Return a text as the source writes it, with braces for its values."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        values = (part if isinstance(part, ast.Constant) else None for part in node.values)
        return "".join("{}" if value is None else str(value.value) for value in values)
    return ""


@pytest.mark.parametrize("package", PACKAGES)
def test_no_message_is_left_out(package: str) -> None:
    seen: list[Message] = [find() for find in messages().values()]
    seen += of_ranks().values() if package.startswith(("accumulation", "ranks")) else ()
    starts = tuple(start.replace("{!r}", "{}") for start in ELSEWHERE)
    left = [
        text
        for file, first, last, text in raised_in(package)
        if text
        and not text.startswith(starts)
        and not any(each.file == file and first <= each.line <= last for each in seen)
    ]
    assert left == []


def everything_raised() -> list[type[BaseException]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", everything_raised(), ids=lambda kind: kind.__name__)
def test_every_error_is_a_gradgate_error_or_warning_and_says_what_it_is_for(
    kind: type[BaseException],
) -> None:
    assert issubclass(kind, (errors.GradgateError, errors.GradgateWarning))
    assert kind.__doc__
    assert kind.__name__ in (errors.__doc__ or "")
