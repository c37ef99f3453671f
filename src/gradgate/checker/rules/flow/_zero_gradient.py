"""A parameter's gradient is exactly zero in every step.

## What it does
Looks for parameters of an optimizer whose gradient was all zero in every check. Names the operation that made the
gradient zero in the backward pass: a ReLU below zero, ``round``, a clamp outside its range, a saturated ``tanh``, a
softmax over one value, or a factor of zero. If float16 rounded a loss's gradients to zero and no ``GradScaler``
scales the loss, names the backward call.

## Why is this bad?
The parameter is in the graph and in the optimizer, but the loss doesn't train it. No error is raised.

## Example
    scores = F.relu(F.log_softmax(logits, dim=1))        # log-probabilities are negative

## Use instead
    scores = F.log_softmax(logits, dim=1)

## Known limits
A gradient is judged after three checks, which gives factors that start at zero (LoRA, ReZero) time to change.
Experts and other layers of a list are not reported if some of them get a gradient. For a factor that is written as
0, even in a call, the finding is a note. The cause of a zero factor is named only if
``nn.Parameter(torch.zeros(...))`` makes it or ``//`` rounds it. Otherwise, for example if a low initial bias puts a
ReLU below zero, the finding is at the operation itself.

## Sources
docs/checking.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, definitions, functions, key_of, scope_at, scopes_of
from gradgate.checker.analysis._slices import Slice
from gradgate.checker.analysis._source import inside, statement_at, text_of, whole_text
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.ownership._batch_norms import freezing_line
from gradgate.events import Combined, Frame, Parameter, ScalerUsed

_LOOKS = 3
_PRODUCTS = "mul mm addmm bmm mv dot"
_BY_OPERATION = {
    "round floor ceil trunc sign": "Remove the rounding before the loss, or pass the gradient "
    "through the rounding: x + (torch.round(x) - x).detach().",
    "softmax logsoftmax": "Make the differences between the softmax's inputs smaller.",
    "relu": "No input of the ReLU is above zero: remove the ReLU, or initialize its inputs above zero.",
    "clamp clampmin clampmax clip hardtanh": "Initialize the values inside the limits of the clamp.",
    "tanh sigmoid": "Scale the inputs down: all values are at the limit of this function.",
    # The last one: a factor may be zero because of one of the other operations.
    _PRODUCTS: "A factor of this product is 0 in each step: initialize it with nonzero values. If "
    "it starts at 0 on purpose, let an optimizer train it.",
}
_ONE_VALUE = (
    "A softmax over one value is always 1: use a sigmoid for one output, or give the last layer one output for "
    "each class."
)
_FROZEN = "Don't freeze `{}`, and pass it to the optimizer, too: it then moves away from zero."
_IN_GENERAL = (
    "Choose initial values inside the range, remove the rounding or the ReLU before the loss, or initialize one of "
    "the two factors with nonzero values."
)
_SCALED = (
    "Scale the loss with a torch.amp.GradScaler: scaler.scale(loss).backward(), scaler.step(optimizer), "
    "scaler.update(). Or use torch.bfloat16 instead of torch.float16."
)
_CHOSEN = "A factor at this line is set to 0. To train the parameters, give it another value."
# key = 0, key: 0.0, "key": 0, key: float = 0, "--key", default=0
_WRITTEN_ZERO = r"\b{key}\b[\"']?(\s*(:\s*\w+\s*)?[=:]|[^\n]*\bdefault=)\s*0(\.0*)?(?![\d.])"


def _judge(run: Run) -> Iterator[Finding]:
    groups = grouped(
        (parameter.zeroed[0], parameter)
        for parameter in run.parameters.values()
        if parameter.id in run.owned and parameter.zeroed and _LOOKS <= parameter.looks == parameter.zeros
        if not _has_live_sibling(run, parameter)
    )
    half = [event.backward for event in run.of(Combined) if event.how == "float16"]
    unscaled = bool(half) and not any(event.op == "scale" for event in run.of(ScalerUsed))
    # A matrix of zeros is the other cause of zero gradients behind a layer.
    unscaled &= not any(each.began == 0 and len(each.shape) > 1 for each in run.parameters.values())
    for frame, several in groups.items():
        factors = _factors(frame)
        ids = frozenset(parameter.id for parameter in several)
        looks = min(parameter.looks for parameter in several)
        chosen, frozen = _written_as_zero(run, frame, factors), _frozen_factor(run, frame)
        advice = _CHOSEN if chosen else _FROZEN.format(frozen) if frozen else _advice(several, frame, factors)
        cause = f"the operation at line {frame.line} has a derivative of zero"
        if frozen:
            cause = f"`{frozen}`, a factor at line {frame.line}, is zero and frozen"
        elif advice == _ONE_VALUE:
            cause = f"the softmax at line {frame.line} runs over one value and is constant"
        elif unscaled and advice in (_IN_GENERAL, _BY_OPERATION[_PRODUCTS]):
            cause = (
                f"it is too small for float16 at line {frame.line}, and no gradient scaler scales this loss"
            )
            advice = _SCALED
        where = freezing_line(run, ids) if frozen else _made_of_zeros(several) or _rounded(frame, factors)
        yield RULE.finding(
            half[0] if advice == _SCALED else frame if chosen else where or frame,
            f"The gradient of {run.names(ids)} was all zeros in each of {looks} steps, because {cause}.",
            why="The parameters are in the graph and in the optimizer, but the loss doesn't train them.",
            advice=advice,
            fix=() if advice == _SCALED else not_rounded,
            severity="info" if chosen or _has_floor(frame) or run.ended == "stopped" else None,
            count=looks,
            evidence={"parameters": len(several), "steps": looks},
            about=ids,
        )


def _has_floor(frame: Frame) -> bool:
    """Return whether a line clamps a mean or a sum, which then has a gradient only above the limit (free bits)."""
    clamps = [
        call
        for call in inside(ast.Call, statement_at(frame))
        if called(call) in ("clamp", "clamp_min", "clip", "maximum")
    ]
    return any(called(node) in ("mean", "sum") for node in inside(ast.Call, *clamps))


def _advice(several: list[Parameter], frame: Frame, factors: list[ast.expr]) -> str:
    """Return advice that gives a nonzero gradient, depending on the operation of the line."""
    if _made_of_zeros(several):
        return "Initialize one of the factors with nonzero values: a product of zeros has the derivative 0."
    if _rounded(frame, factors) or "//" in text_of(frame):
        return "Divide with / instead of //."
    operations = {parameter.zeroed_by.partition("Backward")[0].lower() for parameter in several} - {""}
    operations = operations or {
        called(call).strip("_").lower() for call in inside(ast.Call, statement_at(frame))
    }
    single = any(parameter.shape[:1] == (1,) for parameter in several)
    if single and operations & {"softmax", "logsoftmax", "log_softmax"}:  # over a layer's only output
        return _ONE_VALUE
    return next(
        (advice for names, advice in _BY_OPERATION.items() if operations & {*names.split()}), _IN_GENERAL
    )


def _has_live_sibling(run: Run, parameter: Parameter) -> bool:
    """Return whether another layer of the same list gets a gradient, such as an expert that is used."""
    kind = _without_numbers(parameter.name)
    return kind != parameter.name and any(
        other.zeros < other.looks and other.shape == parameter.shape and _without_numbers(other.name) == kind
        for other in run.parameters.values()
    )


def _without_numbers(name: str) -> str:
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


def _factors(frame: Frame) -> list[ast.expr]:
    """Return both sides of each product at a line."""
    nodes = inside(ast.BinOp, statement_at(frame))
    products = [node for node in nodes if isinstance(node.op, ast.Mult)]
    return [side for node in products for side in (node.left, node.right)]


def _written_as_zero(run: Run, frame: Frame, factors: list[ast.expr]) -> bool:
    """Return whether a factor is the number 0, even as an argument, or a name that the file sets to 0."""
    scope = scope_at(frame)
    for side in factors:
        given = [node for _, node in Slice([(scope, side)] if scope is not None else [], run.files).nodes]
        plain = all(isinstance(node, (ast.Name, ast.Attribute, ast.Constant)) for node in given)
        if plain and any(isinstance(node, ast.Constant) and node.value == 0 for node in given):
            return True
    names = {re.escape(key_of(side).lstrip(".")).replace("_", "[_-]") for side in factors} - {""}
    return any(re.search(_WRITTEN_ZERO.format(key=name), whole_text(frame.file)) for name in names)


def _frozen_factor(run: Run, frame: Frame) -> str:
    """Return the parameter or layer at a line that starts at zero and that no loss reaches: "lora_B"."""
    reached, scopes = run.words(run.reached), list(scopes_of(frame.file))
    for name in (node.attr for node in inside(ast.Attribute, statement_at(frame))):
        made = [each.value for scope in scopes for each in definitions(scope).get(f".{name}", ())]
        layers = [value for value in made if isinstance(value, ast.Call) and called(value)[:1].isupper()]
        zeros = any(called(layer) == "Parameter" and "zeros" in ast.unparse(layer) for layer in layers)
        if name not in reached and layers:
            text = whole_text(frame.file)
            if zeros or re.search(rf"zeros_\([^\n]*\.{name}\b|\.{name}\b[^\n]*\.zero_\(", text):
                return name
    return ""


def _made_of_zeros(several: list[Parameter]) -> Frame | None:
    """Return where two factors are initialized with zeros, so that each makes the other's gradient zero."""
    made = [parameter.made[0] for parameter in several if parameter.made]
    zeros = [frame for frame in made if "Parameter" in (text := text_of(frame)) and "zeros" in text]
    return zeros[0] if len(zeros) > 1 or len(zeros) == len(several) else None


def _rounded(frame: Frame, factors: list[ast.expr]) -> Frame | None:
    """Return the line that computes a factor and rounds it to zero: ``epoch // warm_up``."""
    scope = scope_at(frame)
    for key in filter(None, map(key_of, factors)):
        found = list(definitions(scope).get(key, ())) if scope is not None else []
        for inner in functions(key[1:], [frame.file]) if key.startswith(".") else ():  # a property or method
            found += [each for several in definitions(inner).values() for each in several]
        for each in found:
            if inside(ast.FloorDiv, each.value):
                return frame._replace(line=each.value.lineno)
    return None


def not_rounded(at: Statement) -> Fix:
    """Divide without rounding, unless the statement needs an integer, such as an index or a size."""
    rounding = [
        node for node in at.expressions() if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
    ]
    if len(rounding) != 1:
        return ()
    for outer in at.around(rounding[0]):
        if isinstance(outer, ast.Lambda):
            break
        if isinstance(outer, ast.Call) and ast.unparse(outer.func) not in ("min", "max", "float"):
            return ()
        if isinstance(outer, ast.Subscript):
            return ()
    exact = ast.BinOp(rounding[0].left, ast.Div(), rounding[0].right)
    return (Replace(at.line, ast.unparse(rounding[0]), ast.unparse(exact)),)


RULE = Rule("GG403", "zero-gradient", "error", __doc__ or "", _judge)
