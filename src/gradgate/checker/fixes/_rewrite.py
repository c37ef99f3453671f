"""Apply a fix to a syntax tree. Only this module imports LibCST, so import the module only when needed."""

from __future__ import annotations

import ast
import builtins
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from gradgate.checker.fixes._fix import Delete, Fix, Insert, Move, PutUnder, Replace, Unwrap

Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement
Block: TypeAlias = cst.Module | cst.IndentedBlock


class _MisfitError(Exception):
    """A change does not fit the source or would break it."""


def rewritten(source: str, fix: Fix) -> str | None:
    """Return the source with a fix applied, or None if the fix does not fit the source or would break it."""
    try:
        after = _Rewriter(source, fix).code()
        before_names, after_names = _names(ast.parse(source)), _names(tree := ast.parse(after))
    except (_MisfitError, cst.ParserSyntaxError, SyntaxError, ValueError):
        return None
    unknown = after_names - before_names - _bound(tree) - {*dir(builtins)}
    return None if unknown or after == source else after


@functools.lru_cache(maxsize=8)
def _parsed(source: str) -> tuple[cst.Module, dict[cst.CSTNode, tuple[int, int]]]:
    """Return a syntax tree, and the first and last line of each node."""
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    ranges = wrapper.resolve(PositionProvider)
    return wrapper.module, {node: (at.start.line, at.end.line) for node, at in ranges.items()}


class _Rewriter(cst.CSTTransformer):
    def __init__(self, source: str, fix: Fix) -> None:
        super().__init__()
        self._module, self._lines = _parsed(source)
        self._source = source
        self._before: dict[Statement, list[Statement]] = defaultdict(list)
        self._after: dict[Statement, list[Statement]] = defaultdict(list)
        self._deleted: set[cst.CSTNode] = set()
        self._moved: set[Statement] = set()  # a subset of _deleted
        self._headers: dict[Statement, cst.With] = {}
        self._unwrapped: set[Statement] = set()
        self._replaced: dict[cst.CSTNode, cst.BaseExpression] = {}
        for change in fix:
            if isinstance(change, Insert):
                new = cst.parse_module(change.text, self._module.config_for_parsing).body
                self._beside(change.before, change.after).extend(new)
            elif isinstance(change, Move):
                self._move(change)
            elif isinstance(change, Delete):
                self._deleted.add(self._decorator(change.line) or self._simple(change.line))
            elif isinstance(change, Replace):
                self._replace(change)
            elif isinstance(change, PutUnder):
                header = cst.parse_statement(f"{change.header}\n    pass", self._module.config_for_parsing)
                assert isinstance(header, cst.With)  # noqa: S101
                self._headers[self._statement(change.line)] = header
            else:
                self._unwrap(change)

    def code(self) -> str:
        """Return the source with the changes applied."""
        return self._module.visit(self).code

    # The statement of a line

    def _statement(self, line: int) -> Statement:
        """Return the innermost statement on a line, which must not share its lines with another statement."""
        blocks = (node for node in self._lines if isinstance(node, cst.Module | cst.IndentedBlock))
        holding = [
            statement
            for block in blocks
            for statement in block.body
            if self._lines[statement][0] <= line <= self._lines[statement][1]
        ]
        if not holding:
            raise _MisfitError
        found = min(holding, key=lambda node: self._lines[node][1] - self._lines[node][0])
        shared = isinstance(found, cst.SimpleStatementLine) and len(found.body) > 1
        if shared or any(isinstance(node, cst.SimpleStatementSuite) for node in found.children):
            raise _MisfitError  # several statements on one line
        return found  # type: ignore[return-value]

    def _simple(self, line: int) -> cst.SimpleStatementLine:
        found = self._statement(line)
        if not isinstance(found, cst.SimpleStatementLine):
            raise _MisfitError
        return found

    def _decorator(self, line: int) -> cst.Decorator | None:
        return next(
            (node for node, at in self._lines.items() if isinstance(node, cst.Decorator) and at[0] == line),
            None,
        )

    def _beside(self, before: int, after: int) -> list[Statement]:
        return self._before[self._statement(before)] if before else self._after[self._statement(after)]

    # Changes

    def _move(self, change: Move) -> None:
        moved, beside = self._simple(change.line), self._beside(change.before, change.after)
        first, last = sorted((change.line, change.before or self._lines[self._statement(change.after)][1]))
        names = [node for node in ast.walk(ast.parse(self._source)) if isinstance(node, ast.Name)]
        low, high = self._lines[moved]
        own = [name for name in names if low <= name.lineno <= high]
        between = [name for name in names if first <= name.lineno <= last and not low <= name.lineno <= high]
        for name in own:
            stored = isinstance(name.ctx, ast.Store)
            if any(name.id == other.id and (stored or isinstance(other.ctx, ast.Store)) for other in between):
                raise _MisfitError
        self._deleted.add(moved)
        self._moved.add(moved)
        beside.append(moved.with_changes(leading_lines=_split(moved.leading_lines)[1]))

    def _replace(self, change: Replace) -> None:
        statement, old = self._statement(change.line), _meaning(change.old)
        found = [node for node in _within(statement) if self._means(node) == old]
        if len(found) != 1:
            raise _MisfitError
        kept = {self._means(node): node for node in [*_within(found[0]), found[0]]}
        new = cst.parse_expression(change.new, self._module.config_for_parsing).visit(
            _Keep(self._module, kept)
        )
        assert isinstance(new, cst.BaseExpression)  # noqa: S101
        new = self._with_more_arguments(found[0], new) or new
        atom = isinstance(new, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
        inside = any(self._means(node) == old for node in _within(new))
        if not (atom or inside or new.lpar):
            new = new.with_changes(lpar=found[0].lpar, rpar=found[0].rpar)
        self._replaced[found[0]] = new

    def _with_more_arguments(self, old: cst.CSTNode, new: cst.CSTNode) -> cst.Call | None:
        """Return a call with arguments added, formatted like the original; None for any other change."""
        if not isinstance(old, cst.Call) or not isinstance(new, cst.Call) or not old.args:
            return None
        more = new.args[len(old.args) :]
        if not more:
            return None
        last, between = old.args[-1], old.args[0].comma if len(old.args) > 1 else cst.MaybeSentinel.DEFAULT
        end = more[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
        whole = old.with_changes(args=[*old.args[:-1], last.with_changes(comma=between), *more[:-1], end])
        return whole if self._means(whole) == self._means(new) else None

    def _means(self, node: cst.CSTNode) -> str:
        return _meaning(self._module.code_for_node(node))

    def _unwrap(self, change: Unwrap) -> None:
        statement = self._statement(change.line)
        if not isinstance(getattr(statement, "body", None), cst.IndentedBlock):
            raise _MisfitError
        self._unwrapped.add(statement)

    # The tree with the changes

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        if original_node in self._replaced:
            return self._replaced[original_node]
        if isinstance(original_node, cst.FunctionDef) and self._deleted.intersection(
            original_node.decorators
        ):
            kept = [node for node in original_node.decorators if node not in self._deleted]
            return updated_node.with_changes(decorators=kept)
        if isinstance(original_node, cst.Module | cst.IndentedBlock):
            return self._block(original_node, updated_node)  # type: ignore[arg-type]
        return updated_node

    def _block(self, original: Block, updated: Block) -> Block:
        body: list[Statement] = []
        blank: Sequence[cst.EmptyLine] = ()  # the blank lines above a deleted statement
        pairs: Iterable[tuple[Any, Any]] = zip(original.body, updated.body, strict=True)
        for before, after in pairs:
            above, comments = _split(after.leading_lines)
            for new in self._before.get(before, ()):
                body.append(new.with_changes(leading_lines=[*blank, *above, *new.leading_lines]))
                blank = above = ()
            if before in self._deleted:
                blank = [*blank, *above, *([] if before in self._moved else comments)]
            else:
                lines = [*blank, *above, *comments]
                body += self._changed(before, after.with_changes(leading_lines=lines))
                blank = ()
            body += self._after.get(before, ())
        unwrapped = any(original is statement.body for statement in self._unwrapped)
        if not body and original.body and not unwrapped:
            raise _MisfitError
        return updated.with_changes(body=body, footer=[*blank, *updated.footer])

    def _changed(self, before: Statement, after: Any) -> list[Statement]:
        if before in self._headers:
            inner = cst.IndentedBlock([after.with_changes(leading_lines=())])
            return [self._headers[before].with_changes(body=inner, leading_lines=after.leading_lines)]
        if before in self._unwrapped:
            if not after.body.body:
                return []
            first, *others = after.body.body
            return [first.with_changes(leading_lines=[*after.leading_lines, *first.leading_lines]), *others]
        return [after]


class _Keep(cst.CSTTransformer):
    """Reuses the nodes of the old expression that are repeated in the new one, to keep their formatting."""

    def __init__(self, module: cst.Module, kept: Mapping[str, cst.CSTNode]) -> None:
        super().__init__()
        self._module, self._kept = module, kept

    def on_visit(self, node: cst.CSTNode) -> bool:
        return self._known(node) is None

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        known = self._known(original_node)
        if known is None:
            return updated_node
        parentheses = {name: getattr(known, name) or getattr(updated_node, name) for name in ("lpar", "rpar")}
        return known.with_changes(**parentheses)

    def _known(self, node: cst.CSTNode) -> cst.CSTNode | None:
        if not isinstance(node, cst.BaseExpression):
            return None
        return self._kept.get(_meaning(self._module.code_for_node(node)))


def _within(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield the expressions in a node. For a statement with a block, yield only those in the header.

    Names of attributes and keywords are no expressions.
    """
    names = (getattr(node, "attr", None), getattr(node, "keyword", None))
    for child in node.children:
        if isinstance(child, cst.BaseExpression) and child not in names:
            yield child
        if not isinstance(child, cst.BaseSuite | cst.BaseStatement):
            yield from _within(child)


def _meaning(code: str) -> str:
    """Return an expression's syntax tree as text, which does not depend on formatting."""
    try:
        return ast.dump(ast.parse(f"({code.strip()}\n)", mode="eval"))
    except SyntaxError:
        return f"no expression: {code}"


def _split(lines: Sequence[cst.EmptyLine]) -> tuple[Sequence[cst.EmptyLine], Sequence[cst.EmptyLine]]:
    """Split the lines above a statement at the last blank line, below which are the statement's comments."""
    blank = max((place + 1 for place, line in enumerate(lines) if line.comment is None), default=0)
    return lines[:blank], lines[blank:]


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _bound(tree: ast.AST) -> set[str]:
    """Return the names that are bound anywhere in a file."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
    return names
