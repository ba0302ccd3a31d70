"""LoRA on a GPT-2: the model of transformers is frozen, and only the adapters of peft travel.

Its weights are random, so nothing is downloaded; `GPT2LMHeadModel.from_pretrained(folder,
local_files_only=True)` takes real ones.
"""

from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from corpus import encoded, text
from downpour import Task
from downpour.data import TokenWindows


class LoraGPT2(Task):
    def __init__(self, sentences=1500, block=64, width=64, layers=2, heads=4, rank=8):
        self.vocabulary, self.ids = encoded(text(sentences))
        names = ("n_positions", "n_embd", "n_layer", "n_head")
        self.shape = dict(zip(names, (block, width, layers, heads), strict=True))
        self.rank = rank

    def model(self):
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        base = GPT2LMHeadModel(GPT2Config(vocab_size=len(self.vocabulary), **self.shape, **ends))
        targets = ["c_attn", "c_proj", "c_fc"]
        adapter = LoraConfig(r=self.rank, target_modules=targets, fan_in_fan_out=True)
        return get_peft_model(base, adapter)

    def examples(self, part):
        return TokenWindows(self.ids[part], self.shape["n_positions"])

    def loss(self, model, batch):
        return model(input_ids=batch[0], labels=batch[0]).loss  # it shifts the labels by itself

    def metrics(self, model, batch):
        output = model(input_ids=batch[0], labels=batch[0])
        guessed = output.logits[:, :-1].argmax(dim=-1) == batch[0][:, 1:]
        return {"loss": output.loss, "next_token": (guessed.sum(), guessed.numel())}
