"""What the environment gives a process, and what it takes from one."""

from __future__ import annotations

from downpour.host.paths import FILES, Credentials, without_credentials


def test_the_environment_names_token_and_files() -> None:
    """And nothing where it says nothing."""
    variables = {"DOWNPOUR_TOKEN": "t", "DOWNPOUR_TLS_CA": "ca.pem"}
    assert Credentials.from_environment(variables) == Credentials(token="t", tls_ca="ca.pem")
    assert Credentials.from_environment({}) == Credentials()


def test_the_token_is_not_shown() -> None:
    """Not even where credentials land in a log by mistake."""
    assert "hush" not in repr(Credentials(token="hush"))


def test_an_environment_can_be_rid_of_them() -> None:
    """Everything else stays."""
    given = {"DOWNPOUR_TOKEN": "t", "PATH": "/bin", **dict.fromkeys(FILES.values(), "x")}
    assert without_credentials(given) == {"PATH": "/bin"}


def test_an_environment_says_all_of_it() -> None:
    """What is handed on that way arrives as it was; what is not given is not mentioned."""
    given = Credentials(token="hush", token_file="t", tls_cert="c", tls_key="k", tls_ca="a")
    assert Credentials.from_environment(given.to_environment()) == given
    assert Credentials().to_environment() == {}
    assert without_credentials(given.to_environment()) == {}
