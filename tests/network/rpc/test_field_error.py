"""How a wrong field is told."""

from downpour.network.rpc.wire import FieldError


def test_a_misfit_tells_the_whole_path() -> None:
    """Each message on the way adds where it holds the wrong one."""
    error = FieldError("", "..", "a bare name").inside("name").inside("[3]").inside("files")
    assert str(error) == "files[3].name = '..': a bare name"
