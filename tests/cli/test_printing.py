"""Where commands print."""

from __future__ import annotations

import pytest

from downpour.cli.printing import check_format, note
from downpour.errors import SpecError


def test_two_formats_at_once_are_refused() -> None:
    """One output, one format."""
    check_format(as_json=True, as_csv=False)
    check_format(as_json=False, as_csv=True)
    with pytest.raises(SpecError, match="--json --csv"):
        check_format(as_json=True, as_csv=True)


def test_notes_go_to_standard_error_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Long ones are not broken and brackets are no markup."""
    note("[red]" + "x" * 200)
    assert capsys.readouterr() == ("", "[red]" + "x" * 200 + "\n")
