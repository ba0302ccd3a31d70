"""`downpour init --from train.py`: writes the task and the spec that a PyTorch script amounts to.

Each method of the task gets the statements of the script that its result depends on. The rest
becomes lines of a checklist; the task has the lines that users must act on as well.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from downpour.cli.script_reading import (
    OPTIMIZERS,
    Script,
    bound,
    calls_in,
    changed,
    free,
    has_backward,
    is_device,
    name_of,
    parameters_in,
    plain,
    reads,
    root_of,
)
from downpour.core.spec import Spec

MARK = "TO" + "DO"
"""It begins the lines that users must act on; in our own text, a test refuses the word."""

_ADAM = ("params", "lr", "betas", "eps", "weight_decay")
_SIGNATURES = {
    "SGD": ("params", "lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "StepLR": ("optimizer", "step_size", "gamma"),
    "CosineAnnealingLR": ("optimizer", "T_max", "eta_min"),
    "clip_grad_norm_": ("parameters", "max_norm"),
    "get_linear_schedule_with_warmup": ("optimizer", "num_warmup_steps", "num_training_steps"),
    "get_cosine_schedule_with_warmup": ("optimizer", "num_warmup_steps", "num_training_steps"),
    "DataLoader": ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers"),
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "SGD": {"learning_rate": 1e-3, "momentum": 0.0},
    "Adam": {"learning_rate": 1e-3},
    "AdamW": {"learning_rate": 1e-3, "weight_decay": 1e-2},
}
_CLASS_LOSSES = {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"}
_SCHEDULERS = r"(LR|Restarts|Scheduler|ReduceLROnPlateau)$|^get_\w+schedule"
_WRAPPERS = r"^torch\.compile$|(^|\.)(DataParallel|DistributedDataParallel|DDP)$"
_ADVICE = {
    r"(init_process_group|Distributed\w+|DDP|DataParallel|Accelerator)$": (
        "left out: shards and workers take its place"
    ),
    r"^(wandb|mlflow|writer)\.|SummaryWriter$": "left out: `downpour run` has --tensorboard",
    r"^torch\.save$": "left out: keep_best keeps the best model; `downpour export ID` writes one",
    r"load_state_dict$|^torch\.load$": "left out: init_from names the file to start from",
    r"(^|\.)GradScaler$": "left out: bfloat16 needs none",
    r"(^|\.)(clip_grad_value_|AveragedModel|autograd\.grad)$": f"{MARK}: do it in step()",
    r"\.(cuda|to)$": "left out: Downpour moves networks and batches",
}


class _Cleaner(ast.NodeTransformer):
    """Leaves out of statements what Downpour does itself."""

    def __init__(self, of: Conversion, device: str) -> None:
        self._of, self._device = of, device

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        given = [ast.unparse(one) for one in (*node.args, *(key.value for key in node.keywords))]
        if isinstance(function, ast.Attribute) and function.attr in {"to", "cuda"}:
            is_kind = any(re.match(r"torch\.(?!device)", one) for one in given)
            return node if is_kind else function.value
        return node.args[0] if given and re.search(_WRAPPERS, ast.unparse(function)) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        is_device = node.id in self._of.devices and isinstance(node.ctx, ast.Load)
        return ast.parse(self._device, mode="eval").body if is_device else node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        parts = self._of.fields.get("accumulate", 1)
        is_share = isinstance(node.op, ast.Div) and self._of.script.value(node.right) == parts > 1
        return self.visit(node.left) if is_share else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        return ast.Pass() if ast.unparse(node.targets[0]) == ast.unparse(node.value) else node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        values = [getattr(one, "value", one) for one in (*node.body, *node.orelse)]
        kept = [one for one in values if not isinstance(one, ast.Pass) and name_of(one) != "print"]
        return node if kept else ast.Pass()


class Conversion:
    """A script's task and spec; `beside` says that they are written into the script's folder.

    `code` and `spec` are the files' texts, and `name` is their name without an ending.

    Raises:
        SpecError: it is not Python, or no loop of it trains.
    """

    def __init__(self, source: str, path: Path, *, beside: bool) -> None:
        self.script = script = Script(source, str(path))
        self._lines, self._module = source.splitlines(), path.stem
        self._notes: dict[str, int] = {}
        self._methods: list[str] = []
        self.fields: dict[str, Any] = {}
        self._setup, self._loops = script.around()
        self._body = self._loops[-1].body if self._loops else []
        self.devices = {name for name, value in script.assigned.items() if is_device(value)}
        self._settings = {n for n, one in script.known.items() if one is script.options}
        constants = script.globals.keys() & script.known.keys()
        self._stops = {*script.imports, *constants, *self.devices, *self._settings}
        is_module = path.stem.isidentifier() and path.stem not in sys.stdlib_module_names
        self._importable = beside and is_module and script.only_defines
        calls = [one for one in calls_in(*script.flat) if name_of(one) == "step"]
        stepped = {root_of(one) for call in calls for one in (call.func, *call.args)}
        made = {n: one for n, one in script.assigned.items() if isinstance(one, ast.Call)}
        taking = [(name, one) for name, one in made.items() if name in stepped]
        self._schedulers = {n: x for n, x in taking if re.search(_SCHEDULERS, name_of(x))}
        trains = [x for _, x in taking if name_of(x) in OPTIMIZERS or parameters_in(x)]
        self._optimizers = {name: one for name, one in taking if one in trains}
        self._loaders = {n: one for n, one in made.items() if name_of(one) == "DataLoader"}
        self._models = self._networks()
        self._rate = 1.0
        self._convert()
        for field, value in [*self.fields.items()]:
            if not isinstance(value, int | float | str | list | tuple):
                self._note(None, f"{MARK}: {field} follows from no constant; set it in the spec")
                del self.fields[field]
        self.name = re.sub(r"\W", "_", path.stem).strip("_") + "_task"
        self.code = self._text()
        said = {"name": self.name[:-5], "task": f"{self.name}:Training", "shards": 1}
        head = f"# What {path.name} says. In one shard, one worker trains as it does.\n\n"
        self.spec = head + tomli_w.dumps({**said, **self.fields})

    @property
    def checklist(self) -> list[str]:
        """What to know, in the order of the script's lines, and then what to do."""
        found = sorted(self._notes.items(), key=lambda one: (MARK in one[0], one[1]))
        return [f"line {line}: {text}" for text, line in found]

    def _note(self, node: Any, text: str) -> None:
        self._notes.setdefault(text, getattr(node, "lineno", 1))

    def _value(self, node: ast.AST | None = None, default: Any = None) -> Any:
        return self.script.value(node, default)

    def _arguments(self, call: ast.Call) -> dict[str, ast.expr]:
        """Return a call's arguments by name, also those of a dictionary that the script has."""
        found = dict(zip(_SIGNATURES.get(name_of(call), ()), call.args, strict=False))
        for key in call.keywords:
            several = self.script.assigned.get(name_of(key.value))
            if key.arg:
                found[key.arg] = key.value
            elif isinstance(several, ast.Dict):
                pairs = zip(several.keys, several.values, strict=True)
                found |= {self._value(name): value for name, value in pairs}
        return found

    def _networks(self) -> list[str]:
        """Return the names of the networks that the optimizers train."""
        found: list[str] = []
        for call in self._optimizers.values():
            given = [*call.args, *(key.value for key in call.keywords)]
            found += parameters_in(*given) or parameters_in(*self._slice(reads(*given)))
        return list(dict.fromkeys(found))

    def _slice(self, names: set[str], *stops: str) -> list[ast.stmt]:
        """Return the statements before the loop that names depend on."""
        return self._cut(self._setup, names, *stops)[0]

    def _cut(
        self, before: Sequence[ast.stmt], names: set[str], *stops: str
    ) -> tuple[list[ast.stmt], set[str]]:
        """Return the statements that names depend on, and the names that none of them sets."""
        stop = self._stops | {*stops}
        needed, kept = names - stop, list[ast.stmt]()
        for one in reversed(before):
            if needed & (bound(one) | changed(one)):
                kept.insert(0, one)
                needed -= bound(one) if isinstance(one, ast.Assign | ast.FunctionDef) else set()
                needed |= reads(one) - stop
        return kept, needed

    def _cleaned(self, nodes: Iterable[ast.AST], device: str = "'cpu'") -> list[str]:
        cleaner = _Cleaner(self, device)
        found = (cleaner.visit(copy.deepcopy(one)) for one in nodes)
        kept = [one for one in found if not isinstance(one, ast.Pass)]
        return [ast.unparse(ast.fix_missing_locations(one)) for one in kept]

    def _method(self, head: str, lines: Sequence[str], result: str = "") -> None:
        last = _returning(lines, result) if result else [*lines, "raise NotImplementedError"]
        body = textwrap.indent("\n".join(last), "    ")
        self._methods.append(textwrap.indent(f"def {head}:\n{body}", "    "))

    def _todo(self, head: str, node: Any, what: str) -> None:
        """Leave a method to the user; a loop of the script becomes comments there."""
        self._note(node, f"{MARK}: {head.partition('(')[0]}() must {what}")
        lines = self._lines[node.lineno - 1 : node.end_lineno if node in self._loops else 0]
        comments = textwrap.indent(textwrap.dedent("\n".join(lines)), "# ", lambda _: True)
        self._method(head, [f"# {MARK}: {what}", *comments.splitlines()])

    def _convert(self) -> None:
        calls = sorted(calls_in(self.script.tree), key=lambda call: call.lineno)
        for like, text in _ADVICE.items():
            for call in [one for one in calls if re.search(like, ast.unparse(one.func))][:1]:
                self._note(call, f"{ast.unparse(call.func)}(): {text}")
        if not self._loops:
            what = "be written by hand, because no function of the script leads to its loop"
            [call, *_] = [one for one in calls if name_of(one) == "backward"]
            for head in ("model(self)", "examples(self, part)", "loss(self, model, batch)"):
                self._todo(head, call, what)
            return
        self._convert_loop()
        self._convert_calls()
        self._convert_model()
        self._convert_data()
        self._convert_optimizer()
        self._convert_loss()
        for name, call in self._schedulers.items():
            self._convert_rate(name, call)

    def _convert_loop(self) -> None:
        """Read the epochs and accumulation."""
        loop = self._loops[0]
        given, ends = plain(getattr(loop, "iter", None)), list[Any]()
        if len(self._loops) > 1 and name_of(given) in {"range", "trange"}:
            ends = [self._value(one) for one in given.args[:2]]
        is_known = ends and all(isinstance(one, int) for one in ends)
        self.fields["epochs"] = ends[-1] - (ends[0] if ends[1:] else 0) if is_known else None
        for one in ast.walk(loop):
            if isinstance(one, ast.Break):
                self._note(one, "break: left out; stop_after = 3 ends a training that stalls")
            if isinstance(one, ast.If) and "step" in map(name_of, calls_in(one)):
                for test in (x for x in ast.walk(one.test) if isinstance(x, ast.BinOp)):
                    if isinstance(test.op, ast.Mod):
                        self.fields["accumulate"] = self._value(test.right) or 1

    def _convert_calls(self) -> None:
        """Read the seed, clipping and precision."""
        for call in calls_in(*self.script.flat):
            if name_of(call) == "manual_seed" and (seed := self._value(*call.args)) is not None:
                self.fields.setdefault("seed", seed)
            if name_of(call) == "clip_grad_norm_":
                self.fields["clip_norm"] = self._value(self._arguments(call).get("max_norm"))
        for one in (item.context_expr for item in self.script.contexts):
            enabled = self._arguments(one).get("enabled") if isinstance(one, ast.Call) else None
            if name_of(one) == "autocast" and self._value(enabled, default=True):
                self.fields["precision"] = "bfloat16"
                self._note(one, "autocast: precision = 'bfloat16'")

    def _convert_model(self) -> None:
        names = self._models
        if not names:
            self._todo("model(self)", self._loops[-1], "return the network")
            return
        pairs = ", ".join(f"{name!r}: {name}" for name in names)
        result = names[0] if len(names) == 1 else f"torch.nn.ModuleDict({{{pairs}}})"
        self._method("model(self)", self._cleaned(self._slice({*names})), result)

    def _loader(self, node: ast.expr | None) -> ast.Call | None:
        """Return the DataLoader that a loop iterates over, or a name for it."""
        for _ in range(9):  # a name may stand for another one
            node = plain(self.script.assigned.get(name_of(plain(node)), node))
        return node if isinstance(node, ast.Call) and name_of(node) == "DataLoader" else None

    def _convert_data(self) -> None:
        train = self._loader(getattr(self._loops[-1], "iter", None))
        options = self._arguments(train) if train is not None else {}
        if train is None or "dataset" not in options:
            what = "return the examples of 'train' or 'test', of which loss() gets a batch"
            self._todo("examples(self, part)", self._loops[-1], what)
            return
        values = {name: self._value(one) for name, one in options.items()}
        size = values.get("batch_size", 1)
        self.fields["batch_size"] = size and size * self.fields.get("accumulate", 1)
        self.fields["last_batch"] = "drop" if values.get("drop_last") else "rest"
        given = {one for one, node in options.items() if self._value(node, self) is not None}
        if given & {"sampler", "batch_sampler"}:
            self._note(train, f"{MARK}: sampler: set batches = 'balanced' and write labels()")
        elif not values.get("shuffle"):
            self.fields["order"] = "given"
            self._note(train, "DataLoader: order = 'given', because it does not shuffle")
        if values.get("num_workers") != 0 and "num_workers" in options:
            self._note(train, "num_workers: left out; `downpour run` has --loaders")
        if "collate_fn" in given:
            collate = options["collate_fn"]
            lines = self._cleaned(self._slice(reads(collate)))
            called = ast.Call(collate, [ast.Name("examples")], [])
            self._method("collate(self, examples)", lines, ast.unparse(called))
        self._convert_examples(train, options["dataset"])

    def _convert_examples(self, train: ast.Call, dataset: ast.expr) -> None:
        others = [name for name, one in self._loaders.items() if one is not train]
        others.sort(key=lambda name: ("val" not in name, "test" not in name))
        for name in others[1:]:
            self._note(self._loaders[name], f"{name}: left out; {others[0]} has the test examples")
        if not others:
            text = f"{MARK}: examples() must return others for 'test'; now they are the same"
            self._note(train, text)
        datasets = [dataset]
        datasets += [self._arguments(self._loaders[x]).get("dataset", dataset) for x in others[:1]]
        slices = [self._slice(reads(one)) for one in datasets]
        common = [one for one in slices[0] if one in slices[-1]] if others else []
        returns = [
            _returning(self._cleaned(x for x in kept if x not in common), *self._cleaned([one]))
            for kept, one in zip(slices, datasets, strict=True)
        ]
        lines = self._cleaned(common)
        if others:
            lines += ["if part == 'train':", *(textwrap.indent(x, "    ") for x in returns[0])]
        *more, result = returns[-1]
        self._method("examples(self, part)", [*lines, *more], result.removeprefix("return "))

    def _convert_loss(self) -> None:
        loop, places = self._loops[-1], [i for i, x in enumerate(self._body) if has_backward(x)]
        if len(places) != 1 or len(self._models) != 1 or len(self._optimizers) != 1:
            what = "return the loss of a batch of test examples"
            self._todo("loss(self, model, batch)", self._body[0], what)
            what = "train the networks on a batch, as the script's loop does"
            self._todo("step(self, model, optimizers, batch)", loop, what)
            return
        steps, calls = self._body[: places[0]], calls_in(self._body[places[0]])
        [call, *_] = [one for one in calls if name_of(one) == "backward"]
        root: Any = call.args[0] if call.args else getattr(call.func, "value", call)
        root = root.args[0] if isinstance(root, ast.Call) and name_of(root) == "scale" else root
        self._computed("loss", root, steps)
        named = [self.script.defined.get(name_of(one)) for one in calls_in(*steps)]
        for one in calls_in(*steps, *filter(None, named)):
            if self._value(self._arguments(one).get("reduction")) == "sum":
                self._note(one, f"{MARK}: loss() must return a mean, or a pair of sum and count")
        for one in calls_in(*steps):
            made = self.script.assigned.get(name_of(one), one)
            if _CLASS_LOSSES & set(map(name_of, calls_in(made))) and len(one.args) == 2:
                right = "({}.argmax(1) == {})".format(*map(ast.unparse, one.args))
                text = f"{{'accuracy': {right}.float().mean()}}"
                self._computed("metrics", ast.parse(text, mode="eval").body, steps)
                return

    def _computed(self, method: str, result: ast.expr, steps: list[ast.stmt]) -> None:
        """Write a method that computes a result from a batch, as the loop does."""
        [model], loop = self._models, self._loops[-1]
        target: Any = getattr(loop, "target", ast.Name("batch"))
        is_counted = isinstance(loop, ast.For) and "enumerate" in map(name_of, calls_in(loop.iter))
        if is_counted and isinstance(target, ast.Tuple):
            target = target.elts[1]
        kept, needed = self._cut(steps, reads(result), model)
        needed -= bound(target)
        for name in sorted(needed & {name for one in self._body for name in bound(one)}):
            self._note(loop, f"{MARK}: {name} goes from batch to batch, which are shuffled")
        before, device = self._slice(needed, model), f"next({model}.parameters()).device"
        lines = self._cleaned([*before, *kept], device)
        if not isinstance(target, ast.Name):
            lines.insert(0, ast.unparse(ast.Assign([target], ast.Name("batch"), lineno=0)))
        batch = target.id if isinstance(target, ast.Name) else "batch"
        self._method(f"{method}(self, {model}, {batch})", lines, *self._cleaned([result], device))

    def _convert_optimizer(self) -> None:
        made = [*self._optimizers.values()]
        if len(made) == len(self._models) > 1:
            one_each = "[{'params': [*net.parameters()]} for net in model.values()]"
            self._method("groups(self, model)", [], one_each)
            texts = [
                f"{name!r}: {self._remade(call, f'[groups[{number}]]')}"
                for number, (name, call) in enumerate(self._optimizers.items())
            ]
            self._method("optimizer(self, groups)", [], f"{{{', '.join(texts)}}}")
        elif len(made) == len(self._models) == 1:
            self._convert_only_optimizer(made[0], self._models[0])
        else:
            what = "return what trains each network, as `downpour init --template own-step` does"
            self._todo("optimizer(self, groups)", (made or self._loops)[0], what)

    def _convert_only_optimizer(self, call: ast.Call, model: str) -> None:
        options, kind = self._arguments(call), name_of(call)
        params: ast.expr = options.pop("params", (call.args or [call])[0])
        lines = self._cleaned(self._slice(reads(params), model))
        given = self._cleaned([params])[0]
        if given != f"{model}.parameters()" and "requires_grad" not in " ".join([*lines, given]):
            is_list = isinstance(params, ast.List | ast.Name)
            result = given if is_list else f"[{{'params': {given}}}]"
            self._method(f"groups(self, {model})", lines, result)
            self._note(call, "groups(): model() must freeze the parameters that it leaves out")
        names = {"lr": "learning_rate", "eps": "epsilon"}
        values = {names.get(x, x): self._value(one) for x, one in options.items()}
        values = {x: one for x, one in values.items() if x not in {"fused", "foreach"}}
        self._rate = values.get("learning_rate") or 1.0
        is_known = None not in values.values() and values.keys() <= Spec.model_fields.keys()
        if kind in _DEFAULTS and is_known:
            self.fields |= {"optimizer": kind.lower(), **_DEFAULTS[kind], **values}
            return
        lines = self._cleaned(self._slice(reads(*options.values())))
        self._method("optimizer(self, groups)", lines, self._remade(call, "groups"))

    def _remade(self, call: ast.Call, params: str) -> str:
        """Return the text of an optimizer's call with other parameters."""
        again = copy.copy(call)
        again.args = [ast.Name(params, ast.Load()), *call.args[1:]]
        again.keywords = [key for key in call.keywords if key.arg != "params"]
        return self._cleaned([again])[0]

    def _convert_rate(self, name: str, call: ast.Call) -> None:
        """Say a scheduler as fields of the spec, or let rate() ask torch's own."""
        kind, epochs = name_of(call), self.fields.get("epochs")
        values = {option: self._value(one) for option, one in self._arguments(call).items()}
        by_batch = name in {root_of(one.func) for one in calls_in(*self._body)}
        if kind == "StepLR" and not by_batch:
            decay, every = values.get("gamma", 0.1), values.get("step_size")
            self.fields |= {"schedule": "step", "decay": decay, "decay_every": every}
        elif kind == "CosineAnnealingLR" and (by_batch or values.get("T_max") == epochs):
            least = (values.get("eta_min") or 0.0) / self._rate
            self.fields |= {"schedule": "cosine", "final_rate": least}
            self._note(call, "CosineAnnealingLR: schedule = 'cosine' falls with each step")
        elif found := re.match(r"get_(linear|cosine)_schedule", kind):
            steps, total = values.get("num_warmup_steps"), values.get("num_training_steps")
            share = 0.0 if steps == 0 else steps and total and steps / total
            self.fields |= {"schedule": found[1], "warmup": share}
        elif by_batch or not epochs or kind == "ReduceLROnPlateau":
            self._note(call, f"{MARK}: {kind}: set schedule and warmup, or write rate(done)")
        else:
            [optimizer, *_] = self._optimizers
            lines = [
                f"{optimizer} = torch.optim.SGD([torch.zeros(1)], lr={self._rate})",
                *self._cleaned(self._slice({name}, optimizer)),
                f"for _ in range(int(done * {epochs} + 1e-6)):  # epochs before this step",
                f"    {optimizer}.step()",
                f"    {name}.step()",
            ]
            self._method(
                "rate(self, done)", lines, f"{optimizer}.param_groups[0]['lr'] / {self._rate}"
            )

    def _text(self) -> str:
        """Return the task's file: what its methods use of the script comes first."""
        script, kept, imports = self.script, dict[int, str](), {"import torch"}
        taken = {x for one in self._methods for x in free(ast.parse(textwrap.dedent(one)))}
        pending = sorted(taken - self._settings)
        for name in pending:  # it grows
            node = script.defined.get(name) or script.globals.get(name)
            if name in script.imports:
                imports.add(script.imports[name])
            elif node is None and not hasattr(builtins, name):
                self._note(None, f"{MARK}: {name}: not found in the script; set it in the task")
            elif node is not None and self._importable:
                imports.add(f"from {self._module} import {name}")
            elif node is not None:
                first = min(x.lineno for x in (node, *getattr(node, "decorator_list", ())))
                kept[first] = "\n".join(self._lines[first - 1 : node.end_lineno])
                pending += sorted(free(node) - taken - self._settings)
                taken |= free(node)
        options = [self._options(name) for name in sorted(self._settings & taken)]
        imports |= {"import argparse"} if options else set()
        heads = sorted(imports, key=lambda text: (text.startswith("from"), text))
        about = f'"""The training of {self._module}.py."""\n'
        head = "\n".join([about, *heads, "", "from downpour import Task"])
        marked = "\n".join(f"    # {one}" for one in self.checklist if MARK in one)
        task = "class Training(Task):\n" + "\n\n".join(filter(None, [marked, *self._methods]))
        return "\n\n\n".join([head, *options, *(kept[line] for line in sorted(kept)), task]) + "\n"

    def _options(self, name: str) -> str:
        """Return the script's arguments with their defaults, as far as the task uses them."""
        text = "\n".join(self._methods)
        is_whole = not self._importable or re.search(rf"\b{name}\b(?!\.)", text)
        known = vars(self.script.options)
        used = [one for one in known if is_whole or f"{name}.{one}" in text]
        for option in sorted(self.script.required.keys() & used):
            text = f"{MARK}: {option} has no default: set it in the task"
            self._note(self.script.required[option], text)
        return f"{name} = argparse.Namespace({', '.join(f'{x}={known[x]!r}' for x in used)})"


def _returning(lines: Sequence[str], result: str) -> list[str]:
    """Return lines that end with a return, in short if the last one sets the result."""
    if lines and lines[-1].startswith(f"{result} = "):
        return [*lines[:-1], f"return {lines[-1].removeprefix(f'{result} = ')}"]
    return [*lines, f"return {result}"]
