"""A word-level LSTM whose input and output embeddings are one matrix."""

from torch import nn
from torch.nn.functional import cross_entropy

from corpus import encoded, text
from downpour import Task
from downpour.data import TokenWindows


class TiedLSTM(nn.Module):
    def __init__(self, vocabulary, width, layers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, ids):
        output, _ = self.lstm(self.drop(self.encoder(ids)))
        return self.decoder(self.drop(output))


class Words(Task):
    def __init__(self, sentences=8000, block=32, width=96, layers=2, dropout=0.2):
        words = text(sentences).replace(",", " ,").replace(".", " .").split()
        vocabulary, self.ids = encoded(words)
        self.block, self.shape = block, (len(vocabulary), width, layers, dropout)

    def model(self):
        return TiedLSTM(*self.shape)

    def examples(self, part):
        return TokenWindows(self.ids[part], self.block)

    def loss(self, model, batch):
        x, y = batch
        return cross_entropy(model(x).flatten(0, 1), y.flatten())
