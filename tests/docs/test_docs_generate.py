"""The generated pages say everything that the code knows: commands, options, tables, formats, results."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from labelkit import errors
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.cli.main import EXIT_CODES
from labelkit.data.registry import DATASETS
from labelkit.methods.registry import METHODS
from labelkit.models.backbones.convnets import CONVNETS
from labelkit.models.backbones.vit import SMALL_VITS
from labelkit.options.base import command_line_name
from labelkit.options.presets import list_presets
from labelkit.store import schema
from mkdocs.exceptions import PluginError

import hook
from docstrings import markdown
from generate import Page, all_pages
from generate.commands import all_commands
from generate.markdown import facts, table, text
from generate.results import SOURCE, result_pages

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made() -> list[Page]:
    return all_pages(ROOT)


@pytest.fixture(scope="module")
def pages(made: list[Page]) -> dict[str, str]:
    return {page.path: page.content for page in made}


def page_of(words: tuple[str, ...], pages: dict[str, str]) -> str:
    path = f"reference/commands/{'/'.join(words)}"
    return pages.get(f"{path}.md") or pages[f"{path}/index.md"]


@pytest.mark.slow
def test_every_command_has_a_page_with_its_example(pages: dict[str, str]) -> None:
    for words, command in all_commands():
        example = command.help.partition("Example:")[2].strip().replace(r"\[", "[")
        assert example in page_of(words, pages), words


@pytest.mark.slow
def test_the_page_of_a_command_has_every_field_of_its_config(pages: dict[str, str]) -> None:
    for config in CONFIG_CLASSES:
        page = page_of(config.command, pages)
        for name, field in config.model_fields.items():
            assert f"`{command_line_name(name, field)}`" in page, config.command
    page = page_of(("cluster", "k-means"), pages)
    cells = {line.split("|")[1].strip(): line.split("|")[2:4] for line in page.splitlines() if line.startswith("| `--")}
    assert [cell.strip() for cell in cells["`--num-clusters`"]] == ["`INT` &gt;= 1", "required"]
    assert [cell.strip() for cell in cells["`--tolerance`"]] == ["`FLOAT` &gt;= 0", "`1e-06`"]


@pytest.mark.slow
def test_every_row_of_a_table_of_the_code_is_shown(pages: dict[str, str]) -> None:
    assert [name for name in METHODS if f"\n## {name}\n" not in pages["reference/methods.md"]] == []
    assert [name for name in DATASETS if f"\n## {name}\n" not in pages["reference/datasets.md"]] == []
    presets = {f"`{name}`" for config in CONFIG_CLASSES for name in list_presets(config)}
    assert [name for name in presets if name not in pages["reference/presets.md"]] == []
    backbones = [f"`{name}`" for name in (*SMALL_VITS, *CONVNETS)]
    assert [name for name in backbones if name not in pages["reference/backbones.md"]] == []
    codes = [f"| {code} | {text(meaning)} |" for code, meaning in EXIT_CODES.items()]
    assert [code for code in codes if code not in pages["reference/exit-codes.md"]] == []
    assert errors.DivergenceError.__name__ in pages["reference/exit-codes.md"]


@pytest.mark.slow
def test_the_file_format_has_every_format_and_column(pages: dict[str, str]) -> None:
    page = pages["reference/file-format.md"]
    assert [name for name in schema.FORMATS if f"`{name}`" not in page] == []
    assert "| `embeddings` | `(n, d)` | `f4` `f2` |" in page
    assert [name for name in (*schema.STORE_COLUMNS, *schema.RESULT_COLUMNS) if f"| `{name}` |" not in page] == []
    for heading in ("Store", "Patches", "Result", "Packed store", "Prototypes", "Matches", "Neighbors", "Run folder"):
        assert f"\n## {heading}\n" in page


@pytest.mark.slow
def test_every_file_of_results_is_shown_with_command_and_machine(pages: dict[str, str]) -> None:
    shown = "".join(content for path, content in pages.items() if path.startswith("results/"))
    files = sorted((ROOT / SOURCE).glob("*.json"))
    assert files
    for file in files:
        section = shown.partition(f"\n## {file.stem}\n")[2].partition("\n## ")[0]
        assert "```sh\n" in section, file
        assert "**Machine:**" in section, file
        assert "\n| --" in section, file


@pytest.mark.slow
def test_a_table_of_results_has_the_numbers_of_its_file(pages: dict[str, str]) -> None:
    record = json.loads((ROOT / SOURCE / "digits_methods.json").read_text())
    scores = record["results"]["flipclass"]["all"]
    cell = f"{scores['mean']:.1f} ± {scores['sd']:.1f}"
    (row,) = [
        line
        for line in pages["results/discovery.md"].partition("## digits_methods")[2].splitlines()
        if line.startswith("| flipclass |")
    ]
    assert row.split("|")[2].strip() == cell


@pytest.mark.parametrize("file", sorted((ROOT / SOURCE).glob("small-*.json")), ids=lambda file: file.stem)
@pytest.mark.slow
def test_the_page_of_stand_ins_says_whether_rows_stand_in_the_published_order(
    file: Path, pages: dict[str, str]
) -> None:
    rows = json.loads(file.read_text())["rows"]
    section = pages["results/stand-ins.md"].partition(f"\n## {file.stem}\n")[2].partition("\n## ")[0]
    firsts = [row["values"][0] for row in rows]
    pairs = [(one, two) for one in firsts for two in firsts if one["published"] < two["published"]]
    kept = all(one["mean"] < two["mean"] for one, two in pairs)

    assert ("as measured: the same." in section) == kept
    assert ("which is a different order" in section) == (not kept)
    for row, value in zip(rows, firsts, strict=True):
        assert f"| {row['name']} | {value['name']} | {value['published']:.1f} | {value['mean']:.1f} ± " in section


@pytest.mark.slow
def test_the_page_of_stopped_runs_counts_those_that_were_stopped(pages: dict[str, str]) -> None:
    stopped: Counter[str] = Counter()
    for row in json.loads((ROOT / SOURCE / "resume.json").read_text())["rows"]:
        stopped[row["method"]] += row["cut"] != "none"  # two whole runs are compared, too
    lines = [line for line in pages["results/resume.md"].splitlines() if line.startswith("| `")]
    shown = [[cell.strip(" `") for cell in line.split("|")[1:5]] for line in lines]
    # every one of them ended like a run that nothing stopped
    assert {cells[0]: (int(cells[2]), int(cells[3])) for cells in shown} == {
        method: (number, number) for method, number in stopped.items()
    }


def test_results_that_no_page_shows_are_refused(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / SOURCE / "unheard.json").write_text("{}")
    with pytest.raises(ValueError, match="unheard"):
        result_pages(tmp_path)


@pytest.mark.slow
def test_the_navigation_lists_every_generated_page_once(
    made: list[Page], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hook, "PAGES", made)
    nav = hook._expanded([{name: f"{name}/*"} for name in ("reference", "python", "results")], tmp_path)
    listed = sorted(_leaves(nav))
    assert listed == sorted(page.path for page in made)


def test_what_is_written_by_hand_stands_before_what_is_generated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hook, "PAGES", [Page("results/few-labels.md", "Few labels", "")])
    (tmp_path / "results").mkdir()
    for name in ("02-b.md", "01-a.md"):
        (tmp_path / "results" / name).touch()
    assert hook._expanded("results/*", tmp_path) == [
        "results/01-a.md",
        "results/02-b.md",
        {"Few labels": "results/few-labels.md"},
    ]


@pytest.mark.parametrize(
    "element",
    ['<script src="https://a.example/x.js">', '<link rel="stylesheet" href="//a.example/x.css">', "<img src=http://a>"],
)
def test_a_page_that_loads_from_elsewhere_is_refused(element: str) -> None:
    with pytest.raises(PluginError, match="elsewhere"):
        hook.on_post_page(f"<html>{element}</html>")
    hook.on_post_page('<a href="https://a.example">there</a><script src="assets/x.js"></script>')


def test_signs_of_plain_text_mean_nothing_and_options_become_code() -> None:
    assert text("a_b <c> [d] 1|2, not with --no-e") == r"a\_b &lt;c&gt; \[d\] 1&#124;2, not with `--no-e`"
    assert text("``x*y`` and `labelkit list`") == "`x*y` and `labelkit list`"


def test_a_row_with_too_few_cells_is_refused() -> None:
    assert table(["a", "b"], [["1", "2"]], right=["b"]) == "| a | b |\n| --- | --: |\n| 1 | 2 |\n"
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        table(["a", "b"], [["1"]])
    assert facts({"Seeds": "0, 1", "Machine": ""}) == "- **Seeds:** 0, 1\n"  # what has no value is left out


def test_roles_become_code_and_formulas_mathml() -> None:
    words = markdown(
        "See :class:`labelkit.losses.A` with :math:`x^2`.\n\n.. math::\n    a &= b \\\\\n    c &= d\n\nEnd."
    )
    assert "See `labelkit.losses.A` with <math" in words
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in words
    assert words.count('display="block"') == 2
    assert "&=" not in words
    assert words.endswith("\n\nEnd.")


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [leaf for part in parts for leaf in _leaves(part)]
