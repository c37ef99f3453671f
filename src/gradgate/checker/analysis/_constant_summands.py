"""Finds the constant summand of a loss, and the line that detached the summand.

The graph shows that a line adds a constant. The source shows the line's summands and where their values come from.
A summand is the constant if it contains a recorded cut, and none of its lines uses a trained parameter in a graph.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from gradgate.checker.analysis._gradient_modes import no_grad_around, without_gradients
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    Scope,
    called,
    definitions,
    functions,
    is_function,
    key_of,
    last_name,
    may_be_module,
    names_read,
    names_stored,
    parameters_of,
    part_of,
    returned,
    scope_at,
    scopes_of,
    statements_at,
    takes,
)
from gradgate.checker.analysis._slices import Slice
from gradgate.checker.analysis._source import spans
from gradgate.events import Backward, Cut, Differentiated, Frame, NoGradEntered, Site

_COPIES = ("float", "tensor", "Tensor", "FloatTensor", "new_tensor")
_LOSSES = ("kl_div", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy", "nll_loss")
_COUNTS = ("one_hot", "bincount", "histc", "argsort")
_JOINS = ("sum", "stack", "cat", "mean")
_VIEWS = ("values", "items")
CONSTANT = Frame("", 0, "")  # ends a search at an expression that never had a graph
_TAKES_LOSS = ("backward", "manual_backward", "scale")  # called on the loss, or with the loss as an argument


def constant_summands(
    run: Run, sites: Iterable[Site], files: Iterable[str]
) -> Iterator[tuple[ast.expr, Site, list[Frame]]]:
    """Yield each summand at these lines that was detached from its graph, the line that adds it, and the cuts.

    There are no cuts if the only constant summand is a loss that was computed without trained parameters.
    """
    files = tuple(files)
    lines = _TrainedLines(run, files)
    for site in sites:
        scope = scope_at(site[0])
        if scope is None:
            continue
        for statement in statements_at(site[0]):
            added = isinstance(statement, ast.AugAssign)
            untrained: list[ast.expr] = []
            for inner, part in summands(scope, getattr(statement, "value", None), files, added):
                value = Slice([(inner, part)], files, lines.cut)
                calls = [(file, node) for file, node in value.nodes if isinstance(node, ast.Call)]
                known = value.resolved | {
                    id(node.func) for file, node in calls if lines.runs_on_cut(file, node)
                }
                named = [each for each in value.nodes if id(each[1]) not in known]
                cuts = [cut for cut in dict.fromkeys(value.ended) if cut != CONSTANT]
                live = any(lines.is_live(*each) for each in named)
                if cuts and not live:
                    yield part, site, cuts
                elif not live:
                    losses = any(called(node) in _LOSSES or lines.is_criterion(node) for _, node in calls)
                    untrained.append(part if losses else ast.Constant(0))
            if len(untrained) == 1 and not isinstance(untrained[0], ast.Constant):
                yield untrained[0], site, []


def has_graph(run: Run, scope: Scope, node: ast.expr, files: tuple[str, ...]) -> bool:
    """Return whether an expression is computed from trained parameters, and nothing in it is detached."""
    lines = _TrainedLines(run, files)
    value = Slice([(scope, node)], files, lines.cut)
    return not value.ended and any(lines.is_live(*each) for each in value.nodes)


def summands(
    scope: Scope, node: ast.AST | None, files: tuple[str, ...], added: bool = False
) -> Iterator[tuple[Scope, ast.expr]]:
    """Yield the summands of the sums in an expression. ``added``: whether the expression is a summand itself."""
    inner: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        for side in (node.left, node.right):
            yield from summands(scope, side, files, added=True)
        return
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        # The sum in ``(a + b) * c`` may be the weight of ``c``.
        inner = [node.left] if isinstance(node.op, ast.Div) or isinstance(node.right, ast.Constant) else []
        inner += [node.right] if isinstance(node.left, ast.Constant) else []
    elif isinstance(node, ast.UnaryOp):
        inner = [node.operand]
    elif isinstance(node, ast.Tuple):
        inner = node.elts
    elif isinstance(node, ast.Call) and called(node) in (*_JOINS, *_TAKES_LOSS):
        given = node.args[0] if node.args else getattr(node.func, "value", None)
        elements = list(_elements(scope, given, files)) if called(node) in _JOINS else []
        for element in elements:
            yield from summands(*element, files, added=True)
        if elements:
            return
        inner = [given] if isinstance(given, ast.expr) else []
    parts = [part for each in inner for part in summands(scope, each, files)]
    yield from parts
    if added and not parts and isinstance(node, ast.expr):
        yield from _of_loop(scope, node, files) or [(scope, node)]


def _of_loop(scope: Scope, part: ast.expr, files: tuple[str, ...]) -> list[tuple[Scope, ast.expr]]:
    """Return the entries that a loop adds one by one, if a summand reads the loop's variable."""
    made = (each for name in sorted(names_read(part)) for each in definitions(scope).get(name, ()))
    loops = (
        each for each in made if isinstance(each.statement, ast.For) and spans(each.statement, part.lineno)
    )
    return [entry for each in loops for entry in _elements(scope, each.value, files)]


def _elements(
    scope: Scope, node: ast.AST | None, files: tuple[str, ...], place: int | None = None, deep: int = 4
) -> Iterator[tuple[Scope, ast.expr]]:
    """Yield the entries of the list or dict that a node writes out or names, or that a function returns."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
        node = node.func.value
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        for loop in node.generators:
            if names_read(node.elt) & names_stored(loop.target):
                yield from _elements(scope, loop.iter, files, None, deep - 1)
    elif isinstance(node, (ast.List, ast.Tuple)):
        yield from ((scope, each) for each in node.elts)
    elif isinstance(node, ast.Dict):
        yield from ((scope, each) for each in node.values)
    elif isinstance(node, ast.Name) and deep:
        for each in definitions(scope).get(node.id, ()):
            if isinstance(each.value, ast.Dict) or (each.whole and each.value is not node):
                yield from _elements(scope, each.value, files, each.place, deep - 1)
            elif not each.whole and isinstance(each.statement, (ast.Expr, ast.Assign)):
                yield scope, each.value
    elif isinstance(node, ast.Call) and deep:
        named = functions(called(node), files)
        if not named and may_be_module(node, scope.file, files):
            named = [each for each in functions("forward", files) if takes(each.node, node)]
        for inner in named:
            for value in returned(inner):
                part = value if place is None else part_of(value, place)[0]
                yield from _elements(inner, part, files, None, deep - 1)


def is_count(node: ast.AST) -> bool:
    """Return whether an expression counts or compares values and so has no gradient: ``F.one_hot(indices)``."""
    if isinstance(node, ast.Compare):
        return not any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops)
    return isinstance(node, ast.Call) and called(node) in _COUNTS


class _TrainedLines:
    """The lines that cut gradients of trained parameters, and the lines that use trained parameters in a graph."""

    def __init__(self, run: Run, files: tuple[str, ...]) -> None:
        self._files = files
        self._reading: set[int] = set()  # ids of the copies whose arguments are being read
        cuts = [(event, event.op) for event in run.of(Cut) if event.parameters & run.owned]
        drawn = [event for event in run.of(Differentiated) if event.reached & run.owned and not event.create]
        cuts += [(event, "grad") for event in drawn]
        self._cuts = {(event.site[0].file, event.site[0].line, name) for event, name in cuts if event.site}
        self._off = {event.site[0][:2] for event in run.of(NoGradEntered) if event.site}
        self._live = {frame[:2] for event in run.of(Backward) for _, site in event.uses for frame in site}
        roots = {part for number in run.owned for part in run.parameters[number].root.split(".")}
        self._roots = roots - {"", "self"}
        names = [run.name(number).split(".") for number in run.owned]
        self._names = {part for parts in names for part in parts if not part.isdigit()}
        # "weight" may also be the weight of a term.
        self._common = {parts[-1] for parts in names} - {part for parts in names for part in parts[:-1]}

    def cut(self, file: str, node: ast.AST) -> Frame | None:
        """Return the line that detaches an expression from its graph, or None."""
        if not isinstance(node, ast.expr) or not hasattr(node, "lineno"):  # the slice constructed this node
            return None
        name = last_name(getattr(node, "func", node))
        # A straight-through estimator adds (hard - soft).detach() to soft.
        of = getattr(getattr(node, "func", node), "value", None)
        cut = isinstance(node, ast.Call) or getattr(node, "attr", "") == "data"
        if cut and not isinstance(of, ast.BinOp) and any((file, n, name) in self._cuts for n in _lines(node)):
            return Frame(file, node.lineno, "")
        # state_dict() detaches each parameter.
        if name == "state_dict" and any((file, n, "detach") in self._cuts for n in _lines(node)):
            return Frame(file, node.lineno, "")
        if name == "detach" and cut and not isinstance(of, ast.BinOp) and not functions(name, self._files):
            return CONSTANT
        if isinstance(node, ast.Call) and (end := self._of_cut_values(file, node)) is not None:
            return end
        if (self._copies(file, node) or is_count(node)) and self._of_trained(file, node):
            return Frame(file, node.lineno, "")
        block = no_grad_around(Frame(file, node.lineno, ""))
        # A decorated function turns gradients off at the line of the call.
        for scope in functions(name, self._files) if isinstance(node, ast.Call) else ():
            line = without_gradients(scope.node)
            block = Frame(scope.file, line, "") if line is not None else block
        if block is None or not {block[:2], (file, node.lineno)} & self._off:
            return None
        return block if self._of_trained(file, node) else None

    def _copies(self, file: str, node: ast.expr) -> bool:
        """Return whether a call makes a number or a tensor from a value that has its graph until then."""
        if not isinstance(node, ast.Call) or called(node) not in _COPIES or id(node) in self._reading:
            return False
        self._reading.add(id(node))
        around = scope_at(Frame(file, node.lineno, ""))
        given = [(around, each) for each in node.args] if around is not None else []
        ended = Slice(given, self._files, self.cut).ended
        self._reading.remove(id(node))
        return bool(given) and not ended

    def _of_trained(self, file: str, node: ast.expr) -> bool:
        """Return whether an expression is computed from the output of a trained module."""
        around = scope_at(Frame(file, node.lineno, ""))
        value = Slice([(around, node)] if around is not None else [], self._files)
        return any(self._is_trained(*each) for each in value.nodes)

    def _of_cut_values(self, file: str, call: ast.Call) -> Frame | None:
        """Return the cut if a loss function gets only constants and the output of a module on a detached value.

        An example is ``criterion(discriminator(fake.detach()), True)``, at a line that uses no trained parameter.
        """
        others = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
        first = call.args[0] if call.args else None
        if not isinstance(first, ast.Call) or not all(isinstance(each, ast.Constant) for each in others):
            return None
        used = any((file, line) in self._live for line in _lines(call))
        if used or not may_be_module(first, file, self._files):
            return None
        ends = [self.cut(file, given) for given in first.args]
        return ends[0] if ends and None not in ends and not first.keywords else None

    def runs_on_cut(self, file: str, call: ast.Call) -> bool:
        """Return whether a module is called with a detached value, as in ``discriminator(fake.detach())``."""
        inner = [node for given in call.args for node in ast.walk(given)]
        return may_be_module(call, file, self._files) and any(self.cut(file, node) for node in inner)

    def is_criterion(self, call: ast.Call) -> bool:
        """Return whether a call is that of a loss module of torch: ``self.criterion = nn.KLDivLoss()``."""
        scopes = (scope for file in self._files for scope in scopes_of(file))
        made = [each.value for scope in scopes for each in definitions(scope).get(key_of(call.func), ())]
        return bool(made) and all(
            isinstance(each, ast.Call) and re.fullmatch(r"(torch\.)?nn\.\w+Loss", ast.unparse(each.func))
            for each in made
        )

    def is_live(self, file: str, node: ast.AST) -> bool:
        """Return whether an expression names or calls a trained module, or names a trained parameter."""
        if isinstance(node, ast.Name) and (scope := scope_at(Frame(file, node.lineno, ""))) is not None:
            made = definitions(scope).get(node.id, ())
            if any(self.cut(file, each.value) for each in made):  # a layer's name for its detached output
                return False
        if last_name(node) in self._common and self._is_number(file, node):
            return False
        return last_name(node) in self._names or self._is_trained(file, node)

    def _is_number(self, file: str, node: ast.AST) -> bool:
        """Return whether a node is an argument of its function, or an attribute set only to names and constants."""
        scope = scope_at(Frame(file, getattr(node, "lineno", 0), ""))
        if isinstance(node, ast.Name):
            return scope is not None and is_function(scope.node) and node.id in parameters_of(scope.node)
        scopes = (other for each in self._files for other in scopes_of(each))
        made = [each.value for other in scopes for each in definitions(other).get(key_of(node), ())]
        return bool(made) and all(isinstance(each, (ast.Name, ast.Constant)) for each in made)

    def _is_trained(self, file: str, node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and may_be_module(node, file, self._files):
            own = functions(called(node), self._files)  # the values that they return are followed
            return not own and any((file, line) in self._live for line in _lines(node))
        name = last_name(node)
        scope = scope_at(Frame(file, getattr(node, "lineno", 0), "")) if name in self._roots else None
        # An argument of the function may be another model with this name, so only the callers' arguments count.
        return scope is not None and not (is_function(scope.node) and name in parameters_of(scope.node))


def _lines(node: ast.AST) -> range:
    return range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", 0) or 0) + 1)
