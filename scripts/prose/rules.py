"""Our own rules of plain English, as proselint checks; docs/internals/writing.md has the reasons.

A rule reads the text that `passages.py` makes: prose alone, each passage ending with `¶`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from proselint.registry.checks import Check, CheckFlags, CheckResult
from proselint.registry.checks.types import CheckFn

WORDS_MAX = 30
NUMBERS_MAX = 3

BE = r"(?:is|are|was|were|has been|have been|had been|be|been|being)"
DONE = (
    r"(?!need|seed|speed|indeed|hundred|red\b|bed\b|shed\b|happened|changed|used to)"
    r"(?:\w+ed|begun|born|built|chosen|cut|done|drawn|found|given|gone|held|kept|known|left|let|lost|"
    r"made|meant|met|paid|put|read|run|said|seen|sent|set|shown|spent|split|taken|told|understood|"
    r"won|worn|written)\b"
)
REST = r"[^,.!?;:¶]"
"""What may stand between two words of one clause."""

WHAT = (
    rf"\b[Ww]hat (?:{BE}|has|have|had) (?:\w+ly |not |to be |only |already |still )?{DONE}"
    r"|^What (?!if\b|to\b)[^?]*\.¶?$"
    r"|\b(?:is|are|was|were|of|with|by|for|than|from|beside) what\b(?! if)(?![^?]*\?)"
)
FOR = (
    r"[,;:] for (?:it|they|there|we|he|she|nothing|something|everything|anything)\b"
    r"|[,;] for (?:an?|the|each|every|no|most|some|all|any|one|its|their|our|th[ie]s|that|those) "
    rf"(?:(?!\b(?:that|which|who)\b){REST})*?"
    r"\b(?:is|are|was|were|has|have|had|can|cannot|would|will|may|must|does|do|did)\b"
)
THERE = (
    rf"\b[Tt]here (?:is|are|was|were) {REST}{{0,60}}?(?<!of )\b(?:that|which|who)\b"
    r"|\bthat (?:is|are) there\b|\bas there (?:is|are)\b"
)
WHERE = (
    r"^Where (?!to\b)[^?]*\.¶?$"
    rf"|\bwhere {REST}{{0,40}}?\b(?:has|have|had) (?:not |no |been |ended|gone)"
    r"|\bwhere (?:one|none|no|nothing|not|there|neither|either|possible)\b"
)
PASSIVE = (
    r"^(?:It|They|This|That|These|Those|All|Each|Both|Nothing|Everything) (?:of \w+ )?"
    rf"{BE} (?:\w+ly |not |only |also |then |never )?{DONE}"
)

PLAIN = {
    "afresh|anew": "again, from scratch",
    "amongst": "among",
    "as many as there are": "all",
    "by itself": "on its own, automatically",
    "dear|dearer": "expensive, costly",
    "foreseen|foresees?": "forecast, predict",
    "hereby|thereof|thereby|therein|thereafter|whereby|wherein|hence|hitherto": "(leave it out)",
    "in order to": "to",
    "in the end": "finally, at the end",
    "in which case": "if so, then",
    "is so": "holds, is true",
    "(?:is|are|was|were) (?:said|told)": "X says, X tells Y",
    "(?:lie|lies|lay) (?:in|beside|there|under|below|at|on)": "is in, is next to",
    "mends?|mended|mending": "fix, repair",
    "nobody|no one": "name who doesn't do it",
    "nothing but": "only",
    "nowhere": "name the place",
    "of (?:its|their|our|one's|his) own": "its own X",
    "of (?:ours|theirs|hers|yours)": "our X, your X",
    "per cent": "%",
    r"so (?:many|few|much) \w+ (?:of|as)": "give the count",
    "those (?:who|that|which)": "name them: users who, machines that",
    "utili[sz]e[sd]?|utili[sz]ing": "use",
    "whatever|whichever|whoever": "any, every, the one that",
    "whilst": "while",
    "with regard to": "about",
}

BRITISH = (
    r"\w*(?:behaviour|colour|favour|flavour|harbour|honour|labour|neighbour|rumour|vigour)\w*|"
    r"\w{2,}(?:alis|anis|aris|atis|eris|ilis|imis|inis|oris|onis|ognis|onis|peris|ymis)"
    r"(?:e|es|ed|er|ers|ing|ation|ations)|(?:re)?(?:analys|paralys)(?:e|ed|ing)|"
    r"(?:label|travel|model|signal|level|channel|tunnel|fuel|total)l(?:ed|ing|er|ers)|"
    r"centre[sd]?|metres?|litres?|fibres?|grey(?:ed|s)?|licences?|defence|offence|artefacts?|"
    r"catalogues?|dialogues?|programmes?|judgement|towards|afterwards|backwards|forwards|"
    r"learnt|spelt|burnt|dreamt|cheque|sceptic\w*|ageing|plough"
)
AMERICAN = r"(?:exercis|advertis|compris|promis|surpris|revis|supervis|advis|devis|precis)\w*"

NUMBER = re.compile(r"(?<![\w.,=/@-])[−-]?\d[\d,.]*(?:\s?%)?(?![\w.])")
SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)[.!?][)\"'”]*(?=\s|¶)¶?|¶")
WORD = re.compile(r"[\w`][\w`'./:-]*")

Sentence = tuple[int, str]
"""The position of its first character, and the sentence in one line."""


@cache
def sentences(text: str) -> tuple[Sentence, ...]:
    """Return the sentences of a text."""
    found: list[Sentence] = []
    begin = 0
    for end in SENTENCE_END.finditer(text):
        raw = text[begin : end.end()]
        sentence = raw.lstrip()
        found.append((begin + len(raw) - len(sentence), sentence.replace("\n", " ")))
        begin = end.end()
    return tuple(found)


def matching(pattern: str) -> CheckFn:
    """Return a check of each sentence, whose first word `^` stands before."""
    compiled = re.compile(pattern)

    def check_sentences(text: str, check: Check) -> Iterator[CheckResult]:
        for begin, sentence in sentences(text):
            for match in compiled.finditer(sentence):
                span = begin + match.start(), begin + match.end()
                yield CheckResult(check.path, check.message.format(match[0]), span, None)

    return check_sentences


def counting(things: re.Pattern[str], maximum: int) -> CheckFn:
    """Return a check that flags sentences with more than so many things."""

    def check_sentences(text: str, check: Check) -> Iterator[CheckResult]:
        for begin, sentence in sentences(text):
            count = len(things.findall(sentence))
            if count > maximum:
                message = check.message.format(count)
                yield CheckResult(check.path, message, (begin, begin + len(sentence)), None)

    return check_sentences


def rule(name: str, what: CheckFn, message: str) -> Check:
    """Make a check; `{}` in the message is what it found."""
    return Check(
        what, path=f"downpour.{name}", message=message, flags=CheckFlags(allow_quotes=True)
    )


def plain_words() -> Iterator[Check]:
    """Make one check for each phrase that has a plainer one."""
    for phrase, better in PLAIN.items():
        pattern = rf"(?i)\b(?:{phrase})\b"
        yield rule("plain", matching(pattern), f"`{{}}`: plainer is: {better}")


RULES: tuple[Check, ...] = (
    rule("length", counting(WORD, WORDS_MAX), f"{{}} words: at most {WORDS_MAX}, one thought each"),
    rule("numbers", counting(NUMBER, NUMBERS_MAX), "{} numbers in a sentence: make it a table"),
    rule("what", matching(WHAT), "`{}`: name the thing instead of a clause with `what`"),
    rule("for", matching(FOR), "`{}`: write `because`, or begin a sentence"),
    rule("there", matching(THERE), "`{}`: say who does what"),
    rule("again", matching(rf"\b{BE} (?:\w+ )?{DONE} again\b"), "`{}`: say who repeats it"),
    rule("which", matching(r"\bwhich\b.*?\bwhich\b"), "two `which` in a sentence: make two of it"),
    rule("where", matching(WHERE), "`{}`: write `if` or `when`, because `where` is a place"),
    rule("passive", matching(PASSIVE), "`{}`: begin with who does it"),
    rule("british", matching(rf"(?i)\b(?!{AMERICAN})(?:{BRITISH})\b"), "`{}` is British spelling"),
    *plain_words(),
)
"""The length and the numbers of sentences, shapes of sentences, and words."""
