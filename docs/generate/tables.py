"""One page per table of the code: methods, datasets, presets, backbones, exit codes."""

import ast
import inspect
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

from labelkit import errors
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.cli.main import EXIT_CODES
from labelkit.data.named.layouts import DatasetSpec, format_count
from labelkit.data.registry import DATASETS
from labelkit.methods.registry import METHODS
from labelkit.models.backbones.convnets import CONVNETS
from labelkit.models.backbones.registry import BackboneInfo
from labelkit.models.backbones.vit import SMALL_VITS
from labelkit.options.presets import list_presets, preset_folder_name, read_preset_command, read_preset_comment

from generate.backbones import NetworkCounts, count_backbone, used_backbones
from generate.markdown import Page, block, code, facts, page, table, text

FOLDER = "reference"


def table_pages() -> list[Page]:
    """Return the pages."""
    return [
        Page(f"{FOLDER}/methods.md", "Methods", _methods()),
        Page(f"{FOLDER}/datasets.md", "Datasets", _datasets()),
        Page(f"{FOLDER}/presets.md", "Presets", _presets()),
        *preset_value_pages(),
        Page(f"{FOLDER}/backbones.md", "Backbones", _backbones()),
        Page(f"{FOLDER}/exit-codes.md", "Exit codes", _exit_codes()),
    ]


def _methods() -> str:
    rows = [[f"[`{name}`](#{name})", text(spec.summary)] for name, spec in METHODS.items()]
    sections = []
    for name, spec in METHODS.items():
        assert isinstance(spec.target, str), name
        module, _, _ = spec.target.partition(":")
        found = find_spec(module)
        assert found is not None, module
        assert found.origin is not None, module
        told = ast.get_docstring(ast.parse(Path(found.origin).read_text())) or ""
        presets = list_presets(spec.config)
        sections.append(
            page(
                f"## {name}",
                f"[Options](commands/train/{name}.md) · class `{spec.target.replace(':', '.')}` · "
                f"[presets](presets.md#train-{name}): {', '.join(map(code, presets))}",
                block(told),
            )
        )
    return page(
        "# Methods",
        "`labelkit train METHOD` trains one of these methods. The text below each name is the docstring of its file: "
        "the training steps in order, with the equations of the paper, and all deviations from the paper.",
        table(["Method", "What it does"], rows),
        *sections,
    )


def _datasets() -> str:
    rows = [
        [f"[`{name}`](#{name})", str(spec.num_classes or ""), _images(spec), text(spec.summary)]
        for name, spec in DATASETS.items()
    ]
    sections = [
        page(
            f"## {name}",
            text(f"{spec.summary}."),
            facts(
                {
                    "Used here for": text(spec.purpose),
                    "Source": f"<{spec.source_url}>" if spec.source_url.startswith("http") else text(spec.source_url),
                    "License": text(spec.license),
                    "Files": text(spec.layout),
                    "Images": _images(spec),
                    "Pixel classes": str(spec.num_mask_classes or ""),
                    "Object classes": str(spec.num_object_classes or ""),
                }
            ),
        )
        for name, spec in DATASETS.items()
    ]
    return page(
        "# Datasets",
        "`--dataset` takes one of these names, a folder of images, or a CSV file with `path` and `label`. "
        "The files of registered datasets must be in the folder `--data-root`. `labelkit datasets` shows which of "
        "them are available and complete.",
        table(["Name", "Classes", "Images", "Description"], rows, right=["Classes"]),
        *sections,
    )


def _images(spec: DatasetSpec) -> str:
    return ", ".join(f"{split} {format_count(count)}" for split, count in spec.num_images.items())


def _presets() -> str:
    sections = []
    for config_class in CONFIG_CLASSES:
        presets = list_presets(config_class)
        if not presets:
            continue
        words = " ".join(config_class.command)
        rows = [
            [code(name), code(read_preset_command(path)), text(read_preset_comment(path))]
            for name, path in presets.items()
        ]
        sections.append(
            page(
                f"## {words} {{#{'-'.join(config_class.command)}}}",
                f"Folder `presets/{preset_folder_name(config_class.command)}`; "
                f"[options](commands/{'/'.join(config_class.command)}.md); "
                f"[values and their sources](preset-values/{preset_folder_name(config_class.command)}.md).",
                table(["Preset", "Command", "Description"], rows),
            )
        )
    return page(
        "# Presets",
        "A preset is a file with options for one command. `train` takes the preset with the same name as the dataset "
        "unless you pass another one as `--preset`; `folder` is for your own images.",
        *sections,
    )


def preset_value_pages() -> list[Page]:
    """Return a page for each command with presets: every value of each, with what its file says of the source."""
    pages = []
    for config_class in CONFIG_CLASSES:
        presets = list_presets(config_class)
        if not presets:
            continue
        words, folder = " ".join(config_class.command), preset_folder_name(config_class.command)
        sections = [
            page(
                f"## {name}",
                code(read_preset_command(path)),
                text(read_preset_comment(path)),
                table(
                    ["Option", "Value", "Source"],
                    [[code(option), code(value), text(place)] for option, value, place in preset_lines(path)],
                ),
            )
            for name, path in presets.items()
        ]
        intro = (
            f"Values in the presets of `{words}`, in the order of their files. Marks such as [P] are explained above "
            "each table; values without a mark are our own choice, or self-explanatory."
        )
        content = page(f"# Values of presets: {words}", intro, *sections)
        pages.append(Page(f"{FOLDER}/preset-values/{folder}.md", words, content))
    index = page(
        "# Values of presets",
        "All values of all presets, with their sources; one page per command.",
        "".join(f"- [{one.title}]({Path(one.path).name})\n" for one in pages),
    )
    return [Page(f"{FOLDER}/preset-values/index.md", "Values of presets", index), *pages]


def preset_lines(path: Path) -> list[tuple[str, str, str]]:
    """Return the options of a shipped preset in the order of its file: key, YAML, and where it comes from, if known."""
    found = []
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            option, _, rest = line.partition(":")
            value, _, place = rest.partition("  # ")
            found.append((option, value.strip(), place.strip()))
    return found


def _backbones() -> str:
    counted = [count_backbone(name) for name in used_backbones()]
    columns = ["Name", "Image side (pixels)", "Features", "Parameters", "Multiply-adds (M)"]
    ours = {*SMALL_VITS, *CONVNETS}
    own, others = (
        table(columns, [_backbone(*one) for one in counted if (one[0].name in ours) is wanted], right=columns[1:])
        for wanted in (True, False)
    )
    return page(
        "# Backbones",
        "`--backbone` accepts the names in these tables and all names in timm, such as `vit_small_patch16_224.dino`; "
        "the part after the dot selects the weights. To list the names that your installation supports:",
        block('labelkit list backbones --pattern "vit_*dino*"', "sh"),
        "Parameters and multiply-adds are counted without the classifier, for one color image of this size. "
        "Convolutions and matrix products are counted, including those in attention. "
        "The tests of labelkit compare them with published numbers, to the last published digit.",
        "labelkit's own:",
        own,
        "timm backbones used by a preset or by `--backbone auto`:",
        others,
    )


def _backbone(info: BackboneInfo, counts: NetworkCounts) -> list[str]:
    numbers = [info.image_size, info.feature_dim, counts.parameters]
    work = f"{counts.multiply_adds / 1e6:,.1f}"
    return [code(info.name), *(f"{number:,}" for number in numbers), work]


def _exit_codes() -> str:
    rows = [[str(number), text(meaning)] for number, meaning in EXIT_CODES.items()]
    tree = (inspect.getdoc(errors) or "").split("\n\n")[1]
    return page(
        "# Exit codes",
        table(["Code", "Meaning"], rows, right=["Code"]),
        "From Python, each kind is a class of `labelkit.errors`:",
        block(dedent(tree)),
    )
