"""The training of a spec as a script would write it: a plain PyTorch loop, and none of Downpour's.

What it takes from Downpour are the choices that a page documents and a script makes for itself: the
order of the examples in an epoch, and the numbers that seed each step.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from downpour import Spec, Task
from downpour.learning.numerics import step_seed, task_seed
from downpour.learning.training.epoch_order import batch_order


@dataclass(frozen=True, slots=True)
class Trained:
    """The mean training loss of each epoch, that on the test examples afterwards, the network."""

    losses: list[float]
    test_loss: float
    model: nn.Module


def plain_training(task: Task, spec: Spec) -> Trained:
    """Train on all examples, one batch after the other."""
    torch.set_num_threads(spec.threads)
    _seed(spec.seed)
    model = task.model()
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = _optimizer(task, spec, task.groups(model) or [{"params": trained}])
    rates = [group["lr"] for group in optimizer.param_groups]
    examples = task.examples("train")
    count = min(len(examples), spec.train_limit or len(examples))
    batches = max(1, count // spec.batch_size + (count % spec.batch_size > 1))
    steps = min(batches, spec.local_steps or count)
    losses = []
    for epoch in range(spec.epochs):
        model.train()
        if spec.optimizer_state == "reset":
            optimizer.state.clear()
        blocks = getattr(examples, "block_ends", None), getattr(examples, "window_blocks", 1)
        order = batch_order(spec, np.arange(count), None, epoch, 0, None, *blocks)
        total, seen = 0.0, 0
        for step in range(steps):
            _seed(step_seed(step, task_seed(spec.seed, epoch, 0)))
            chosen = order[count * step // batches : count * (step + 1) // batches]
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * _factor(spec, epoch, step, steps)
            optimizer.zero_grad()
            for part in np.array_split(chosen, spec.accumulate):
                loss: Any = task.loss(model, task.collate([examples[i] for i in part.tolist()]))
                (loss * len(part) / len(chosen)).backward()
                total += loss.item() * len(part)
            if spec.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), spec.clip_norm)
            optimizer.step()
            seen += len(chosen)
        losses.append(total / seen)
    return Trained(losses, _test_loss(task, spec, model), model)


def _test_loss(task: Task, spec: Spec, model: nn.Module) -> float:
    examples = task.examples("test")
    indices = range(min(len(examples), spec.test_limit or len(examples)))
    total = 0.0
    model.eval()
    _seed(spec.seed)
    with torch.no_grad():
        for start in range(0, len(indices), spec.batch_size):
            batch = [examples[index] for index in indices[start : start + spec.batch_size]]
            loss: Any = task.loss(model, task.collate(batch))
            total += loss.item() * len(batch)
    return total / len(indices)


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number >> 32)
    torch.manual_seed(number)


def _optimizer(task: Task, spec: Spec, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
    own = task.optimizer(groups)
    if own is not None:
        assert isinstance(own, torch.optim.Optimizer)
        return own
    rate, decay = spec.learning_rate, spec.weight_decay
    if spec.optimizer == "sgd":
        return torch.optim.SGD(groups, rate, spec.momentum, weight_decay=decay)
    kind = torch.optim.AdamW if spec.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, rate, spec.betas, spec.epsilon, decay)


def _factor(spec: Spec, epoch: int, step: int, steps: int) -> float:
    total, number = spec.epochs * steps, epoch * steps + step
    warmup = spec.warmup * total
    if number < warmup:
        return min(1.0, (number + 1) / warmup)
    share = (number - warmup) / (total - warmup)
    least = spec.final_rate
    return {
        "constant": 1.0,
        "cosine": least + (1 - least) * (1 + math.cos(math.pi * share)) / 2,
        "linear": 1 - (1 - least) * share,
        "step": spec.decay ** (epoch // spec.decay_every),
    }[spec.schedule]
