"""A LightningModule as a task: its steps, its optimizer and scheduler, and its data."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from downpour.base.errors import SpecError
from downpour.learning.tasks import Batch, Position
from downpour.learning.tasks.adapted import LIGHTNING, Adapted, Schedule, derives, released

_REFUSED = {
    "configure_callbacks": "; keep_best and stop_after of the spec choose and end",
    "configure_gradient_clipping": "; clip_norm of the spec clips",
    **dict.fromkeys(("backward", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"), ""),
    **dict.fromkeys(("on_before_backward", "on_after_backward", "on_before_zero_grad"), ""),
    **dict.fromkeys(("on_before_optimizer_step", "on_train_epoch_start"), ""),
    **dict.fromkeys(("on_train_batch_start", "on_train_batch_end"), ""),
}
"""Methods that change a training, but that Downpour does not call, and what does the same."""


def made_of(name: str, kind: type, options: Mapping[str, Any]) -> Any:
    """Make a module of a class, and the data module of its file if it has no loaders itself.

    An option goes to every class whose `__init__` names it.
    """
    beside = [] if _overrides(kind, "train_dataloader") else _data_modules_beside(kind)
    if len(beside) > 1:
        names = " and ".join(one.__name__ for one in beside)
        accepted = f"its file has {names}: name a function that returns the module and one of them"
        raise SpecError("task", name, accepted)
    taken = [_taken(one, options) for one in (kind, *beside)]
    if unknown := sorted(options.keys() - {key for one in taken for key in one}):
        accepted = f"{name} takes no {unknown[0]}"
        raise SpecError("task_options", dict(options), accepted)
    made = [one(**its) for one, its in zip((kind, *beside), taken, strict=True)]
    return tuple(made) if beside else made[0]


def _data_modules_beside(kind: type) -> list[type]:
    """Return the LightningDataModules that the file of a module defines."""
    home = inspect.getmodule(kind)
    classes = (one for one in vars(home).values() if isinstance(one, type))
    own = (one for one in classes if one.__module__ == kind.__module__)
    return [one for one in own if derives(one, LIGHTNING, "LightningDataModule")]


def _taken(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(kind).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return dict(options)
    return {name: value for name, value in options.items() if name in parameters}


class TrainerInfo:
    """Stands in for a module's trainer: it knows the position, and keeps logged values."""

    training = is_global_zero = True
    validating = testing = predicting = sanity_checking = False
    global_rank = local_rank = 0
    world_size = num_devices = num_nodes = accumulate_grad_batches = 1
    max_steps = -1
    logger = progress_bar_callback = None
    loggers = ()

    def __init__(self, task: Adapted, data: Any) -> None:
        self.datamodule = data
        self.current_epoch = self.global_step = self.batch_idx = 0
        # Until training begins: enough for schedulers that divide it.
        self.max_epochs = self.num_training_batches = self.estimated_stepping_batches = 1000
        self._task = task
        self.batches = 0
        self.logged: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Downpour, which trains without a lightning.Trainer, has no {name}")

    def log(self, name: str, value: Any, *_: Any, **options: Any) -> None:
        """Take what an evaluation logs: a number of a batch, or a metric to compute at its end."""
        if self.training:
            return
        if (how := options.get("reduce_fx", "mean")) not in {"mean", torch.mean}:
            raise self._task.refusal(f"self.log({name!r}, reduce_fx={how!r}): only means are known")
        if hasattr(value, "compute") and hasattr(value, "reset"):
            self.metrics[name] = value
            return
        number = value.detach().reshape(()) if isinstance(value, Tensor) else value
        size = options.get("batch_size")
        self.logged[name] = number if size is None else (number * size, size)

    def evaluates(self, *, now: bool) -> None:
        """Begin or end an evaluation."""
        self.training, self.validating, self.batches = not now, now, 0
        self.logged, self.metrics = {}, {}


class LightningTask(Adapted):
    """A task whose network is a LightningModule.

    `make` returns the module, or a pair of it and its LightningDataModule.
    """

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        super().__init__(name)
        self._make = make
        module, self._data = self._made()
        self._check(module)
        if self._data is not None:
            self._data.trainer = TrainerInfo(self, self._data)
            self._data.prepare_data()
            self._data.setup("fit")
        self._attach(module)
        self.loaders = self._loaders_of(module if self._data is None else self._data)
        self.settings()  # it refuses what cannot be said

    def _made(self) -> tuple[Any, Any]:
        made = self._make()
        return made if isinstance(made, tuple) else (made, None)

    def _check(self, module: Any) -> None:
        kind = type(module)
        if not module.automatic_optimization:
            said = (
                "optimizes manually: let the step() of a downpour.Task do what training_step does"
            )
            raise self.refusal(said, kind.training_step)
        for method in (one for one in _REFUSED if _overrides(module, one)):
            said = f"Downpour does not call {method}(){_REFUSED[method]}"
            raise self.refusal(said, getattr(kind, method))

    def _loaders_of(self, source: Any) -> dict[str, Any]:
        """Return the loaders of a module or a data module, for training and evaluation."""
        parts = ("train", "val", "test")
        given = [part for part in parts if _overrides(source, f"{part}_dataloader")]
        if "train" not in given:
            raise self.refusal(
                "has no data: define train_dataloader() and val_dataloader(), or a "
                "LightningDataModule in the same file"
            )
        if len(given) == 1:
            raise self.refusal("needs val_dataloader(): Downpour measures each model version on it")
        if given[1] == "test":
            source.setup("test")
        loaders = [getattr(source, f"{part}_dataloader")() for part in given[:2]]
        alone = [x[0] if isinstance(x, list | tuple) and len(x) == 1 else x for x in loaders]
        return dict(zip(("train", "test"), alone, strict=True))

    def model(self) -> nn.Module:
        """Return a new module, with a stand-in for its trainer."""
        module: nn.Module = self._made()[0]
        self._attach(module)
        return module

    def _attach(self, module: Any) -> None:
        module.trainer = TrainerInfo(self, self._data)
        for part in module.modules():
            if hasattr(part, "training_step"):
                part.log = module.trainer.log
        module.prepare_data()
        module.setup("fit")
        module.configure_model()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of the training step."""
        module: Any = model
        found = _loss(_called(module, module.training_step, batch, module.trainer.batch_idx))
        if not isinstance(found, Tensor):
            said = f"training_step() must return a loss, not {type(found).__name__}"
            raise self.refusal(said, module.training_step)
        return found

    def begin_evaluation(self, model: nn.Module) -> None:
        """Begin an epoch of validation."""
        module: Any = model
        module.trainer.evaluates(now=True)
        module.on_validation_epoch_start()

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        """Return what the validation step logs; the loss is its val_loss, or what it returns."""
        module: Any = model
        trainer = module.trainer
        if not _overrides(module, "validation_step"):
            return {}
        trainer.logged = {}
        found = _loss(_called(module, module.validation_step, batch, trainer.batches))
        trainer.batches += 1
        loss = trainer.logged.pop("val_loss", found)
        return trainer.logged if loss is None else {**trainer.logged, "loss": loss}

    def end_evaluation(self, model: nn.Module) -> Mapping[str, Any]:
        """Return what the end of a validation logs, and metrics over all batches."""
        module: Any = model
        trainer = module.trainer
        trainer.logged = {}
        module.on_validation_epoch_end()
        found = {**trainer.logged, **{n: one.compute() for n, one in trainer.metrics.items()}}
        for part in module.modules():  # also metrics that the module itself computes
            if hasattr(part, "compute") and hasattr(part, "update"):
                part.reset()
        trainer.evaluates(now=False)
        return found

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return what the module predicts, by default the network's output."""
        module: Any = model
        if _overrides(module, "predict_step"):
            return _called(module, module.predict_step, batch, 0)
        return super().predict(model, batch)

    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Return the module's optimizer, without its scheduler."""
        return released(self._configured(groups[0]["network"])[0])

    def tell(self, model: nn.Module, position: Position) -> None:
        """Tell the module where the training is."""
        trainer: Any = model.trainer
        trainer.current_epoch, trainer.batch_idx = position.epoch, position.step
        trainer.global_step = position.number
        trainer.max_epochs, trainer.num_training_batches = position.epochs, position.steps
        trainer.estimated_stepping_batches = position.total

    def schedule(self, model: nn.Module) -> Schedule | None:
        """Return what the module's scheduler sets; None if it has none."""
        one = self._configured(model)[1]
        if one is None:
            return None

        def make() -> tuple[Optimizer, Any]:
            optimizer, again = self._configured(model)
            return optimizer, (again or {})["scheduler"]

        by_epoch = one.get("interval", "epoch") == "epoch"
        return Schedule(make, counts_epochs=by_epoch, every=one.get("frequency", 1))

    def _configured(self, model: Any) -> tuple[Optimizer, dict[str, Any] | None]:
        """Return the optimizer, and its scheduler with its interval, from any form of them."""
        where = type(model).configure_optimizers
        optimizers, schedulers = _listed(model.configure_optimizers())
        if len(optimizers) != 1:
            said = f"configure_optimizers() returns {len(optimizers)} optimizers, but one is needed"
            instead = "; with several, write a downpour.Task with its own step()"
            raise self.refusal(said + instead * (len(optimizers) > 1), where)
        if len(schedulers) > 1:
            said = "has several schedulers: let a SequentialLR or ChainedScheduler hold them"
            raise self.refusal(said, where)
        for one in schedulers:
            self.check_scheduler(one["scheduler"], where)
            return optimizers[0], one
        return optimizers[0], None


def _listed(given: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the optimizers and schedulers of a result of `configure_optimizers`."""
    match given:
        case Mapping():
            optimizers, schedulers = [given["optimizer"]], [given.get("lr_scheduler")]
        case [list() as optimizers, list() as schedulers]:
            pass
        case list() | tuple():
            several = [_listed(one) for one in given]
            return [x for some, _ in several for x in some], [
                x for _, some in several for x in some
            ]
        case _:
            optimizers, schedulers = [given] if isinstance(given, Optimizer) else [], []
    kept = (one for one in schedulers if one is not None)
    return optimizers, [dict(x) if isinstance(x, Mapping) else {"scheduler": x} for x in kept]


def _called(module: Any, step: Callable[..., Any], batch: Batch, number: int) -> Any:
    """Call one of a module's steps, which may leave out the numbers of the batch and the loader."""
    for hook in (module.on_before_batch_transfer, module.on_after_batch_transfer):
        batch = hook(batch, 0)
    wanted = inspect.signature(step).parameters.values()
    takes_all = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in wanted)
    return step(*(batch, number, 0)[: 3 if takes_all else len(wanted)])


def _loss(found: Any) -> Any:
    return found.get("loss") if isinstance(found, Mapping) else found


def _overrides(found: Any, method: str) -> bool:
    """Whether a module, or its class, has a method that the library has not written."""
    if method in getattr(found, "__dict__", {}):  # as LightningDataModule.from_datasets sets them
        return True
    kind = found if isinstance(found, type) else type(found)
    library = str(getattr(getattr(kind, method, None), "__module__", "")).partition(".")[0]
    return hasattr(kind, method) and library not in LIGHTNING
