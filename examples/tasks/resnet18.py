"""ResNet-18 with batch normalization and augmentation, on 8 x 8 digits that are blown up to 32."""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from downpour import Task
from downpour.data import transforms

AUGMENT = ["Resize(32)", "RandomCrop(32, padding=3)", "RandomAffine(10, scale=(0.9, 1.1))"]
READY = ["Grayscale(3)", "Normalize([0.3], [0.35])"]


class Images:
    def __init__(self, images, labels, steps):
        self.images, self.labels, self.transform = images, labels, transforms(steps)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.images[index]), self.labels[index]


class Digits(Task):
    def __init__(self, augment=AUGMENT):
        images, self.classes = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.augment = augment

    def model(self):
        return resnet18(num_classes=10)

    def examples(self, part):
        rows = slice(0, 1500) if part == "train" else slice(1500, None)
        steps = self.augment if part == "train" else ["Resize(32)"]
        return Images(self.images[rows], self.classes[rows], [*steps, *READY])

    def labels(self):
        return self.classes[:1500]

    def loss(self, model, batch):
        return cross_entropy(model(batch[0]), batch[1])

    def metrics(self, model, batch):
        return {"accuracy": (model(batch[0]).argmax(dim=1) == batch[1]).float().mean()}
