"""Names of FiftyOne's fields and of files; the files themselves are `tests/app/test_cli_jobs.py`'s."""

import csv
import io

import pytest

from app.jobs.fields import field
from app.jobs.layouts import _COLUMNS, _Csv, _Naming
from app.schemas.options import ClassName

TABBY = ("tabby", 281)


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (["predicted"], ["predicted"]),
        (["top3"], ["top_1", "top_2", "top_3"]),
        (["tabby"], ["tabby_281"]),
        ([281], ["tabby_281"]),
        ([285, "top2", "predicted"], ["tabby_281", "top_1", "top_2", "predicted"]),
        (["topaz"], ["tabby_281"]),  # a label like another
    ],
)
def test_a_rank_is_called_so_and_a_class_by_its_label(targets: list[ClassName], names: list[str]) -> None:
    found = [field("gradcam", place, targets, len(names), TABBY) for place in range(len(names))]
    assert found == [f"gradcam_{name}" for name in names]


def test_a_model_with_fewer_classes_than_ranks_has_its_classes_named() -> None:
    """Three maps of `top5` and `tabby`: which of them is the last rank is not known."""
    assert field("gradcam", 2, ["top5", "tabby"], 3, TABBY) == "gradcam_tabby_281"


def test_names_are_those_of_attributes() -> None:
    found = field("gradcam++", 0, [7], 1, ("Schäferhund, (Welpe) $a.b", 7))
    assert found == "gradcampp_sch_ferhund_welpe_a_b_7"
    assert found.isidentifier()
    assert field("gradcam", 0, [7], 1, ("猫", 7)) == "gradcam_7"


@pytest.mark.parametrize("name", ["=1+1.png", "+a.png", "-a.png", "@SUM(A1).png", "\ta.png"])
def test_a_spreadsheet_computes_nothing_of_what_a_picture_is_called(name: str) -> None:
    file = io.StringIO(newline="")
    row = dict.fromkeys(_COLUMNS) | {"name": name, "label": "plain", "margin": -0.5}
    _Csv(file).write(row)
    read = next(csv.DictReader(io.StringIO(file.getvalue(), newline="")))
    assert (read["name"], read["label"], float(read["margin"])) == (f"'{name}", "plain", -0.5)


@pytest.mark.parametrize("name", ["CON", "con.png", "Aux.v2.jpg", "COM1.jpg", "lpt9", "NUL", "nul .v2.png", "CONOUT$"])
def test_no_file_is_called_as_a_device_of_windows(name: str) -> None:
    """A device is one whatever follows the first dot."""
    assert _Naming("mirror").base(f"{name}/x.png").startswith(f"_{name}")
    assert _Naming("flat").base(name).startswith("_")
    assert _Naming("flat").base("console.png") == "console"


def test_no_file_ends_in_what_windows_leaves_off_though_its_name_is_cut_there() -> None:
    """The 150th byte is a dot: a limit that is looked at last would leave it."""
    assert _Naming("flat").base("a" * 149 + "." + "b" * 50 + ".png") == "a" * 149
