"""Reads a PyTorch script, without running it, as one flat list of statements.

`main()`, and functions that load data, make optimizers or train, are written out where they are
called. An `if` whose condition follows from constants and argparse's defaults is decided.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from downpour.base.errors import SpecError

OPTIMIZERS = {
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon"),
    *("NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"),
}
_INLINED = {"DataLoader", "backward", "parse_args", "parse_known_args", *OPTIMIZERS}
_KEEPS = {"cpu", "cuda", "eval", "load_state_dict", "share_memory", "step", "to", "train"}
"""Methods that leave an object as it is, or as Downpour makes it; others may change it."""
_ACTS = ast.Call | ast.Lambda | ast.comprehension | ast.NamedExpr | ast.Pow | ast.LShift | ast.Await


def name_of(node: ast.AST | None) -> str:
    """Return the last name of a call, an attribute or a name: `Adam` of `torch.optim.Adam(...)`."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "attr", getattr(node, "id", ""))


def root_of(node: ast.AST) -> str:
    """Return the name that an expression begins with: `net` of `net.head[0].weight`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return name_of(node)


def calls_in(*nodes: ast.AST) -> list[ast.Call]:
    """Return all calls in some nodes."""
    return [node for one in nodes for node in ast.walk(one) if isinstance(node, ast.Call)]


def reads(*nodes: ast.AST) -> set[str]:
    """Return the names that nodes read, but those of comprehensions and parameters."""
    inner = [x for one in nodes for x in ast.walk(one)]
    own = {x for one in inner if isinstance(one, ast.comprehension) for x in bound(one.target)}
    own |= {one.arg for one in inner if isinstance(one, ast.arg)}
    names = (one for one in inner if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, ast.Load)} - own


def bound(node: ast.AST) -> set[str]:
    """Return the names that a statement sets."""
    found = {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return found | {one.id for one in names if isinstance(one.ctx, ast.Store)}


def changed(node: ast.AST) -> set[str]:
    """Return the names whose objects a statement changes, as `net.fc = ...` does."""
    found: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute | ast.Subscript) and isinstance(one.ctx, ast.Store):
            found.add(root_of(one))
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            function = one.value.func
            found |= set() if name_of(function) in _KEEPS else {root_of(function)}
            if re.search(r"(^|\.)(init\.\w+|shuffle)$", ast.unparse(function)):
                found |= {root_of(argument) for argument in one.value.args}
    loops = [one for one in ast.walk(node) if isinstance(one, ast.For)]
    return found.union(*(reads(one.iter) for one in loops if found & bound(one.target)))


def has_backward(node: ast.AST) -> bool:
    """Whether a statement computes gradients."""
    return any(name_of(call) == "backward" for call in calls_in(node))


def plain(node: Any) -> Any:
    """Return an iterable without enumerate or a progress bar around it."""
    while isinstance(node, ast.Call) and name_of(node) in {"enumerate", "tqdm", "track"}:
        node = node.args[0]
    return node


def parameters_in(*nodes: ast.AST) -> list[str]:
    """Return the names of the networks whose parameters some code takes."""
    calls = [x for x in calls_in(*nodes) if name_of(x) in {"parameters", "named_parameters"}]
    return [root_of(one.func) for one in calls]


def is_device(value: ast.expr) -> bool:
    """Whether a value names or makes a device of torch."""
    if isinstance(value, ast.Attribute | ast.Call):
        return name_of(value) == "device"
    texts = [str(one.value) for one in ast.walk(value) if isinstance(one, ast.Constant)]
    return isinstance(value, ast.IfExp | ast.Constant) and any(one[:4] == "cuda" for one in texts)


def free(node: ast.AST) -> set[str]:
    """Return the names that a definition takes from its module."""
    return reads(node) - bound(node)


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, ast.expr]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        new = copy.copy(self._names.get(node.id, node))
        if isinstance(new, ast.Name):
            new.ctx = node.ctx
        return ast.copy_location(new, node)


class Script:
    """A script: its flat statements, its definitions, and the values that follow from them.

    Raises:
        SpecError: it is not Python, or no loop of it trains.
    """

    def __init__(self, source: str, shown: str) -> None:
        try:
            self.tree = ast.parse(source)
        except (SyntaxError, ValueError) as error:
            said = f"must be a Python script: line {getattr(error, 'lineno', None) or 1} is none"
            raise SpecError("from", shown, said) from None
        if not has_backward(self.tree):
            hint = "; a LightningModule or a Trainer needs no port: `downpour run --task FILE:NAME`"
            its = hint if re.search(r"lightning|\bTrainer\b", source) else ""
            said = f"has no training loop: nothing in it calls backward(){its}"
            raise SpecError("from", shown, said)
        body, kinds = self.tree.body, ast.FunctionDef | ast.ClassDef
        self.defined = {one.name: one for one in body if isinstance(one, kinds)}
        sets = [one for one in body if isinstance(one, ast.Assign)]
        self.globals = {name: one for one in sets for name in bound(one)}
        self.imports = dict(_imports(self.tree))
        options = self.options = SimpleNamespace()
        self.required: dict[str, ast.Call] = {}
        self.known: dict[str, Any] = {"__name__": "__main__"}
        self._namespaces = {"parse_args": options, "parse_known_args": options}
        self.assigned: dict[str, ast.expr] = {}
        self.contexts: list[ast.withitem] = []
        self._active: list[str] = []
        for kind in [one for one in self.defined.values() if getattr(one, "bases", 0) == []]:
            values = {x: self.value(value) for line in kind.body for x, value in _pairs(line)}
            if values:  # a class that holds the settings
                self.known[kind.name] = self._namespaces[kind.name] = SimpleNamespace(**values)
        self.flat = self._flat(body)

    def value(self, node: ast.AST | None, default: Any = None) -> Any:
        """Return what constants and defaults make of an expression; nothing of the script runs."""
        if isinstance(node, ast.expr) and not any(isinstance(x, _ACTS) for x in ast.walk(node)):
            code = compile(ast.fix_missing_locations(ast.Expression(node)), "script", "eval")
            with suppress(Exception):
                return eval(code, {"__builtins__": {}}, self.known)  # noqa: S307 - it calls nothing
        return default

    @property
    def only_defines(self) -> bool:
        """Whether importing the script trains nothing and asks for no arguments."""
        kinds = ast.FunctionDef | ast.ClassDef
        acts = [one for one in self.tree.body if not isinstance(one, kinds) and self._reaches(one)]
        return all(isinstance(one, ast.If) and "__name__" in reads(one.test) for one in acts)

    def around(self) -> tuple[list[ast.stmt], list[Any]]:
        """Return what comes before the loop over batches, and the loops from the outermost on."""
        setup, loops, body = list[ast.stmt](), list[Any](), self.flat
        while found := [x for x in body if isinstance(x, ast.For | ast.While) and has_backward(x)]:
            setup += body[: body.index(found[0])]
            loops.append(found[0])
            body = loops[-1].body
        return setup, loops

    def _flat(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [flat for one in body for flat in self._flattened(one)]

    def _flattened(self, one: ast.stmt) -> list[ast.stmt]:  # noqa: C901, PLR0911 - one for each kind
        if isinstance(one, ast.Import | ast.ImportFrom) or one in self.defined.values():
            return []
        unknown = object()
        if isinstance(one, ast.If) and (test := self.value(one.test, unknown)) is not unknown:
            return self._flat(one.body if test else one.orelse)
        if self._reaches(one):
            match one:
                case ast.If():
                    return self._flat([*one.body, *one.orelse])
                case ast.With():
                    self.contexts += one.items
                    sets = [_set(one, x.optional_vars, x.context_expr) for x in one.items]
                    return self._flat([*(x for x in sets if x.targets[0]), *one.body])
                case ast.Try():
                    return self._flat([*one.body, *one.finalbody])
                case ast.For() | ast.While():
                    one = copy.copy(one)
                    one.body = self._flat(one.body)
                    return [one]
                case ast.Expr(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
                    function = self.defined.get(root_of(call.func))
                    if isinstance(function, ast.FunctionDef) and function.name not in self._active:
                        return self._inlined(one, call, function)
        if isinstance(one, ast.With) and not any(item.optional_vars for item in one.items):
            self.contexts += one.items
            return self._flat(one.body)
        self._learn(one)
        return [one]

    def _reaches(self, node: ast.AST) -> bool:
        """Whether a statement is part of how the script sets up or takes steps."""
        names = {name_of(call) for call in calls_in(node)}
        self._active.append(getattr(node, "name", ""))
        functions = [self.defined[one] for one in names - set(self._active) if one in self.defined]
        found = bool(names & _INLINED) or any(map(self._reaches, functions))
        self._active.pop()
        return found

    def _inlined(self, one: Any, call: ast.Call, function: ast.FunctionDef) -> list[ast.stmt]:
        """Return a function's body in the place of its call, with arguments for parameters."""
        names = [parameter.arg for parameter in function.args.args]
        defaults = function.args.defaults
        values = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        values |= dict(zip(names, call.args, strict=False))
        values |= {key.arg: key.value for key in call.keywords if key.arg}
        sets = {name for line in function.body for name in bound(line)}
        simple = ast.Attribute | ast.Constant
        renamed = {
            name: value
            for name, value in values.items()
            if isinstance(value, ast.Name) or (isinstance(value, simple) and name not in sets)
        }
        head = [_set(one, ast.Name(x, ast.Store()), values[x]) for x in values if x not in renamed]
        body = [_Renamed(renamed).visit(copy.deepcopy(line)) for line in function.body]
        if body and isinstance(body[-1], ast.Return):
            result = body.pop().value
            if isinstance(one, ast.Assign) and result is not None:
                body += _sets(one, one.targets[0], result)
        self._active.append(function.name)
        flat = self._flat([*head, *body])
        self._active.pop()
        return flat

    def _learn(self, one: ast.stmt) -> None:
        """Note what a statement says; what it does under an unknown condition is not known."""
        for name in bound(one):
            self.known.pop(name, None)
        for inner in ast.walk(one):
            self.assigned |= dict(_pairs(inner))
        for call in calls_in(one):
            if name_of(call) == "add_argument":
                self._learn_option(call)
            sides = (root_of(call.func), *map(name_of, call.args[:1]))
            match [self.assigned.get(name) for name in sides]:
                case [ast.Dict() as these, ast.Dict() as more] if name_of(call) == "update":
                    these.keys, these.values = these.keys + more.keys, these.values + more.values
        self._learn_values(one)

    def _learn_values(self, one: ast.stmt) -> None:
        match one:
            case ast.Assign(targets=[ast.Attribute(value=owner, attr=name)], value=value):
                if self.value(owner) is self.options:
                    setattr(self.options, name, self.value(value))
        for name, value in _pairs(one):
            if name_of(value) in self._namespaces and isinstance(value, ast.Call):
                self.known[name] = self._namespaces[name_of(value)]
            elif (found := self.value(value, self)) is not self:
                self.known[name] = found

    def _learn_option(self, call: ast.Call) -> None:
        words = [str(self.value(one)) for one in call.args] or [""]
        said = {key.arg: self.value(key.value) for key in call.keywords}
        long = next((word for word in words if word.startswith("--")), words[0])
        name = said.get("dest") or long.lstrip("-").replace("-", "_")
        flag = {"store_true": False, "store_false": True}.get(said.get("action") or "")
        setattr(self.options, name, said.get("default", flag))
        if "default" not in said and (said.get("required") or not long.startswith("-")):
            self.required[name] = call


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Return imports by the name that they set."""
    for one in ast.walk(tree):
        if isinstance(one, ast.Import | ast.ImportFrom):
            for alias in one.names:
                made = copy.copy(one)
                made.names = [alias]
                yield (alias.asname or alias.name).partition(".")[0], ast.unparse(made)


def _pairs(one: ast.AST) -> Iterable[tuple[str, ast.expr]]:
    """Return the names that an assignment sets, with their values."""
    if isinstance(one, ast.AnnAssign) and one.value is not None:
        return [(name_of(one.target), one.value)]
    sides = _sets(one, one.targets[0], one.value) if isinstance(one, ast.Assign) else []
    return [(x.id, side.value) for side in sides for x in _first(side.targets[0])]


def _first(target: ast.expr) -> list[ast.Name]:
    """Return the name that a target begins with: `args` of `args, _ = parse_known_args()`."""
    one = target.elts[0] if isinstance(target, ast.Tuple) else target
    return [one] if isinstance(one, ast.Name) else []


def _set(place: ast.AST, target: Any, value: ast.expr) -> ast.Assign:
    return ast.copy_location(ast.Assign([target], value), place)


def _sets(place: ast.AST, target: Any, value: Any) -> list[ast.Assign]:
    """Return one assignment for each name where both sides list as many, and none to itself."""
    sides = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        sides = list(zip(target.elts, value.elts, strict=False))
    return [_set(place, *x) for x in sides if ast.unparse(x[0]) != ast.unparse(x[1])]
