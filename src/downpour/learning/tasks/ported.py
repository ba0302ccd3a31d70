"""`downpour init --from train.py`: the task and the spec that a PyTorch script amounts to.

Each method of the task gets the statements of the script that its result depends on. The rest
becomes lines of a checklist; the task has the lines that users must act on as well.
"""

import ast
import builtins
import copy
import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
import torch

from downpour.core.spec import Spec
from downpour.learning.tasks import script as reading
from downpour.learning.tasks.script import Script, bound, called, inside, name_of, reads, root_of

MARK = "TO" + "DO"
"""It begins the lines that users must act on; in our own text, a test refuses the word."""

_HOMES = (torch.optim, torch.optim.lr_scheduler, torch.nn.utils, torch.utils.data)
_WARMUP = ("optimizer", "num_warmup_steps", "num_training_steps")
_DEVICE = r"^torch\.device\(|\.device$|^'cuda[^']*'($| if )|else 'cuda"
_FIELDS = {"lr": "learning_rate", "eps": "epsilon"}
_CLASS_LOSSES = {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"}
_SCHEDULERS = r"(LR|Restarts|Scheduler|ReduceLROnPlateau)$|^get_\w+schedule"
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


class Conversion:
    """A script's task and spec.

    `code` and `spec` are the files' texts, and `name` is their name without an ending.

    Raises:
        SpecError: it is not Python, or no loop of it trains.
    """

    def __init__(self, source: str, path: Path) -> None:
        self._script = script = Script(source, str(path))
        self._value = script.value
        self._lines, self._notes = source.splitlines(), dict[str, int]()
        self._methods: list[str] = []
        self.fields: dict[str, Any] = {}
        self._setup, self._loops = script.around()
        self._body = self._loops[-1].body if self._loops else []
        assigned = script.assigned.items()
        self._devices = {name for name, x in assigned if re.search(_DEVICE, ast.unparse(x))}
        self._settings = {n for n, one in script.known.items() if one is script.options}
        constants = script.globals.keys() & script.known.keys()
        self._stops = {*script.imports, *constants, *self._devices, *self._settings}
        steps = [x for x in inside(ast.Call, *script.flat) if name_of(x) == "step"]
        stepped = {root_of(one) for call in steps for one in (call.func, *call.args)}
        made = {n: x for n, x in assigned if n in stepped and isinstance(x, ast.Call)}
        self._schedulers = {n: x for n, x in made.items() if re.search(_SCHEDULERS, name_of(x))}
        trains = [x for x in made.values() if name_of(x) in reading.OPTIMIZERS or _networks_in(x)]
        self._optimizers = {n: x for n, x in made.items() if x in trains}
        trained = [_networks_in(x) or _networks_in(*self._slice(reads(x))) for x in trains]
        self._models = list(dict.fromkeys(name for names in trained for name in names))
        self._rate = 1.0
        self.name = re.sub(r"\W", "_", path.stem).strip("_") + "_task"
        self._convert()
        for field, value in [*self.fields.items()]:
            if not isinstance(value, int | float | str | list | tuple):
                self._note(None, f"{MARK}: {field} follows from no constant; set it in the spec")
                del self.fields[field]
        self.code = self._text(path.name)
        said = {"name": self.name[:-5], "task": f"{self.name}:Training", "shards": 1}
        head = f"# What {path.name} says. In one shard, one worker trains as it does.\n\n"
        self.spec = head + tomli_w.dumps({**said, **self.fields})

    @property
    def checklist(self) -> list[str]:
        """What to know, in the order of the script's lines, and then what to do."""
        found = sorted(self._notes.items(), key=lambda one: (MARK in one[0], one[1]))
        return [f"line {line}: {text}" if line else text for text, line in found]

    def _note(self, node: Any, text: str) -> None:
        self._notes.setdefault(text, getattr(node, "lineno", 0))

    def _arguments(self, call: ast.Call) -> dict[str, ast.expr]:
        """Return a call's arguments by name, also those of a dictionary that the script has."""
        found = dict(zip(_parameters(name_of(call)) or _WARMUP, call.args, strict=False))
        for key in call.keywords:
            several = self._script.assigned.get(name_of(key.value))
            if key.arg:
                found[key.arg] = key.value
            elif isinstance(several, ast.Dict):
                pairs = zip(several.keys, several.values, strict=True)
                found |= {self._value(name): value for name, value in pairs}
        return found

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
            if needed & (bound(one) | reading.changed(one)):
                kept.insert(0, one)
                needed -= bound(one) if isinstance(one, ast.Assign | ast.FunctionDef) else set()
                needed |= reads(one) - stop
        return kept, needed

    def _cleaned(self, nodes: Iterable[ast.AST], device: str = "'cpu'") -> list[str]:
        """Return the text of nodes, for a device that Downpour chooses."""
        replaced = reading.Replaced(dict.fromkeys(self._devices, _expression(device)))
        return [ast.unparse(replaced.visit(copy.deepcopy(one))) for one in nodes]

    def _method(self, head: str, result: ast.expr) -> None:
        """Write a method that returns a result, after the statements that it depends on."""
        own = {one.arg for one in inside(ast.arg, ast.parse(f"def {head}: pass"))}
        *lines, last = self._cleaned([*self._slice(reads(result), *own), result])
        self._write(head, [*lines, f"return {last}"])

    def _write(self, head: str, lines: Iterable[str]) -> None:
        body = textwrap.indent("\n".join(lines), "    ")
        self._methods.append(textwrap.indent(f"def {head}:\n{body}", "    "))

    def _todo(self, head: str, node: Any, what: str) -> None:
        """Leave a method to the user; a loop of the script becomes comments there."""
        self._note(node, f"{MARK}: {head.partition('(')[0]}() must {what}")
        lines = self._lines[node.lineno - 1 : node.end_lineno if node in self._loops else 0]
        comments = textwrap.indent(textwrap.dedent("\n".join(lines)), "# ", lambda _: True)
        said = [f"# {MARK}: {what}", *comments.splitlines(), "raise NotImplementedError"]
        self._write(head, said)

    def _convert(self) -> None:
        for like, text in _ADVICE.items():
            found = [(x, y) for x, y in self._script.source.items() if re.search(like, y)]
            for call, name in found[:1]:
                self._note(call, f"{name}(): {text}")
        if not self._loops:
            what = "be written by hand, because no function of the script leads to its loop"
            [call, *_] = [one for one in self._script.source if name_of(one) == "backward"]
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
        given: Any = getattr(loop, "iter", None)
        self.fields["epochs"] = None
        if len(self._loops) > 1 and name_of(given) in {"range", "trange"}:
            with suppress(TypeError):  # an end is not known
                self.fields["epochs"] = len(range(*map(self._value, given.args)))
        for one in inside(ast.Break, loop):
            self._note(one, "break: left out; stop_after = 3 ends a training that stalls")
        tests = [one.test for one in inside(ast.If, loop) if "step" in called(one)]
        for one in inside(ast.BinOp, *tests):
            if isinstance(one.op, ast.Mod):
                self.fields["accumulate"] = self._value(one.right) or 1
        shares = [one for one in inside(ast.BinOp, *self._body) if isinstance(one.op, ast.Div)]
        count = self.fields.get("accumulate")
        whole = {ast.unparse(x): x.left for x in shares if self._value(x.right, self) == count}
        self._body = [reading.Replaced(whole).visit(one) for one in self._body]

    def _convert_calls(self) -> None:
        """Read the seed, clipping and precision."""
        for call in inside(ast.Call, *self._script.flat):
            of_all = re.fullmatch(r"(torch\.)?manual_seed", ast.unparse(call.func))
            if of_all and (seed := self._value(*call.args)) is not None:
                self.fields.setdefault("seed", seed)
            if name_of(call) == "clip_grad_norm_":
                self.fields["clip_norm"] = self._value(self._arguments(call).get("max_norm"))
            enabled = self._arguments(call).get("enabled")
            if name_of(call) == "autocast" and self._value(enabled, default=True):
                self.fields["precision"] = "bfloat16"
                self._note(call, "autocast: precision = 'bfloat16'")

    def _convert_model(self) -> None:
        names = self._models
        if not names:
            self._todo("model(self)", self._loops[-1], "return the network")
            return
        pairs = ", ".join(f"{name!r}: {name}" for name in names)
        result = names[0] if len(names) == 1 else f"torch.nn.ModuleDict({{{pairs}}})"
        self._method("model(self)", _expression(result))

    def _convert_data(self) -> None:
        train: Any = getattr(self._loops[-1], "iter", None)
        for _ in range(9):  # a name may stand for another one
            train = self._script.assigned.get(name_of(train), train)
        options = self._arguments(train) if name_of(train) == "DataLoader" else {}
        if "dataset" not in options:
            what = "return the examples of 'train' or 'test', of which loss() gets a batch"
            self._todo("examples(self, part)", self._loops[-1], what)
            self._note(self._body[0], f"{MARK}: loss() must take its examples from that batch")
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
        if values.get("num_workers", 0) != 0:
            self._note(train, "num_workers: left out; `downpour run` has --loaders")
        if "collate_fn" in given:
            batch = ast.Call(options["collate_fn"], [_expression("examples")], [])
            self._method("collate(self, examples)", batch)
        self._convert_examples(train, options["dataset"])

    def _convert_examples(self, train: ast.Call, dataset: ast.expr) -> None:
        """Take the examples of the first other loader as those for tests."""
        names = {one: name for name, one in self._script.assigned.items()}
        others = {
            data: names.get(call, ast.unparse(data))
            for call in inside(ast.Call, *self._script.flat)
            if name_of(call) == "DataLoader" and call is not train
            for data in [self._arguments(call).get("dataset", dataset)]
        }
        ranked = sorted(others, key=lambda x: ("val" not in others[x], "test" not in others[x]))
        test, *rest = ranked or [dataset]
        for one in rest:
            self._note(one, f"{others[one]}: left out; {others[test]} has the test examples")
        if not others:
            text = f"{MARK}: examples() must return others for 'test'; now they are the same"
            self._note(train, text)
        either = ast.IfExp(_expression("part == 'train'"), dataset, test)
        self._method("examples(self, part)", either if others else dataset)

    def _convert_loss(self) -> None:
        loop, body = self._loops[-1], self._body
        places = [number for number, one in enumerate(body) if "backward" in called(one)]
        if not len(places) == len(self._models) == len(self._optimizers) == 1:
            what = "return the loss of a batch of test examples"
            self._todo("loss(self, model, batch)", body[0], what)
            what = "train the networks on a batch, as the script's loop does"
            self._todo("step(self, model, optimizers, batch)", loop, what)
            return
        steps, calls = body[: places[0]], inside(ast.Call, body[places[0]])
        [call, *_] = [one for one in calls if name_of(one) == "backward"]
        root: Any = call.args[0] if call.args else getattr(call.func, "value", call)
        self._computed("loss", root, steps)
        calls = inside(ast.Call, *steps)
        named = [self._script.defined.get(name_of(one)) for one in calls]
        for one in inside(ast.Call, *steps, *filter(None, named)):
            if self._value(self._arguments(one).get("reduction")) == "sum":
                self._note(one, f"{MARK}: loss() must return a mean, or a pair of sum and count")
        for one in calls:
            made = self._script.assigned.get(name_of(one), one)
            if _CLASS_LOSSES & called(made) and len(one.args) == 2:
                right = "({}.argmax(1) == {})".format(*map(ast.unparse, one.args))
                text = f"{{'accuracy': {right}.float().mean()}}"
                self._computed("metrics", _expression(text), steps)
                return

    def _computed(self, method: str, result: ast.expr, steps: list[ast.stmt]) -> None:
        """Write a method that computes a result from a batch, as the loop does."""
        [model], loop = self._models, self._loops[-1]
        target: Any = getattr(loop, "target", ast.Name("batch"))
        kept, needed = self._cut(steps, reads(result), model)
        needed -= bound(target)
        for name in sorted(needed & {name for one in self._body for name in bound(one)}):
            self._note(loop, f"{MARK}: {name} goes from batch to batch, which are shuffled")
        before, device = self._slice(needed, model), f"next({model}.parameters()).device"
        *lines, last = self._cleaned([*before, *kept, result], device)
        if not isinstance(target, ast.Name):
            lines.insert(0, ast.unparse(ast.Assign([target], ast.Name("batch"), lineno=0)))
        batch = target.id if isinstance(target, ast.Name) else "batch"
        self._write(f"{method}(self, {model}, {batch})", [*lines, f"return {last}"])

    def _convert_optimizer(self) -> None:
        made = [*self._optimizers.values()]
        if len(made) == len(self._models) > 1:
            one_each = "[{'params': [*net.parameters()]} for net in model.values()]"
            self._method("groups(self, model)", _expression(one_each))
            calls = [_remade(call, f"[groups[{number}]]") for number, call in enumerate(made)]
            named = ast.Dict([*map(ast.Constant, self._optimizers)], [*calls])
            self._method("optimizer(self, groups)", named)
        elif len(made) == len(self._models) == 1:
            self._convert_only_optimizer(made[0], self._models[0])
        else:
            what = "return what trains each network, as `downpour init --template own-step` does"
            self._todo("optimizer(self, groups)", (made or self._loops)[0], what)

    def _convert_only_optimizer(self, call: ast.Call, model: str) -> None:
        options, kind = self._arguments(call), name_of(call)
        params: ast.expr = options.pop("params", (call.args or [call])[0])
        needed = [*self._slice(reads(params), model), params]
        is_frozen = any("requires_grad" in ast.unparse(one) for one in needed)
        if not is_frozen and ast.unparse(params) != f"{model}.parameters()":
            is_list = isinstance(params, ast.List | ast.Name)
            group = ast.Dict([ast.Constant("params")], [params])
            self._method(f"groups(self, {model})", params if is_list else ast.List([group]))
            self._note(call, "groups(): model() must freeze the parameters that it leaves out")
        values = {_FIELDS.get(x, x): self._value(one) for x, one in options.items()}
        values = {x: one for x, one in values.items() if x not in {"fused", "foreach"}}
        self._rate = values.get("learning_rate") or 1.0
        fields, usual = Spec.model_fields, _parameters(kind)
        has_fields = kind in {"SGD", "Adam", "AdamW"} and values.keys() <= fields.keys()
        if not has_fields or None in values.values():
            self._method("optimizer(self, groups)", _remade(call, "groups"))
            return
        usual = {_FIELDS.get(x, x): one for x, one in usual.items()}
        differ = {x: v for x, v in usual.items() if x in fields and v != fields[x].default}
        self.fields |= {"optimizer": kind.lower(), **differ, **values}

    def _convert_rate(self, name: str, call: ast.Call) -> None:
        """Say a scheduler as fields of the spec, or let rate() ask torch's own."""
        kind, epochs = name_of(call), self.fields.get("epochs")
        given = {x: self._value(one) for x, one in self._arguments(call).items()}
        values = {**_parameters(kind), **given}
        by_batch = name in set(map(root_of, inside(ast.Call, *self._body)))
        if kind == "StepLR" and not by_batch:
            self.fields |= {"schedule": "step", "decay": values["gamma"]}
            self.fields["decay_every"] = values["step_size"]
        elif kind == "CosineAnnealingLR" and (by_batch or values["T_max"] == epochs):
            least = values["eta_min"]
            final = None if least is None else least / self._rate
            self.fields |= {"schedule": "cosine", "final_rate": final}
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
                f"return {optimizer}.param_groups[0]['lr'] / {self._rate}",
            ]
            self._write("rate(self, done)", lines)

    def _text(self, name: str) -> str:
        """Return the task's file: what its methods use of the script comes first."""
        script, kept, imports = self._script, dict[int, str](), {"import torch"}
        trees = [ast.parse(textwrap.dedent(one)) for one in self._methods]
        pending = sorted({one for tree in trees for one in reads(tree) - bound(tree)})
        for one in pending:  # it grows
            node = script.defined.get(one) or script.globals.get(one)
            if one in script.imports:
                imports.add(script.imports[one])
            elif one in self._settings:
                imports.add("import argparse")
                kept[0] = self._options(one)
            elif node is not None:
                first = min(x.lineno for x in (node, *getattr(node, "decorator_list", ())))
                kept[first] = "\n".join(self._lines[first - 1 : node.end_lineno])
                pending += sorted(reads(node) - bound(node) - {*pending})
            elif not hasattr(builtins, one):
                self._note(None, f"{MARK}: {one}: not found in the script; set it in the task")
        heads = sorted(imports, key=lambda text: (text.startswith("from"), text))
        about = f'"""The training of {name}."""\n'
        head = "\n".join([about, *heads, "", "from downpour import Task"])
        marked = "\n".join(f"    # {one}" for one in self.checklist if MARK in one)
        task = "class Training(Task):\n" + "\n\n".join(filter(None, [marked, *self._methods]))
        return "\n\n\n".join([head, *(kept[line] for line in sorted(kept)), task]) + "\n"

    def _options(self, name: str) -> str:
        """Return the script's arguments with their defaults."""
        for option, call in self._script.required.items():
            self._note(call, f"{MARK}: {option} has no default: set it in the task")
        values = [f"{x}={value!r}" for x, value in vars(self._script.options).items()]
        return f"{name} = argparse.Namespace({', '.join(values)})"


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _remade(call: ast.Call, params: str) -> ast.Call:
    """Return an optimizer's call with other parameters."""
    others = [key for key in call.keywords if key.arg != "params"]
    return ast.Call(call.func, [_expression(params), *call.args[1:]], others)


def _networks_in(*nodes: ast.AST) -> list[str]:
    """Return the names of the networks whose parameters some code takes."""
    calls = inside(ast.Call, *nodes)
    return [root_of(x) for x in calls if name_of(x) in {"parameters", "named_parameters"}]


def _parameters(name: str) -> dict[str, Any]:
    """Return the parameters of a class or function of torch, with their defaults."""
    kinds = [one for home in _HOMES if callable(one := getattr(home, name, None))]
    found = inspect.signature(kinds[0]).parameters if kinds else {}
    return {name: one.default for name, one in found.items()}
