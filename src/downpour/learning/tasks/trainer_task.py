"""A `transformers.Trainer` as a task: its model, data, arguments, loss and metrics."""

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.allowlist import allow_in
from downpour.learning.tasks import Batch, Position
from downpour.learning.tasks.adapted import Adapted, Schedule, is_adaptable

_REFUSED = {
    "batch_eval_metrics": "False",
    "deepspeed": "None: Downpour trains each shard on one device",
    "fsdp": "empty: Downpour trains each shard on one device",
    "neftune_noise_alpha": "None",
}
"""Arguments that change a training in a way that Downpour does not, and what they must be."""


def from_trainer(trainer: Any, **fields: Any) -> Spec:
    """Return a spec that trains what a `transformers.Trainer` would.

    The spec names the variable that holds the Trainer, because workers import the script to make
    their own. So the script must do its training below `if __name__ == "__main__":`.

    Args:
        trainer: A variable of the script that runs, or of a module that it imports.
        fields: Fields of the spec, such as `shards`; they replace what the Trainer's arguments say.

    Raises:
        SpecError: other processes cannot import the Trainer, or it does something that Downpour
            does not do; the message says what.
    """
    if not is_adaptable(trainer):
        raise SpecError("trainer", type(trainer).__name__, "must be a transformers.Trainer")
    name = _importable_name(trainer)
    if name is None:
        accepted = (
            "must be a variable of the script, outside of functions; or name a function of it that "
            'returns a Trainer, as in Spec(task="train:build")'
        )
        raise SpecError("trainer", "Trainer", accepted)
    return Spec.make({**TrainerTask(name, trainer).settings(), **fields, "task": name})


def _importable_name(trainer: object) -> str | None:
    """Return MODULE:VARIABLE of an object; allows the module if it is the script that runs."""
    script = sys.modules["__main__"]
    others = [module for module in sys.modules.values() if module not in {script, None}]
    for module in (*others, script):
        names = [name for name, value in vars(module).items() if value is trainer]
        if not names or not getattr(module, "__file__", None):
            continue
        place = module.__spec__.name if module.__spec__ else Path(str(module.__file__)).stem
        if getattr(module.__spec__, "_initializing", False):
            accepted = "is asked for while a worker imports it: put that below "
            accepted += '`if __name__ == "__main__":`'
            raise SpecError("trainer", f"{place}:{names[0]}", accepted)
        if module is script:
            allow_in([Path(str(module.__file__)).parent], [place.partition(".")[0]])
        return f"{place}:{names[0]}"
    return None


class TrainerTask(Adapted):
    """A task whose network is the model of a Trainer, which stays as it was."""

    def __init__(self, name: str, trainer: Any) -> None:
        super().__init__(name)
        self._trainer = trainer
        self._bound: tuple[nn.Module, Any] | None = None
        self._gathered: list[tuple[Any, Any]] = []
        trainer.args._n_gpu = min(1, trainer.args.n_gpu)  # noqa: SLF001 - or it scales losses
        self._check()
        self.loaders = {"train": trainer.get_train_dataloader()}
        self.loaders["test"] = trainer.get_eval_dataloader()
        self.settings()  # it refuses what cannot be said

    def _check(self) -> None:
        trainer, args = self._trainer, self._trainer.args
        for argument, needed in _REFUSED.items():
            if getattr(args, argument, None):
                raise self.refusal(f"its {argument} must be {needed}")
        for one in trainer.callback_handler.callbacks:
            kind = type(one)
            if kind.__name__ == "EarlyStoppingCallback":
                raise self.refusal("leave out EarlyStoppingCallback: the spec has stop_after")
            if kind.__module__.partition(".")[0] != "transformers":
                raise self.refusal(f"leave out {kind.__name__}: Downpour calls no callbacks", kind)
        if trainer.optimizer is not None or trainer.lr_scheduler is not None:
            raise self.refusal(
                "leave out optimizers=, because each worker makes its own: use optim=, "
                "lr_scheduler_type= and optimizer_cls_and_kwargs="
            )
        if args.dataloader_drop_last and args.gradient_accumulation_steps > 1:
            raise self.refusal("dataloader_drop_last needs gradient_accumulation_steps=1")
        if trainer.train_dataset is None:
            raise self.refusal("has no train_dataset")
        if trainer.eval_dataset is None or isinstance(trainer.eval_dataset, dict):
            raise self.refusal(
                "needs an eval_dataset, and one alone: Downpour measures each model version on it"
            )

    def settings(self) -> dict[str, Any]:
        """Return what the arguments say."""
        args = self._trainer.args
        fields = super().settings() | {
            "batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps,
            "accumulate": args.gradient_accumulation_steps,
            "epochs": self._epochs(),
            "seed": args.seed,
            "precision": "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
        }
        if args.max_grad_norm:
            fields["clip_norm"] = float(args.max_grad_norm)
        if args.use_cpu:
            fields["device"] = "cpu"
        if args.load_best_model_at_end:
            better = "max" if args.greater_is_better else "min"
            fields["keep_best"] = f"{better}:{args.metric_for_best_model.removeprefix('eval_')}"
        return fields

    def _epochs(self) -> int:
        args = self._trainer.args
        steps = max(1, -(-len(self.loaders["train"]) // args.gradient_accumulation_steps))
        epochs = args.max_steps / steps if args.max_steps > 0 else args.num_train_epochs
        if epochs != int(epochs) or epochs < 1:
            what = f"max_steps={args.max_steps}" if args.max_steps > 0 else "num_train_epochs"
            said = f"{what} is {epochs:.4g} epochs of {steps} steps: Downpour trains whole epochs"
            raise self.refusal(said)
        return int(epochs)

    def model(self) -> nn.Module:
        """Return a copy of the Trainer's model, on the CPU."""
        model: Any = copy.deepcopy(self._trainer.model.cpu())
        if self._trainer.args.gradient_checkpointing:
            model.gradient_checkpointing_enable(self._trainer.args.gradient_checkpointing_kwargs)
        return model  # type: ignore[no-any-return]

    def _trainer_of(self, model: nn.Module) -> Any:
        """Return a Trainer of a network, which is as this one otherwise."""
        if self._bound is None or self._bound[0] is not model:
            own = copy.copy(self._trainer)
            own.model = own.model_wrapped = model
            own.optimizer = own.lr_scheduler = None
            own.state = copy.copy(own.state)
            own._prepare_inputs = dict  # noqa: SLF001 - batches are on the device already
            self._bound = model, own
        return self._bound[1]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Any]:
        """Return the Trainer's loss, with the number of labels if it is a mean over these."""
        own = self._trainer_of(model)
        device = next(model.parameters()).device
        _, count = own.get_batch_samples(iter([batch]), 1, device)
        loss = own.compute_loss(model, dict(batch), num_items_in_batch=count)
        if count is None or getattr(own, "loss_is_scaled_for_ga", None) is False:
            return loss  # type: ignore[no-any-return]
        return loss * count, count

    def begin_evaluation(self, model: nn.Module) -> None:
        """Forget the outputs of an earlier evaluation."""
        del model
        self._gathered = []

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        """Return the loss of a batch, and keep what `compute_metrics` needs."""
        own = self._trainer_of(model)
        needs_outputs = own.compute_metrics is not None
        loss, logits, labels = own.prediction_step(model, batch, not needs_outputs)
        if needs_outputs and logits is not None:
            if own.preprocess_logits_for_metrics is not None:
                logits = own.preprocess_logits_for_metrics(logits, labels)
            self._gathered.append((logits, labels))
        return {} if loss is None else {"loss": loss}

    def end_evaluation(self, model: nn.Module) -> Mapping[str, Any]:
        """Return the metrics of all outputs together, without the prefix eval_."""
        if not self._gathered:
            return {}
        # Modules that the user's own has imported.
        library, parts = (sys.modules[f"transformers{one}"] for one in ("", ".trainer_pt_utils"))
        gathered = [parts.EvalLoopContainer(padding_index=-100) for _ in range(2)]
        for outputs in self._gathered:
            for container, one in zip(gathered, outputs, strict=True):
                container.add(one)
        self._gathered = []
        logits, labels = (one.get_arrays() for one in gathered)
        compute = self._trainer_of(model).compute_metrics
        found = compute(library.EvalPrediction(predictions=logits, label_ids=labels))
        return {name.removeprefix("eval_"): value for name, value in found.items()}

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the network's logits."""
        output = model(**batch)
        return output["logits"] if "logits" in output else output[0]

    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Return the optimizer that the arguments name, with its groups of decay."""
        own = copy.copy(self._trainer_of(groups[0]["network"]))
        own.create_optimizer()
        return own.optimizer  # type: ignore[no-any-return]

    def tell(self, model: nn.Module, position: Position) -> None:
        """Tell the Trainer where the training is."""
        state = self._trainer_of(model).state
        state.epoch = position.epoch + position.step / position.steps
        state.global_step, state.max_steps = position.number, position.total

    def schedule(self, model: nn.Module) -> Schedule:
        """Return what the scheduler sets that the arguments name."""

        def make() -> tuple[Optimizer, Any]:
            own = copy.copy(self._trainer_of(model))
            own.create_optimizer()
            own.create_scheduler(own.state.max_steps, own.optimizer)
            self.check_scheduler(own.lr_scheduler)
            return own.optimizer, own.lr_scheduler

        return Schedule(make)
