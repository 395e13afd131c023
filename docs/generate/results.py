"""Pages of measured results: every table is made from a file of ``examples/results/``."""

import ast
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from generate.markdown import Page, block, code, facts, page, table, text

SOURCE = Path("examples/results")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class _Topic:
    """One page: which files it shows, and which script's first words explain them."""

    stem: str
    title: str
    files: str
    script: str
    tables: Callable[[Record], str]
    words: str = ""
    command: str = ""


@dataclass(frozen=True)
class _Measure:
    """How a number is shown: heading with its unit, digits."""

    heading: str
    digits: int = 1


_HEADINGS = {
    "own_accuracy": "Own output (%)",
    "clustering_accuracy": "Clustering accuracy (%)",
    "knn_accuracy": "kNN (%)",
    "knn_top5_accuracy": "kNN, top 5 (%)",
    "recall_at_1": "Recall@1 (%)",
    "map_at_r": "MAP@R (%)",
    "all": "All classes (%)",
    "old": "Old classes (%)",
    "new": "New classes (%)",
    "test_all": "Test: all (%)",
    "test_old": "Test: old (%)",
    "test_new": "Test: new (%)",
    "error": "Error (%)",
    "against_rival": "Error, difference to the rival (points)",
    "wrong": "Wrong labels (%)",
    "accuracy": "Accuracy (%)",
    "best_accuracy": "Best epoch (%)",
    "knn": "kNN (%)",
    "linear": "Linear head (%)",
    "clusters": "Groups of patches, mean IoU (%)",
    "purity": "Purity (%)",
    **{f"r@{k}": f"Recall@{k} (%)" for k in (1, 2, 4, 8)},
    "map@r": "MAP@R (%)",
    "nmi": "NMI (%)",
    "r@1_against": "Recall@1, difference (points)",
    "map@r_against": "MAP@R, difference (points)",
    "answered": "Answered (%)",
    "known right": "Known: right (%)",
    "new right": "New: right (%)",
    "ECE before": "Calibration error, before (%)",
    "ECE after": "Calibration error, after (%)",
    "AURC": "AURC (%)",
    "cpu_seconds": "CPU time (s)",
    "seconds": "Time (s)",
    "minutes": "Time (min)",
}
MEASURES = {
    **{name: _Measure(heading) for name, heading in _HEADINGS.items()},
    "max_cosine": _Measure("Largest cosine", 4),
    "uniformity": _Measure("Uniformity (nats)", 4),
}
"""Every number that the files hold, in the order of the columns."""
_NOT_SHOWN = {"runs", "errors"}  # the single seeds stay in the file


def result_pages(root: Path) -> list[Page]:
    """Return one page per topic.

    Args:
        root: the source tree.

    Raises:
        ValueError: a file of results belongs to no page, or to two.
    """
    files: dict[str, list[Path]] = {topic.stem: [] for topic in TOPICS}
    for file in sorted((root / SOURCE).glob("*.json")):
        owners = [topic.stem for topic in TOPICS if any(fnmatchcase(file.stem, name) for name in topic.files.split())]
        if len(owners) != 1:
            raise ValueError(f"{file}: belongs to {len(owners)} pages of results: {owners}")
        files[owners[0]].append(file)
    return [
        Page(f"results/{topic.stem}.md", topic.title, _topic_page(root, topic, files[topic.stem])) for topic in TOPICS
    ]


def result_pictures(root: Path) -> dict[str, Path]:
    """Return the pictures that the pages show: path in the site, file."""
    return {f"results/{file.name}": file for file in sorted((root / SOURCE).glob("*.png"))}


def _topic_page(root: Path, topic: _Topic, files: Sequence[Path]) -> str:
    words = topic.words or _first_words(root / topic.script)
    parts: list[str] = []
    for file in files:
        record = json.loads(file.read_text())
        picture = file.with_suffix(".png")
        parts += [
            f"## {file.stem}",
            _origin(record, topic.command or _command(root / topic.script, file.name)),
            topic.tables(record),
            f"![Curves of {file.stem}]({picture.name})" if picture.exists() else "",
            f"From `{SOURCE / file.name}`.",
        ]
    spread = "± is the standard deviation over the seeds listed above the table." if "±" in "".join(parts) else ""
    return page(f"# {topic.title}", words, spread, *parts)


def _first_words(script: Path) -> str:
    """Return what a script says about itself, without the lines that show how it is called."""
    told = ast.get_docstring(ast.parse(script.read_text())) or ""
    paragraphs = [part for part in told.split("\n\n") if not part.startswith(("    ", "Run:"))]
    return "\n\n".join(text(" ".join(part.split())) for part in paragraphs)


def _command(script: Path, name: str) -> str:
    """Return the line of a script that shows how a file is made; empty if there is none."""
    found = re.search(rf"python (?:-m )?\S+ [^\n`]*{re.escape(name)}", script.read_text()) if script.is_file() else None
    return found[0] if found else ""


def _origin(record: Record, command: str) -> str:
    """Return the command, the seeds, the versions and the machine of a record.

    Args:
        record: the file.
        command: what made it, unless it says so itself.
    """
    seeds = record.get("seeds")
    if isinstance(seeds, int):
        seeds = list(range(seeds))
    versions = dict(record.get("versions") or {name: record[name] for name in ("labelkit", "torch") if name in record})
    if "python" in record:
        versions["python"] = record["python"]
    machine = record.get("machine") or {
        name: record[name] for name in ("platform", "processor", "cores", "threads") if name in record
    }
    told = {
        "Seeds": ", ".join(map(str, seeds)) if isinstance(seeds, list) else "",
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Machine": ", ".join(f"{name} {value}" for name, value in machine.items()) or "not recorded",
    }
    return page(
        block(record.get("command") or command, "sh"), facts({name: text(value) for name, value in told.items()})
    )


def _cell(value: object, measure: _Measure) -> str:
    """Return a number, or mean ± standard deviation; a dash for what was not measured."""
    if isinstance(value, Mapping):
        return f"{_shown(value['mean'], measure)} ± {_shown(value['sd'], measure)}"
    if isinstance(value, Sequence):
        sd = statistics.stdev(value) if len(value) > 1 else 0.0
        return f"{_shown(statistics.mean(value), measure)} ± {_shown(sd, measure)}"
    return "-" if value is None else _shown(value, measure)


def _shown(value: Any, measure: _Measure) -> str:
    return f"{value:,.{measure.digits}f}"


def _measured(first: str, rows: Mapping[str, Record]) -> str:
    """Return one table: a row per name, a column per measure.

    Raises:
        ValueError: a number that ``MEASURES`` does not name.
    """
    names = [name for name in dict.fromkeys(key for row in rows.values() for key in row) if name not in _NOT_SHOWN]
    names.sort(key=list(MEASURES).index)
    headings = [MEASURES[name].heading for name in names]
    cells = [[text(key), *(_cell(row.get(name), MEASURES[name]) for name in names)] for key, row in rows.items()]
    return table([first, *headings], cells, right=headings)


def _methods(record: Record) -> str:
    return _measured("Row", record["results"])


def _by_labels(record: Record) -> str:
    return page(*(page(f"### {n} labels", _measured("Method", rows)) for n, rows in record["results"].items()))


def _compared(record: Record) -> str:
    rows = {
        f"{row['method']} ({row['labels']})": {**_percent(row["scores"]), "minutes": row["minutes"]}
        for row in record["rows"]
    }
    return _measured("Method (labels)", rows)


def _cases(record: Record) -> str:
    """A row for each number of labels: accuracy beside that of peers, and what is answered at a confidence."""
    rows: dict[tuple[float, int], list[Record]] = {}
    for case in record["rows"]:
        rows.setdefault((case["share"], case["labels"]), []).append(case)
    skipped = ("labels", "share", "seed", "seconds", "classifier")
    names = [name for name in dict.fromkeys(key for case in record["rows"] for key in case) if name not in skipped]
    cells = []
    for (share, labels), cases in rows.items():
        found = [[100 * case[name] for case in cases if case.get(name) is not None] for name in names]
        means = [f"{statistics.mean(values):.1f}" if values else "" for values in found]
        cells.append([f"{labels} a class, in {share:.0%} of the classes", *means])
    headings = [f"{name} (%)" for name in names]
    return table(["Labels", *headings], cells, right=headings)


def _heads(record: Record) -> str:
    """A row for each number of labels: heads, then what works on the rows as they are, mean and spread over seeds."""
    rows: dict[tuple[float, int], list[Record]] = {}
    for case in record["rows"]:
        rows.setdefault((case["share"], case["labels"]), []).append(case)
    keys = dict.fromkeys(key for case in record["rows"] for key in case if key not in ("labels", "share", "seed"))
    peers = ["logistic regression", "label spreading", "ss-kmeans", "ours"]
    heads = [key for key in keys if key not in peers and not key.endswith("seconds")]
    names = [*heads, *(key for key in peers if key in keys)]
    cells = []
    for (share, labels), cases in rows.items():
        found = [[100 * case[name] for case in cases if name in case] for name in names]
        scores = [f"{statistics.mean(v):.1f} ± {statistics.pstdev(v):.1f}" if v else "" for v in found]
        cells.append([f"{labels} a class, in {share:.0%} of the classes", *scores])
    headings = [f"{'discover answer' if name == 'ours' else name} (%)" for name in names]
    return table(["Labels", *headings], cells, right=headings)


def _searching_heads(record: Record) -> str:
    """A row for each kind of rows, under what heads learned from: mean and spread over seeds."""
    kinds: dict[tuple[str, str], list[Record]] = {}
    for case in record["rows"]:
        kinds.setdefault((case["task"], case["rows"]), []).append(case)
    headings = ["R@1 (%)", "NMI (%)"]
    cells = []
    for (task, kind), cases in kinds.items():
        found = [[100 * case[name] for case in cases] for name in ("recall_at_1", "nmi")]
        cells.append([task, kind, *(f"{statistics.mean(v):.1f} ± {statistics.pstdev(v):.1f}" for v in found)])
    return table(["Trained with", "Rows", *headings], cells, right=headings)


def _reused(record: Record) -> str:
    """A row for each method and number of kept views: mean and spread over the seeds."""
    headings = ["All (%)", "Old (%)", "New (%)", "an epoch (s)", "kept (MiB)"]
    cells = []
    for row in record["rows"]:
        found = [[run[part] for run in row["runs"]] for part in ("all", "old", "new")]
        scores = [f"{statistics.mean(v):.1f} ± {statistics.pstdev(v):.1f}" for v in found]
        seconds = statistics.median(run["epoch_seconds"] for run in row["runs"])
        views = "new ones each epoch" if row["views"] == "new" else str(row["views"])
        cells.append([row["method"], views, *scores, f"{seconds:.2f}", f"{row['runs'][0]['kept_mib']:.0f}"])
    return table(["Method", "Views", *headings], cells, right=headings)


def _gained(record: Record) -> str:
    """A row for each case: what is right without training, with it, and the spread of the difference over seeds."""
    headings = ["Labels a class", "Before (%)", "After (%)", "Gain (points)", "Spread"]
    rows = []
    for case in record["cases"]:
        before, after, spread = (100 * case[key] for key in ("before", "after", "spread"))
        rows.append(
            [
                *(text(case["data"]), case["kind"], text(case["row"]), case["score"], f"{case['labels_per_class']:g}"),
                *(f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}", f"{spread:.1f}"),
            ]
        )
    return table(["Images and network", "Trained", "Row", "Score", *headings], rows, right=headings)


def _predicted(record: Record) -> str:
    """A row for each number of labels and way to name: means over the seeds."""
    ways = [key for key in record["rows"][0] if key not in ("labels", "share", "seed")]
    names = list(record["rows"][0][ways[0]])
    rows: dict[tuple[float, int, str], list[Record]] = {}
    for case in record["rows"]:
        for way in ways:
            rows.setdefault((case["share"], case["labels"], way), []).append(case[way])
    cells = []
    for (share, labels, way), cases in rows.items():
        found = [[100 * case[name] for case in cases if case[name] is not None] for name in names]
        means = [f"{statistics.mean(values):.1f}" if values else "" for values in found]
        cells.append([f"{labels} a class, in {share:.0%} of the classes", way, *means])
    headings = [f"{name} (%)" for name in names]
    return table(["Labels", "Named by", *headings], cells, right=headings)


def _frozen(record: Record) -> str:
    """A row for each store and way to change its rows."""
    headings = ["R@1 (%)", "MAP@R (%)", "R-precision (%)"]
    rows = [
        [row["store"], f"{row['images']:,}", row["rows"]]
        + [f"{row[key]:.1f}" for key in ("recall_at_1", "map_at_r", "r_precision")]
        for row in record["rows"]
    ]
    return table(["Store", "Images", "Rows", *headings], rows, right=["Images", *headings])


def _detected(record: Record) -> str:
    """A row for each backbone: AP of boxes, and of masks where there are some."""
    scores = {f"{part}_{key}": f"{part} {name} (%)" for part in ("box", "mask") for key, name in _AP.items()}
    shown = {key: heading for key, heading in scores.items() if key in record["rows"][0]}
    rows = [
        [row["backbone"], row["weights"], "tuned" if row["tune"] else "as it is"]
        + [f"{row[key]:.1f}" for key in shown]
        + [f"{row['seconds']:,}"]
        for row in record["rows"]
    ]
    objects = record["objects"]
    headings = [*shown.values(), "Seconds"]
    return page(
        text(f"{objects['train']:,} objects in the training split, {objects['val']:,} in the validation split."),
        table(["Backbone", "Weights", "Backbone is", *headings], rows, right=headings),
    )


_AP = {"ap": "AP", "ap50": "AP50", "ap75": "AP75"}


def _stable(record: Record) -> str:
    """A row for each store: means over the seeds."""
    names = {
        "kept": "labels kept (%)",
        "answered_kept": "of those answered (%)",
        "kept_without_previous": "kept without --previous (%)",
        "new_before": "new groups before",
        "new_after": "after",
    }
    cells = []
    for store in dict.fromkeys(row["store"] for row in record["rows"]):
        mine = [row for row in record["rows"] if row["store"] == store]
        found = {key: [row[key] for row in mine if row[key] is not None] for key in names}
        scale = {key: 100 if "%" in heading else 1 for key, heading in names.items()}
        shown = [f"{scale[key] * statistics.mean(found[key]):.1f}" if found[key] else "" for key in names]
        cells.append([store, f"{mine[0]['photos']:,} + {mine[0]['added']:,}", *shown])
    return table(["Store", "Photos", *names.values()], cells, right=list(names.values()))


def _rounds(record: Record) -> str:
    """A row for each call of ``start``: means over the seeds, with the range of what is right."""
    headings = ["Labels", "Classes", "Right (%)", "of logistic regression", "Answered at 0.8 (%)", "of these right (%)"]
    headings += ["of logistic regression, answered (%)", "right (%)", "Labels kept (%)"]
    cells = []
    for call in dict.fromkeys(row["call"] for row in record["rows"]):
        mine = [row for row in record["rows"] if row["call"] == call]
        shown = [f"{statistics.mean(row['labels'] for row in mine):.0f} in "]
        shown[0] += f"{statistics.mean(row['named_classes'] for row in mine):.0f} classes"
        shown.append(
            f"{statistics.mean(row['classes'] for row in mine):.0f} "
            f"({min(row['low'] for row in mine)} to {max(row['high'] for row in mine)})"
        )
        right = [100 * row["right"] for row in mine]
        shown.append(f"{statistics.mean(right):.1f} ({min(right):.1f} to {max(right):.1f})")
        peers = [row["peer"] for row in mine if row["peer"] is not None]
        shown.append(f"{100 * statistics.mean(peer['right'] for peer in peers):.1f}" if peers else "")
        photos = [row["photos"] - row["labels"] for row in mine]
        for found in (mine, peers):
            answered = [row["answered"] for row in found]
            share = [100 * number / of for number, of in zip(answered, photos, strict=False)]
            shown.append(f"{statistics.mean(share):.1f}" if found else "")
            shown.append(
                f"{100 * sum(row['answered_right'] for row in found) / sum(answered):.0f}" if sum(answered) else ""
            )
        kept = [100 * row["kept"] for row in mine if row["kept"] is not None]
        shown.append(f"{statistics.mean(kept):.0f}" if kept else "")
        cells.append([call, *shown])
    return table(["Call", *headings], cells, right=headings)


_OF_INTERVALS = ("Cases", "Interval holds (%)", "High / low", "Error", "Time (CPU s)")


def _planted_copies(record: Record) -> str:
    """A row for each half of the originals: copies found of each kind; and what else was listed."""
    kinds = list(record["halves"][0]["recall"])
    rows = [
        [f"{record['features']}, half {number}", str(half["planted"])]
        + [f"{100 * half['recall'][kind]:.1f}" for kind in kinds]
        for number, half in enumerate(record["halves"], 1)
    ]
    headings = ["Copies planted", *(f"{kind}: found (%)" for kind in kinds)]
    pairs = [
        ("photos", record["images"]),
        ("pairs listed as the same picture", record["same_picture_pairs"]),
        ("of these planted", record["planted_found"]),
        ("bursts", record["burst_pairs"]),
        ("CPU seconds to look, without embedding", record["seconds"]["find_cpu"]),
    ]
    listed = table(["What", "Number"], [[name, f"{value:,}"] for name, value in pairs], right=["Number"])
    return f"{table(['Features', *headings], rows, right=headings)}\n\n{listed}"


def _planted_odd(record: Record) -> str:
    """A row for each reason: odd images planted and found."""
    rows = [
        [reason, str(number), f"{100 * record['recall'][reason]:.1f}"] for reason, number in record["planted"].items()
    ]
    columns = ["Reason", "Planted", "Found (%)"]
    said = f"{record['others_listed']} of {record['images']:,} photos that were not planted are listed, too."
    return f"{table(columns, rows, right=columns[1:])}\n\n{said}"


def _planted_labels(record: Record) -> str:
    """A row for each store, number of labels and kind of mistake: average precision of three orders, what is listed."""
    ways = ("find mislabeled", "nearest", "logistic regression")
    rows = []
    for case in record["cases"]:
        mean, spread = case["mean"], case["spread"]
        keys = [f"{way}, precision" for way in ways]
        cells = [f"{100 * mean[key]:.1f} ± {100 * spread[key]:.1f}" for key in keys]
        listed = f"{mean['listed']:.0f}, {mean['listed right']:.1f} of {mean['wrong']:.0f} wrong"
        rows.append(
            [case["store"], str(case["per class"] or "all"), case["kind"], f"{mean['labels']:.0f}", *cells, listed]
        )
    columns = ["Store", "Labels a class", "Wrong ones", "Labels", *(f"{way} (%)" for way in ways), "Listed"]
    return table(columns, rows, right=columns[3:-1])


def _novel(record: Record) -> str:
    """A row for each store, kind of case and number of labels: what four orders say, AUROC and the first images."""
    ways = (
        *("find novel, previous", "find novel", "nearest earlier", "nearest label"),
        *("logistic regression", "confidence"),
    )
    rows = []
    for case in record["cases"]:
        mean, spread = case["mean"], case["spread"]
        cells = [
            f"{mean[f'{way}, AUROC']:.3f} ± {spread[f'{way}, AUROC']:.3f}; {100 * mean[f'{way}, first']:.0f}"
            if f"{way}, AUROC" in mean
            else ""
            for way in ways
        ]
        images = f"{mean['new']:,.0f} of {mean['images']:,.0f}"
        rows.append([case["store"], case["kind"], str(case["per class"]), images, *cells])
    headings = [f"{way}: AUROC; of the first 50 new (%)" for way in ways]
    return table(["Store", "Case", "Labels a class", "New images", *headings], rows, right=headings)


def _percent(scores: Record) -> Record:
    """Return shares in [0, 1] as percent; a spread may be larger than that."""
    found = {}
    for name, score in scores.items():
        values = score["values"] if isinstance(score, Mapping) else score
        found[name] = [100 * value for value in values] if isinstance(values, Sequence) else 100 * values
    return found


def _grown(record: Record) -> str:
    counts = list(next(iter(record["precision"].values())))
    headings = [f"First {count}: right (%)" for count in counts]
    right = _Measure("")
    rows = [[text(name), *(_cell(of[count], right) for count in counts)] for name, of in record["precision"].items()]
    used = [page(f"### Trained from {n} labels", _measured("Labels grown by", of)) for n, of in record["error"].items()]
    return page("### Precision", table(["Method", *headings], rows, right=headings), *used)


def _suggested(record: Record) -> str:
    labels = record["runs"][0]["labels"]
    headings = [f"{n} labels (%)" for n in labels]
    rows = [
        [run["features"], run["strategy"], run["classifier"]]
        + [_shown(statistics.mean(seeds), _Measure("")) for seeds in zip(*run["accuracy"], strict=True)]
        for run in record["runs"]
    ]
    return table(["Features", "Strategy", "Classifier", *headings], rows, right=headings)


def _worked(record: Record) -> str:
    """A row for each way to label: right labels of the whole table, mean and range of the seeds."""
    headings = [f"{number} actions (%)" for number in record["actions"]]
    rows = []
    for way in dict.fromkeys(run["way"] for run in record["runs"]):
        for kind, words in (("right", "as named"), ("again", "asked again")):
            shares = [[100 * n / record["images"] for n in run[kind]] for run in record["runs"] if run["way"] == way]
            cells = [
                f"{statistics.mean(one):.1f} ({min(one):.1f} to {max(one):.1f})" for one in zip(*shares, strict=True)
            ]
            rows.append([way, words, *cells])
    return table(["Way", "Images of named groups", *headings], rows, right=headings)


def _spread(record: Record) -> str:
    names = ("max_cosine", "uniformity")
    headings = [f"{MEASURES[name].heading}{owner}" for name in names for owner in (", published", ", ours")]
    headings += ["Bound of the largest cosine", "CPU time (s)"]
    rows = []
    for row in record["rows"]:
        cells = [str(row["classes"]), str(row["dim"])]
        for name in names:
            cells.append(_cell((row["published"] or {}).get(name), MEASURES[name]))
            cells.append(_cell([run[name] for run in row["ours"]], MEASURES[name]))
        cells += [_cell(row["bound"], MEASURES["max_cosine"]), _cell(row["cpu_seconds"], MEASURES["cpu_seconds"])]
        rows.append(cells)
    columns = ["Classes", "Dimensions", *headings]
    return table(columns, rows, right=columns)


def _load(record: Record) -> str:
    columns = ["Command", "CPU time (s)", "of the smaller (s)", "Exponent", "Wanted", "Kept"]
    rows = [
        [text(row["name"])]
        + [f"{row[name]:,.2f}" for name in ("ours_s", "peer_s", "ratio")]
        + [text(row["wanted"]), "yes" if row["ok"] else "no"]
        for row in record["rows"]
    ]
    return table(columns, rows, right=columns[1:4])


def _index_costs(record: Record) -> str:
    """A row for each index and what was done with it."""
    columns = [
        "Rows",
        "Seconds",
        "Processor time (s)",
        "Peak memory (MiB)",
        "Index (MiB)",
        "Recall@10 (%)",
        "ms of a query alone",
        "among all",
    ]
    rows = [
        [f"{row['kind']}, {row['step']}", f"{row['rows']:,}"]
        + [f"{row['seconds']:,.1f}", f"{row['cpu_seconds']:,.1f}"]
        + [f"{row[name] / 2**20:,.0f}" for name in ("peak_bytes", "index_bytes")]
        + [f"{100 * row['recall']:.2f}" if "recall" in row else ""]
        + ["" if row["ms_alone"] is None else f"{row['ms_alone']:.3f}"]
        + [f"{row['ms_among_many']:.3f}"]
        for row in record["rows"]
    ]
    return table(["Search", *columns], rows, right=columns)


_SPEEDS = ("ours_s", "peer_s", "ratio", "ratio_min", "ratio_max")


def _speed(record: Record) -> str:
    columns = ["Compared", "ours (s)", "other (s)", "Ratio", "from", "to", "Wanted", "Kept"]
    rows = [
        [text(row["name"])]
        + [f"{row[name]:,.3g}" if name in row else "" for name in _SPEEDS]
        + [text(row["wanted"]), "yes" if row["ok"] else "no"]
        for row in record["rows"]
    ]
    return table(columns, rows, right=columns[1:6])


_ON_GPU = {"float32": "float32", "bf16": "bf16", "fp16": "fp16", "compiled": "bf16, compiled", "resumed": "Resumed"}


def _on_gpu(record: Record) -> str:
    """Return what ran: a line of the table for each method, then what is not of one method."""
    methods: dict[str, dict[str, str]] = {}
    others = []
    for name, piece in record["pieces"].items():
        part, _, what = name.partition("/")
        method, _, how = what.rpartition(" ")
        result = piece.get("result", {})
        if part == "runs" and how in _ON_GPU:
            said = "same bits" if piece["state"] == "done" else piece["state"]
            if "--deterministic" in piece.get("error", ""):
                said = "refused"
            elif "last_loss" in result:
                said = f"{result['first_loss']:.4g} to {result['last_loss']:.4g}"
            methods.setdefault(method, {})[how] = said
        else:
            found = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in _flat(result).items())
            others.append([text(name), text(found or piece.get("error", piece["state"]))])
    rows = [[code(method), *(text(found.get(how, "")) for how in _ON_GPU)] for method, found in methods.items()]
    return page(
        text(record.get("note", "")),
        "Loss at the first and at the 20th step on digits, by precision, and whether a run that was interrupted and "
        "resumed with `--deterministic` is bit-identical to an uninterrupted run. Empty cells were not measured, or "
        "the combination is not supported.",
        table(["Method", *_ON_GPU.values()], rows),
        table(["Compared", "Found"], others),
    )


def _published_rows(record: Record) -> str:
    """Return what was published and measured, and the accuracy on the way."""
    rows = [
        [
            *(text(row["row"]), str(row["seed"]), f"{row['published']:.1f}"),
            *("" if row["measured"] is None else f"{row['measured']:.1f}", str(row["epochs"])),
            *(f"{row['training_seconds'] / 60:.1f}", ", ".join(f"{at}: {score:.1f}" for at, score in row["curve"])),
        ]
        for row in record["rows"]
        if row["epochs"]
    ]
    columns = ["Row", "Seed", "Published (%)", "Measured (%)", "Epochs", "Training (min)", "Accuracy (%) after epoch"]
    return page(text(record["note"]), f"Device: {text(record['device'])}.", table(columns, rows, right=columns[1:6]))


def _flat(values: Record, before: str = "") -> dict[str, str]:
    """Return the numbers of nested results by one name each."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name} ")
        else:
            found[before + name] = f"{value:.4g}" if isinstance(value, float) else str(value)
    return found


def _resumed(record: Record) -> str:
    methods: dict[str, list[Record]] = {}
    for row in record["rows"]:
        methods.setdefault(row["method"], []).append(row)
    rows = []
    for method, compared in methods.items():
        stopped = [row for row in compared if row["cut"] != "none"]
        # two processes that nothing stopped, against one
        processes = ", ".join(row["result"].partition(";")[0] for row in compared if row["cut"] == "none")
        equal = sum(row["result"] == "equal" for row in stopped)
        cuts = ", ".join(dict.fromkeys(re.sub(r" \d+$", "", row["cut"]) for row in stopped))
        rows.append([code(method), text(cuts), str(len(stopped)), str(equal), text(processes)])
    counts = ["Resumed runs", "Bit-identical to an uninterrupted run"]
    return table(
        ["Method", "Interrupted", *counts, "Two processes compared with one, uninterrupted"], rows, right=counts
    )


def _reproduced(record: Record) -> str:
    """A row for each number that was published, what was measured beside it, and whether the order is the same."""
    unit = record["unit"]
    headings = [f"Published ({unit})", f"Measured ({unit})", "Difference (points)"]
    number = _Measure("")
    rows = [
        [
            text(row["name"]),
            value["name"],
            _cell(value["published"], number),
            _cell(value["seeds"], number),
            f"{value['difference']:+.1f}",
        ]
        for row in record["rows"]
        for value in row["values"]
    ]

    def order_by(key: str) -> list[str]:
        return [row["name"] for row in sorted(record["rows"], key=lambda row: row["values"][0][key])]

    orders = [order_by(key) for key in ("published", "mean")]
    kept = "the same" if orders[0] == orders[1] else f"{', '.join(orders[1])}, which is a different order"
    order = f"By {record['rows'][0]['values'][0]['name']}, rows from low to high, as published: {', '.join(orders[0])};"
    return page(
        f"**{record['source']}, {record['place']}:** {record['title']}. {record['note']}",
        table(["Row", "Value", *headings], rows, right=headings),
        text(f"{order} as measured: {kept}."),
    )


TOPICS = (
    _Topic(
        "all-methods",
        "All methods on digits",
        "digits",
        "",
        _compared,
        "`labelkit compare` trains every method for the same time on the same split, and evaluates the features of all "
        "methods in the same way.",
    ),
    _Topic(
        "discovery",
        "Category discovery",
        "*_discovery *_discovery_* digits_methods digits_alignment digits_ablations",
        "examples/compare_discovery.py",
        _methods,
    ),
    _Topic("few-labels", "Few labels", "*_few_labels", "examples/compare_few_labels.py", _by_labels),
    _Topic("growing-labels", "Growing labels", "digits_discovered", "examples/discover_few_labels.py", _grown),
    _Topic("label-next", "Images to label next", "*_suggest", "examples/suggest_labels.py", _suggested),
    _Topic("label-person", "What an action is worth", "*_label_person", "examples/label_person.py", _worked),
    _Topic("duplicates", "Near-duplicates", "*_duplicates*", "examples/duplicate_cases.py", _planted_copies),
    _Topic("odd", "Outliers", "*_odd*", "examples/odd_cases.py", _planted_odd),
    _Topic("mislabeled", "Label errors", "mislabeled_cases", "examples/mislabeled_cases.py", _planted_labels),
    _Topic("novel", "New classes", "novel_cases*", "examples/novel_cases.py", _novel),
    _Topic("answer-cases", "Predictions from few labels", "*_answer_cases", "examples/answer_cases.py", _cases),
    _Topic("head-cases", "Heads on stores", "*_head_cases", "examples/head_cases.py", _heads),
    _Topic(
        "label-free-heads",
        "Heads for retrieval",
        "*_label_free_heads",
        "examples/label_free_heads.py",
        _searching_heads,
    ),
    _Topic("reuse", "Caching frozen blocks", "*_reuse", "examples/reuse_frozen.py", _reused),
    _Topic("gains", "Does training help?", "measured_gains", "examples/measured_gains.py", _gained),
    _Topic("predict-cases", "New photos", "*_predict_cases", "examples/predict_cases.py", _predicted),
    _Topic("stability", "Stability when photos are added", "*stability_cases", "examples/stability_cases.py", _stable),
    _Topic("start-rounds", "Repeated calls of start", "*_start_rounds", "examples/start_rounds.py", _rounds),
    _Topic("frozen", "Frozen features for retrieval", "frozen_features", "examples/frozen_retrieval.py", _frozen),
    _Topic("prototypes", "Prototypes", "*_prototypes *_prototypes_*", "examples/compare_prototypes.py", _methods),
    _Topic("spread", "Spread of prototypes", "prototype_spread", "examples/prototype_spread.py", _spread),
    _Topic("no-labels", "Without labels", "*_selflabel", "examples/compare_selflabel.py", _methods),
    _Topic("two-views", "Two views of an image", "*_siamese", "examples/compare_siamese.py", _methods),
    _Topic("dense", "Dense features", "*_dense *_dense_*", "examples/compare_dense.py", _methods),
    _Topic("detection", "Object detection", "*_detection", "examples/compare_detection.py", _detected),
    _Topic(
        "retrieval",
        "Retrieval and metric learning",
        "*_retrieval *_retrieval_*",
        "examples/compare_retrieval.py",
        _methods,
    ),
    _Topic(
        "stand-ins",
        "Published tables at a smaller scale",
        "small-*",
        "",
        _reproduced,
        "Three published tables, reproduced with `labelkit reproduce` and the tables in `examples/tables` on data that "
        "two cores can process in minutes. The images are different, the networks smaller and the training shorter, so "
        "only the order of the rows can be compared, and only where they differ by more than the spread over seeds.",
    ),
    _Topic("large-stores", "Large stores", "load", "benchmarks/bench_load.py", _load),
    _Topic("index-costs", "The cost of an index", "index_costs*", "examples/index_costs.py", _index_costs),
    _Topic("speed", "Speed compared with other libraries", "bench bench_*", "benchmarks/__main__.py", _speed),
    _Topic("photo-speed", "Speed on photographs", "photo_speed", "benchmarks/bench_photos.py", _speed),
    _Topic("resume", "Interrupted and resumed runs", "resume", "tests/resume_table.py", _resumed),
    _Topic(
        "gpu",
        "On a GPU",
        "gpu_check",
        "examples/gpu_check.py",
        _on_gpu,
        "Results of `examples/gpu_check.py` on a GPU. Most of the speed measurements are still missing; running the "
        "same command again continues them.",
    ),
    _Topic(
        "published-rows",
        "Published rows",
        "published_rows*",
        "examples/published_rows.py",
        _published_rows,
        "Rows of a published table with the published settings, as far as they have been trained.",
    ),
)
"""The pages, in the order of the navigation."""
