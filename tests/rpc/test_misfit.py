"""Names that may travel, and how a wrong field is told."""

import pytest

from downpour.rpc.misfit import Misfit, is_bare


@pytest.mark.parametrize("name", ["a", "model-3.safetensors", "ünïcode", "a..b", "x" * 255])
def test_bare_names_pass(name: str) -> None:
    """A name that stays in its directory is fine."""
    assert is_bare(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "../x", "a\\b", "a\0b", "a\nb", "x" * 256,
     "ü" * 128, "a\udc80"],
)  # fmt: skip
def test_other_names_do_not(name: str) -> None:
    """Slashes, leading dots, control characters and long names are refused."""
    assert not is_bare(name)


def test_a_misfit_tells_the_whole_path() -> None:
    """Each message on the way adds where it holds the wrong one."""
    misfit = Misfit("", "..", "a bare name").inside("name").inside("[3]").inside("files")
    assert str(misfit) == "files[3].name = '..': a bare name"
