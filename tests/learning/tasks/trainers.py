"""Trainers of transformers as users build them, and some that cannot be trained as they are."""

import random
from typing import Any

import torch
from torch.utils.data import IterableDataset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCABULARY = 11
Texts = list[list[int]]


def texts(count: int, seed: int) -> Texts:
    """Return sentences of different lengths."""
    draws = random.Random(seed)
    return [
        [draws.randrange(VOCABULARY) for _ in range(draws.randint(3, 12))] for _ in range(count)
    ]


def padded(batch: Texts) -> dict[str, torch.Tensor]:
    """Collate sentences; labels of the padding do not count."""
    rows = [torch.tensor(text) for text in batch]
    labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    real = labels != -100
    return {"input_ids": labels * real, "attention_mask": real.long(), "labels": labels}


def next_token(outputs: Any) -> dict[str, float]:
    """Return the share of tokens that the model guesses, over all examples."""
    labels = outputs.label_ids[:, 1:]
    right = outputs.predictions[:, :-1].argmax(-1) == labels
    return {"next_token": right[labels != -100].mean()}


def build(kind: type[Trainer] = Trainer, given: Any = None, **arguments: Any) -> Trainer:
    """Return a Trainer of a small GPT-2 without dropout."""
    set_seed(3)
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes, **drops, **ends))
    usual = {
        "output_dir": "trainer_output",
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 5,
        "learning_rate": 0.02,
        "train_sampling_strategy": "sequential",
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    data = {"train_dataset": texts(38, 0), "eval_dataset": texts(13, 1)}
    return kind(
        **{
            "model": model,
            "args": TrainingArguments(**{**usual, **arguments}),
            "data_collator": padded,
            "compute_metrics": next_token,
            **data,
            **(given or {}),
        }
    )


def plain() -> Trainer:
    """The defaults: AdamW, a linear schedule, clipping at 1."""
    return build()


def tuned() -> Trainer:
    """A warm-up in steps, accumulation, decay groups and label smoothing."""
    return build(
        warmup_steps=3,
        lr_scheduler_type="cosine",
        gradient_accumulation_steps=3,
        weight_decay=0.1,
        label_smoothing_factor=0.1,
        max_grad_norm=0.3,
        optim="adamw_torch",
    )


class Doubled(Trainer):
    """Has a loss of its own, a mean over examples."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        outputs = model(**{name: inputs[name] for name in ("input_ids", "labels")})
        loss = 2 * outputs.loss
        return (loss, outputs) if return_outputs else loss


def own_loss() -> Trainer:
    """Two epochs, said in steps, without the last batch."""
    data = {
        "eval_dataset": texts(10, 1)
    }  # in whole batches, because a Trainer drops others here, too
    return build(
        Doubled, data, max_steps=18, dataloader_drop_last=True, lr_scheduler_type="constant"
    )


def shuffled() -> Trainer:
    """The usual order, and the best model."""
    return build(
        train_sampling_strategy="random",
        bf16=True,
        max_grad_norm=0.0,
        load_best_model_at_end=True,
        metric_for_best_model="eval_next_token",
        greater_is_better=True,
        save_strategy="epoch",
        eval_strategy="epoch",
    )


def odd_steps() -> Trainer:
    """Ends within an epoch."""
    return build(max_steps=7)


def half_epoch() -> Trainer:
    """The same, in epochs."""
    return build(num_train_epochs=2.5)


def early() -> Trainer:
    """Ends by a callback of the library."""
    return build(
        given={"callbacks": [EarlyStoppingCallback(3)]},
        load_best_model_at_end=True,
        save_strategy="epoch",
        eval_strategy="epoch",
    )


class Ending(TrainerCallback):
    """Ends the training."""


def own_callback() -> Trainer:
    """Calls a callback of the user's."""
    return build(given={"callbacks": [Ending()]})


def plateau() -> Trainer:
    """Sets the rate by results."""
    return build(lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch")


def own_optimizer() -> Trainer:
    """Brings an optimizer that no other process can make."""
    trainer = build()
    assert trainer.model is not None
    sgd = torch.optim.SGD(trainer.model.parameters())
    return build(given={"model": trainer.model, "optimizers": (sgd, None)})


def untested() -> Trainer:
    """Has nothing to evaluate on."""
    return build(given={"eval_dataset": None})


class Stream(IterableDataset[Any]):
    """Sentences without an index."""

    def __iter__(self) -> Any:
        return iter(texts(20, 0))


def streaming() -> Trainer:
    """Trains on a stream."""
    return build(given={"train_dataset": Stream()}, max_steps=9)


def neftune() -> Trainer:
    """Adds noise to embeddings."""
    return build(neftune_noise_alpha=5.0)


trainer = build()
