"""A made corpus in plain English: sentences of a small grammar, the same on every machine.

Language models of a few thousand parameters learn its words in seconds, then its grammar.
"""

from collections.abc import Sequence
from random import Random

ADJECTIVES = "quick slow quiet new old small large patient busy idle broken careful".split()
NOUNS = "worker manager shard model file folder round spec loss gradient network window".split()
VERBS = "trains sends reads keeps loses finds copies wants follows averages".split()
PLACES = "in the folder,on the disk,before the round,after a step,at night,near the end".split(",")
JOINED = [", and ", ", but ", " because ", " while ", ". ", ".\n"]


def text(sentences: int, seed: int = 0) -> str:
    """Return sentences in one string."""
    uniform = Random(seed).random  # the one method whose results Python promises to keep

    def one_of(words: list[str]) -> str:
        return words[int(min(uniform(), uniform()) * len(words))]  # the first are the most frequent

    def thing() -> str:
        return f"{one_of(['the', 'a'])} {one_of(ADJECTIVES)} {one_of(NOUNS)}"

    return "".join(
        f"{thing()} {one_of(VERBS)} {thing()} {one_of(PLACES)}{one_of(JOINED)}"
        for _ in range(sentences)
    )


def encoded(units: Sequence[str]) -> tuple[list[str], dict[str, list[int]]]:
    """Return the different characters or words, and the numbers of all: nine tenths to train on."""
    vocabulary = sorted(set(units))
    numbers = {unit: number for number, unit in enumerate(vocabulary)}
    ids, cut = [numbers[unit] for unit in units], len(units) * 9 // 10
    return vocabulary, {"train": ids[:cut], "test": ids[cut:]}
