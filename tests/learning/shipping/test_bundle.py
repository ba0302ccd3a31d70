"""A bundle holds a project's files and nothing else, whatever bytes claim to be one."""

import gzip
import json
from contextlib import suppress
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from downpour.learning.shipping import BYTES_MAX, FILES_MAX, BadBundle, Bundle

NAMES = st.from_regex(r"lab_[a-z0-9_]{0,6}", fullmatch=True)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda parts: f"{'/'.join(parts)}.py")
TEXTS = st.text(max_size=50).map(str.encode)
FILES = st.dictionaries(PATHS, TEXTS, min_size=1, max_size=6)


def named(files: Any, **more: Any) -> tuple[bytes, str]:
    """Return a packed bundle as anybody could write it, and the digest that fits it."""
    stated = {"files": files, "format": 1, **more}
    text = json.dumps(stated, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return packed_text(text)


def packed_text(text: str) -> tuple[bytes, str]:
    """Return some text, packed, and the digest that fits it."""
    content = text.encode(errors="surrogatepass")
    return gzip.compress(content), sha256(content).hexdigest()


@given(files=FILES)
def test_a_bundle_unpacks_to_the_byte(files: dict[str, bytes]) -> None:
    """Line ends, blanks and byte order marks too: each file has a digest elsewhere."""
    made = Bundle.of(files)
    assert dict(Bundle.unpacked(made.packed(), made.digest).files) == files


@given(files=FILES)
def test_the_same_files_have_the_same_name_in_any_order(files: dict[str, bytes]) -> None:
    """Two managers that submit one project name one bundle."""
    again = dict(reversed(files.items()))
    assert Bundle.of(files).digest == Bundle.of(again).digest
    assert Bundle.of(files).packed() == Bundle.of(again).packed()


@given(files=FILES, other=FILES)
def test_other_files_have_another_name(files: dict[str, bytes], other: dict[str, bytes]) -> None:
    """One bundle is never taken for another."""
    assert (Bundle.of(files).digest == Bundle.of(other).digest) == (files == other)


@given(files=FILES, at=st.integers(0, 10**6), change=st.integers(1, 255))
def test_an_altered_byte_is_found_or_does_no_harm(
    files: dict[str, bytes], at: int, change: int
) -> None:
    """Where gzip does not mind, as in its time of change, the files are the same."""
    made = Bundle.of(files)
    altered = bytearray(made.packed())
    altered[at % len(altered)] ^= change
    with suppress(BadBundle):
        assert dict(Bundle.unpacked(bytes(altered), made.digest).files) == files


@given(files=FILES, length=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(files: dict[str, bytes], length: float) -> None:
    """Wherever it ends."""
    made = Bundle.of(files)
    packed = made.packed()
    with pytest.raises(BadBundle, match="too soon"):
        Bundle.unpacked(packed[: int(length * len(packed))], made.digest)


@given(content=st.binary(max_size=300))
@example(content=b"")
def test_no_bytes_raise_anything_else(content: bytes) -> None:
    """Raw, and as what a gzip file holds."""
    for packed in (content, gzip.compress(content)):
        with pytest.raises(BadBundle):
            Bundle.unpacked(packed, sha256(content).hexdigest())


BAD_PATHS = {
    "../lab.py": "not the path",
    "lab/../../x.py": "not the path",
    "/etc/lab.py": "not the path",
    "C:/lab.py": "not the path",
    "lab\\nets.py": "not the path",
    "lab//nets.py": "not the path",
    "./lab.py": "not the path",
    "lab/.py": "not the path",
    "": "not the path",
    "lab.pyc": "not the path",
    "lab.so": "not the path",
    "lab": "not the path",
    "lab.py\n": "not the path",
    "lab/nets.py/": "not the path",
    "lab-2/nets.py": "not the path",
    "läb.py": "not the path",
    "lab\0.py": "not the path",
    f"{'x' * 250}.py": "not the path",
    "os.py": "module of Python's own",
    "json/__init__.py": "module of Python's own",
    "sitecustomize.py": "module of Python's own",
    "downpour/learning/allowlist.py": "module of Downpour's own",
    "downpour.py": "module of Downpour's own",
    "torch/__init__.py": "package that Downpour needs",
    "numpy.py": "package that Downpour needs",
}


@pytest.mark.parametrize(("path", "why"), BAD_PATHS.items())
def test_a_path_that_leads_elsewhere_is_refused(path: str, why: str) -> None:
    """When a bundle is made, and when one is read that names it with the digest that fits."""
    with pytest.raises(BadBundle, match=why) as made:
        Bundle.of({"lab.py": b"", path: b""})
    with pytest.raises(BadBundle, match=why) as read:
        Bundle.unpacked(*named({"lab.py": "", path: ""}))
    assert str(made.value) == str(read.value)
    assert str(made.value).isprintable()


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ("[]", "does not name files"),
        ("3", "does not name files"),
        ("{}", "does not name files"),
        ('{"files":[]}', "does not name files"),
        ('{"files":{"lab.py":3}}', "does not name files"),
        ('{"files":{"lab.py":"\\ud800"}}', "does not name files"),
        ('{"files":{},"format":1}', "has no files"),
        ('{"files":{"lab.py":""},"format":2}', "not canonical"),
        ('{"files":{"lab.py":""},"format":1,"more":1}', "not canonical"),
        ('{"files":{"lab.py":""}, "format":1}', "not canonical"),
        ('{"files":{"lab.py":"1","lab.py":"2"},"format":1}', "not canonical"),
        ('{"files":{"lab.py":"","Lab.py":""},"format":1}', "only by capitals"),
        ("[" * 100_000, "does not name files"),
    ],
)
def test_other_json_is_refused_even_where_its_digest_fits(stated: str, why: str) -> None:
    """A spec may come from anyone who may submit."""
    with pytest.raises(BadBundle, match=why):
        Bundle.unpacked(*packed_text(stated))


def test_bytes_after_the_end_are_refused() -> None:
    """Neither a second member of the gzip file nor anything else."""
    made = Bundle.of({"lab.py": b"x = 1"})
    for more in (b"x", made.packed()):
        with pytest.raises(BadBundle, match="too late"):
            Bundle.unpacked(made.packed() + more, made.digest)


def test_a_project_that_is_too_large_is_not_bundled() -> None:
    """Too many files, or too long ones; the largest that may be comes through."""
    with pytest.raises(BadBundle, match="more than 1000 files"):
        Bundle.of({f"lab_{number}.py": b"" for number in range(FILES_MAX + 1)})
    room = BYTES_MAX - len(Bundle.of({"lab.py": b""}).content)
    largest = Bundle.of({"lab.py": b"#" * room})
    assert Bundle.unpacked(largest.packed(), largest.digest) == largest
    with pytest.raises(BadBundle, match="more than 8 MiB"):
        Bundle.of({"lab.py": b"#" * (room + 1)})
