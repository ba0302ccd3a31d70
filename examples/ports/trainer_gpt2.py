"""A small GPT-2 in a Trainer of transformers; Downpour trains it with four workers.

Its last lines said `trainer.train()` before.
"""

import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import downpour

LETTERS = " abcdefghijklmnopqrstuvwxyz"
WORDS = "the moor has a stream and it falls into another one far below in the quiet wood".split()


def sentences(count):
    draws = random.Random(0)
    return [" ".join(draws.choices(WORDS, k=draws.randint(4, 12))) for _ in range(count)]


def collate(texts):
    ids = [torch.tensor([LETTERS.index(letter) for letter in text]) for text in texts]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-100)
    real = padded != -100
    return {"input_ids": padded * real, "attention_mask": real.long(), "labels": padded}


def next_letter(outputs):
    labels = outputs.label_ids[:, 1:]
    right = outputs.predictions[:, :-1].argmax(-1) == labels
    return {"next_letter": right[labels != -100].mean()}


set_seed(1)
sizes = {"n_positions": 128, "n_embd": 48, "n_layer": 2, "n_head": 4}
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=len(LETTERS), bos_token_id=0, eos_token_id=0, **sizes)
)
texts = sentences(600)
arguments = TrainingArguments(
    "trainer_output",
    num_train_epochs=3,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    lr_scheduler_type="cosine",
    warmup_steps=10,
    weight_decay=0.1,
    use_cpu=True,
)
trainer = Trainer(
    model,
    arguments,
    data_collator=collate,
    train_dataset=texts[:500],
    eval_dataset=texts[500:],
    compute_metrics=next_letter,
)

if __name__ == "__main__":
    print(downpour.run(downpour.from_trainer(trainer, shards=4)))
