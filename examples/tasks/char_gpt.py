"""A character-level GPT: attention, dropout, weight decay for matrices alone.

Its spec adds warm-up, a cosine, clipping and accumulation.
"""

from torch import nn
from torch.nn.functional import cross_entropy

from corpus import encoded, text
from downpour import Task
from downpour.data import TokenWindows


class GPT(nn.Module):
    def __init__(self, vocabulary, block, width, heads, layers, dropout):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        shape = {"d_model": width, "nhead": heads, "dim_feedforward": 4 * width}
        options = {"activation": "gelu", "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(**shape, **options, dropout=dropout) for _ in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False))

    def forward(self, ids):
        length = ids.shape[1]
        x = self.tokens(ids) + self.places.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, x.device)
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return self.head(x)


class CharGPT(Task):
    def __init__(self, sentences=2000, block=64, width=64, heads=4, layers=2, dropout=0.1):
        self.vocabulary, self.ids = encoded(text(sentences))
        self.shape = block, width, heads, layers, dropout

    def model(self):
        return GPT(len(self.vocabulary), *self.shape)

    def examples(self, part):
        return TokenWindows(self.ids[part], self.shape[0])

    def loss(self, model, batch):
        x, y = batch
        return cross_entropy(model(x).flatten(0, 1), y.flatten())

    def groups(self, model):
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() < 2]
        return [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
