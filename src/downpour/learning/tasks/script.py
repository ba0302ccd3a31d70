"""Reads a PyTorch script, without running it, as one flat list of statements.

`main()`, and functions that load data, make optimizers or train, are written out where they are
called. An `if` whose condition follows from constants and argparse's defaults is decided. A loop
over slices of tensors becomes one over a DataLoader.
"""

import ast
import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch

from downpour.base.errors import SpecError

OPTIMIZERS = {name for name, one in vars(torch.optim).items() if isinstance(one, type)}
_INLINED = {"DataLoader", "backward", "parse_args", "parse_known_args", *OPTIMIZERS}
_KEEPS = {"cpu", "cuda", "eval", "load_state_dict", "share_memory", "step", "to", "train"}
"""Methods that leave an object as it is, or as Downpour makes it; others may change it."""
_AROUND = r"^torch\.compile$|scaler\.scale$|(^|\.)(\w*DataParallel|DDP|tqdm|track)$"
"""Calls around a network, a loss or an iterable that a task does without."""
_ORDERS, _TENSORS = {"randperm", "permutation"}, {"as_tensor", "from_numpy", "tensor"}
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


def inside(kind: Any, *nodes: ast.AST) -> list[Any]:
    """Return all nodes of a kind in some nodes."""
    return [x for one in nodes for x in ast.walk(one) if isinstance(x, kind)]


def called(*nodes: ast.AST) -> set[str]:
    """Return the last names of all calls in some nodes."""
    return set(map(name_of, inside(ast.Call, *nodes)))


def reads(*nodes: ast.AST) -> set[str]:
    """Return the names that nodes read, but those of comprehensions and parameters."""
    own = {x for one in inside(ast.comprehension, *nodes) for x in bound(one.target)}
    own |= {one.arg for one in inside(ast.arg, *nodes)}
    return {x.id for x in inside(ast.Name, *nodes) if isinstance(x.ctx, ast.Load)} - own


def bound(node: ast.AST) -> set[str]:
    """Return the names that a statement sets."""
    found = {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()
    return found | {x.id for x in inside(ast.Name, node) if isinstance(x.ctx, ast.Store)}


def changed(node: ast.AST) -> set[str]:
    """Return the names whose objects a statement changes, as `net.fc = ...` does."""
    parts = inside(ast.Attribute | ast.Subscript, node)
    found = {root_of(one) for one in parts if isinstance(one.ctx, ast.Store)}
    for call in [one.value for one in inside(ast.Expr, node) if isinstance(one.value, ast.Call)]:
        found |= set() if name_of(call) in _KEEPS else {root_of(call)}
        if re.search(r"(^|\.)(init\.\w+|shuffle)$", ast.unparse(call.func)):
            found |= set(map(root_of, call.args))
    loops = inside(ast.For, node)
    return found.union(*(reads(one.iter) for one in loops if found & bound(one.target)))


class Replaced(ast.NodeTransformer):
    """Puts other expressions in the place of those with certain texts."""

    def __init__(self, new: Mapping[str, ast.expr]) -> None:
        self._new = new

    def visit(self, node: ast.AST) -> Any:
        """Return what replaces a node."""
        if not isinstance(node, ast.expr) or ast.unparse(node) not in self._new:
            return self.generic_visit(node)
        new: Any = copy.copy(self._new[ast.unparse(node)])
        new.ctx = getattr(node, "ctx", ast.Load())
        return ast.copy_location(new, node)


class _Canonical(ast.NodeTransformer):
    """Takes out what Downpour does itself, and what only shows how far a training is."""

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in {"to", "cuda"}:
            given = [*node.args, *(key.value for key in node.keywords)]
            kinds = [one for one in given if re.match(r"torch\.(?!device)", ast.unparse(one))]
            node.args, node.keywords = list[ast.expr](kinds), []
            return node if kinds else node.func.value
        return node.args[0] if node.args and re.search(_AROUND, ast.unparse(node.func)) else node

    def visit_Expr(self, node: ast.Expr) -> Any:
        self.generic_visit(node)
        is_kept = isinstance(node.value, ast.Call) and name_of(node.value) != "print"
        return node if is_kept else None

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        return node if ast.unparse(node.targets[0]) != ast.unparse(node.value) else None

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        node.body = node.body or [ast.copy_location(ast.Pass(), node)]
        is_kept = node.orelse or not isinstance(node.body[0], ast.Pass)
        return node if is_kept else None

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        match node:
            case ast.For(ast.Tuple([_, target]), ast.Call(ast.Name("enumerate"), [over, *_])):
                node.target, node.iter = target, over
        return node


class Script:
    """A script: its flat statements, its definitions, and the values that follow from them.

    Raises:
        SpecError: it is not Python, or no loop of it trains.
    """

    def __init__(self, source: str, shown: str) -> None:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError) as error:
            place = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else error
            raise SpecError("from", shown, f"must be a Python script ({place})") from None
        calls = sorted(inside(ast.Call, tree), key=lambda call: call.lineno)
        self.source = {call: ast.unparse(call.func) for call in calls}
        if "backward" not in called(tree):
            hint = "; a LightningModule or a Trainer needs no port: `downpour run --task FILE:NAME`"
            its = hint if re.search(r"lightning|\bTrainer\b", source) else ""
            said = f"has no training loop: nothing in it calls backward(){its}"
            raise SpecError("from", shown, said)
        body, kinds = _Canonical().visit(tree).body, ast.FunctionDef | ast.ClassDef
        self.defined = {one.name: one for one in body if isinstance(one, kinds)}
        sets = [one for one in body if isinstance(one, ast.Assign)]
        self.globals = {name: one for one in sets for name in bound(one)}
        self.imports: dict[str, str] = {}
        for one in inside(ast.Import | ast.ImportFrom, tree):
            for alias in one.names:
                alone = type(one)(**{**vars(one), "names": [alias]})
                self.imports[(alias.asname or alias.name).partition(".")[0]] = ast.unparse(alone)
        self.options = SimpleNamespace()
        self.required: dict[str, ast.Call] = {}
        self.known: dict[str, Any] = {"__name__": "__main__"}
        self._made = {"parse_args": self.options, "parse_known_args": self.options}
        self.assigned: dict[str, ast.expr] = {}
        self._active: list[str] = []
        for kind in [one for one in self.defined.values() if getattr(one, "bases", 0) == []]:
            values = {x: self.value(value) for line in kind.body for x, value in _pairs(line)}
            if values:  # a class that holds the settings
                self.known[kind.name] = self._made[kind.name] = SimpleNamespace(**values)
        self.flat = self._flat(body)

    def value(self, node: ast.AST | None, default: Any = None) -> Any:
        """Return what constants and defaults make of an expression; nothing of the script runs."""
        if isinstance(node, ast.Call) and name_of(node) in self._made:
            return self._made[name_of(node)]
        if isinstance(node, ast.expr) and not inside(_ACTS, node):
            code = compile(ast.fix_missing_locations(ast.Expression(node)), "script", "eval")
            with suppress(Exception):
                return eval(code, {"__builtins__": {}}, self.known)  # noqa: S307 - it calls nothing
        return default

    def around(self) -> tuple[list[ast.stmt], list[Any]]:
        """Return what comes before the loop over batches, and the loops from the outermost on."""
        setup, loops, body = list[ast.stmt](), list[Any](), self.flat
        kinds = ast.For | ast.While
        while found := [x for x in body if isinstance(x, kinds) and "backward" in called(x)]:
            setup += body[: body.index(found[0])]
            loops.append(found[0])
            body = found[0].body
        return setup, loops

    def _flat(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [flat for one in body for flat in self._flattened(one)]

    def _flattened(self, one: Any) -> list[ast.stmt]:  # noqa: PLR0911 - one for each kind
        if isinstance(one, ast.Import | ast.ImportFrom) or one in self.defined.values():
            return []
        if isinstance(one, ast.If) and (test := self.value(one.test, self)) is not self:
            return self._flat(one.body if test else one.orelse)
        is_plain_with = isinstance(one, ast.With) and not any(x.optional_vars for x in one.items)
        if self._reaches(one) or is_plain_with:
            match one:
                case ast.With(items=items):
                    unused = ast.Name("_", ast.Store())
                    heads = [_set(one, x.optional_vars or unused, x.context_expr) for x in items]
                    return self._flat([*heads, *one.body])
                case ast.If() | ast.Try():
                    return self._flat([*one.body, *one.orelse, *getattr(one, "finalbody", [])])
                case ast.For() | ast.While():
                    loop = self._over_batches(one)
                    loop.body = self._flat(loop.body)
                    return [loop]
                case ast.Expr(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
                    function = self.defined.get(root_of(call.func))
                    if isinstance(function, ast.FunctionDef) and function.name not in self._active:
                        return self._inlined(one, call, function)
        self._learn(one)
        return [one]

    def _over_batches(self, loop: Any) -> Any:
        """Return a loop over slices of tensors, as `x[i:i + 16]`, as one over a DataLoader."""
        match loop:
            case ast.For(
                ast.Name(number), ast.Call(ast.Name("range" | "trange"), [_, _, _] as ends)
            ):
                first, end, step = map(ast.unparse, ends)
            case _:
                return copy.copy(loop)
        parts = {x: ast.unparse(x.slice) for x in inside(ast.Subscript, loop)}
        cuts = [x for x, text in parts.items() if text.startswith(f"{number}:")]
        drawn = [x for x in cuts if name_of(self.assigned.get(root_of(x))) in _ORDERS]
        places = set(map(ast.unparse, drawn))
        places |= {x for one in loop.body for x, y in _pairs(one) if ast.unparse(y) in places}
        is_all = first == "0" and re.search(r"len|shape|size", end)
        span = "" if is_all else f"[{first}:{end}]"
        made = {x.args[0]: x for x in inside(ast.Call, loop) if x.args and name_of(x) in _TENSORS}
        data, new = dict[str, str](), dict[str, ast.expr]()
        for cut in [x for x, text in parts.items() if text in places] or cuts:
            text, name = ast.unparse(made.get(cut, cut)), f"{root_of(cut)}_batch"
            data[text.replace(ast.unparse(cut), ast.unparse(cut.value) + span)] = name
            new[text] = ast.Name(name, ast.Load())
        if not data:
            return copy.copy(loop)
        dataset = f"torch.utils.data.TensorDataset({', '.join(data)})"
        loader = f"DataLoader({dataset}, {step}, shuffle={bool(places)})"
        text = f"for {', '.join(data.values())}, in {loader}: pass"
        over: Any = ast.increment_lineno(ast.parse(text).body[0], loop.lineno - 1)
        over.body = [Replaced(new).visit(one) for one in loop.body]
        return ast.copy_location(over, loop)

    def _reaches(self, node: ast.AST) -> bool:
        """Whether a statement is part of how the script sets up or takes steps."""
        names = called(node)
        self._active.append(getattr(node, "name", ""))
        functions = [self.defined[one] for one in names - {*self._active} if one in self.defined]
        found = bool(names & _INLINED) or any(map(self._reaches, functions))
        self._active.pop()
        return found

    def _inlined(self, one: Any, call: ast.Call, function: ast.FunctionDef) -> list[ast.stmt]:
        """Return a function's body in the place of its call, with arguments for parameters."""
        names, defaults = [x.arg for x in function.args.args], function.args.defaults
        values = dict(zip(names[-len(defaults) :], defaults, strict=False))
        values |= dict(zip(names, call.args, strict=False))
        values |= {key.arg: key.value for key in call.keywords if key.arg}
        same = {name: value for name, value in values.items() if isinstance(value, ast.Name)}
        body = [Replaced(same).visit(copy.deepcopy(line)) for line in function.body]
        head = [_set(one, ast.Name(x, ast.Store()), values[x]) for x in values if x not in same]
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
        for call in inside(ast.Call, one):
            if name_of(call) == "add_argument":
                self._learn_option(call)
            sides = (root_of(call.func), *map(name_of, call.args[:1]))
            match [self.assigned.get(name) for name in sides]:
                case [ast.Dict() as these, ast.Dict() as more] if name_of(call) == "update":
                    these.keys, these.values = these.keys + more.keys, these.values + more.values
        match one:
            case ast.Assign(targets=[ast.Attribute(value=owner, attr=name)], value=value):
                if self.value(owner) is self.options:
                    setattr(self.options, name, self.value(value))
        found = {name: self.value(value, self) for name, value in _pairs(one)}
        self.known |= {name: value for name, value in found.items() if value is not self}

    def _learn_option(self, call: ast.Call) -> None:
        words = [str(self.value(one)) for one in call.args] or [""]
        said = {key.arg: self.value(key.value) for key in call.keywords}
        long = next((word for word in words if word.startswith("--")), words[0])
        name = said.get("dest") or long.lstrip("-").replace("-", "_")
        flag = {"store_true": False, "store_false": True}.get(said.get("action") or "")
        setattr(self.options, name, said.get("default", flag))
        if "default" not in said and (said.get("required") or not long.startswith("-")):
            self.required[name] = call


def _pairs(one: ast.AST) -> list[tuple[str, ast.expr]]:
    """Return the names that an assignment sets, with their values."""
    if isinstance(one, ast.AnnAssign) and one.value is not None:
        return [(name_of(one.target), one.value)]
    sides = _sets(one, one.targets[0], one.value) if isinstance(one, ast.Assign) else []
    firsts = [(getattr(side.targets[0], "elts", side.targets)[0], side.value) for side in sides]
    return [(name_of(x), value) for x, value in firsts if isinstance(x, ast.Name)]


def _set(place: ast.AST, target: Any, value: ast.expr) -> ast.Assign:
    return ast.copy_location(ast.Assign([target], value), place)


def _sets(place: ast.AST, target: Any, value: Any) -> list[ast.Assign]:
    """Return one assignment for each name where both sides list as many, and none to itself."""
    sides = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        sides = list(zip(target.elts, value.elts, strict=False))
    return [_set(place, *x) for x in sides if ast.unparse(x[0]) != ast.unparse(x[1])]
