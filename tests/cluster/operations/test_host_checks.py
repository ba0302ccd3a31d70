"""What is said of hosts, from what they have shown."""

from __future__ import annotations

from dataclasses import replace

from downpour.cluster.launchers.ssh_script import Host, Look
from downpour.cluster.operations.doctor import judge

FINE = Look(
    Host("n1", slots=2), numerics="torch 2 on cpu (avx2)", version="1", cores=4, memory_bytes=2**33
)


def test_hosts_that_are_alike_have_no_problem() -> None:
    """A clock may be off by as much as an answer takes."""
    reports = judge([FINE, replace(FINE, ahead_seconds=0.3)])
    assert [(one.verdict, one.problems) for one in reports] == [("ok", ())] * 2


def test_each_problem_is_one_line_of_its_own() -> None:
    """What slows down or changes bytes is a warning; what cannot be used is a failure."""
    odd = replace(
        FINE,
        host=Host("n2", slots=8),
        ahead_seconds=-7.0,
        numerics="torch 2 on cpu (avx512)",
        memory_bytes=2**30,
    )
    away = Look(Host("n3"), "ssh: no route to host")
    fine, strange, lost = judge([FINE, FINE, odd, away])[1:]
    assert fine.verdict == "ok"
    assert strange.verdict == "warning"
    assert [problem.seen for problem in strange.problems] == [
        "its clock is 7.0 s behind",
        "torch 2 on cpu (avx512)",
        "8 slots on 4 cores",
        "8 slots with 1.0 GiB of memory free",
    ]
    assert "which have torch 2 on cpu (avx2)" in strange.problems[1].change
    assert lost.verdict == "failed"
    assert [problem.seen for problem in lost.problems] == ["ssh: no route to host"]


def test_a_host_without_torch_is_told_to_install_it() -> None:
    """Its numeric class is empty."""
    (report,) = judge([replace(FINE, numerics="")])
    assert [problem.seen for problem in report.problems] == ["it has no torch"]
