"""What users may import: four modules; a name comes or goes only with this list."""

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import downpour
from downpour import data, extending, launchers

PUBLIC: dict[ModuleType, str] = {
    downpour: "Client Credentials DownpourError Inside Outer Result Spec Study Task __version__ "
    "allow compare_policies from_trainer load_model replay resumed run",
    data: "Blocks ImageFolder TokenWindows local_path transforms",
    extending: "Action Aggregator Assignment Bytes Close Codec Combine Contributing Contribution "
    "Decide ExperimentEvent ExperimentState Forecast Handoff Integers LoggedRun "
    "Logger Mode ModeKind NonFinite Numbers Options PendingTask Policy "
    "PublishedFile Resize RoundResult RoundView RunningTask STRIDE Saving Speed "
    "SplitRequest Splitter Statistic StepPoint Stragglers UpdateTimes Waiting Weight Weights "
    "Withdrawal WorkerHistory WorkerRequest",
    launchers: "ComposeOptions Ended Engine InlineCluster LaunchError LaunchPlan Launcher "
    "LauncherKind LocalCluster ManagerOptions PlacedCluster RayOptions RunningCluster "
    "SlurmOptions SshOptions WorkerOptions on_compose on_ray on_slurm on_ssh option",
}


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_the_public_names_are_these(module: ModuleType) -> None:
    """Each can be imported, none is a module, and functions and classes say what they are for."""
    assert sorted(module.__all__) == sorted(PUBLIC[module].split())
    for name in module.__all__:
        value = getattr(module, name)
        assert not inspect.ismodule(value), name
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


def test_type_checkers_see_no_name_that_does_not_exist() -> None:
    """They would take any name from a `__getattr__` that they see."""
    tree = ast.parse(Path(downpour.__file__).read_text("utf-8"))
    hidden = [node for node in tree.body if isinstance(node, ast.If)]
    assert not any(getattr(node, "name", "") == "__getattr__" for node in tree.body)
    assert any(
        ast.unparse(node.test) == "not TYPE_CHECKING"
        and any(getattr(one, "name", "") == "__getattr__" for one in node.body)
        for node in hidden
    )
