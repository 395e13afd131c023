r"""Compare patch features trained with different loss terms of CoTAP, over several seeds; write a table and JSON.

    python examples/compare_dense.py --seeds 3 --out examples/results/scenes_dense.json
    python examples/compare_dense.py --dataset camvid --seeds 2 --out examples/results/camvid_dense.json
    python examples/compare_dense.py --dataset camvid --objects grocery --backbone vit_small_patch14_reg4_dinov2 \
        --weights FILE --image-size 84 --out examples/results/camvid_weights_dense.json -- --preset none --steps 50

All steps run through the command line: first stage 1 (alignment, from scratch), then, starting from the stage 1 of each
seed, the rows of the paper's ablation (for generated objects and scenes, the presets ``scene_objects_*``; for CamVid,
the patch terms). The scores are computed on held-out images: mean IoU (%) of a linear segmentation head and of patch
clusters, and for generated objects the accuracy (%) of a vote among the 20 nearest training images. Pixels and an
untrained network are the baselines. Options after ``--`` apply to the rows, not to stage 1. With ``--weights``, there
is no stage 1: all seven rows start from these weights, and ``--objects`` names the images of single objects that some
terms require.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import comparison

SCENES: dict[str, list[Any]] = {
    "1: image alignment": ["--preset", "scene_objects_row1"],
    "2: patch alignment": ["--preset", "scene_objects_row2"],
    "3: both": ["--preset", "scene_objects_row3"],
    "3c: 3 + image concentration": ["--preset", "scene_objects_row6", "--patch-ranking", 0],
    "4: 1 + image concentration": ["--preset", "scene_objects_row4"],
    "5: 2 + CoTAP": ["--preset", "scene_objects_row5"],
    "5w: 5 on whole maps": ["--preset", "scene_objects_row5", "--ranking-views", "same"],
    "6: 3c + CoTAP": ["--preset", "scene_objects_row6"],
    "7: 6 + filter": ["--preset", "scene_objects_row7"],
    "7b: 7 with BCE for CoTAP": ["--preset", "scene_objects_bce"],
}
CAMVID: dict[str, list[Any]] = {
    "2: patch alignment": ["--preset", "camvid_cpu", "--patch-ranking", 0],
    "5: 2 + CoTAP": ["--preset", "camvid_cpu"],
    "5b: 5 with BCE for CoTAP": ["--preset", "camvid_cpu", "--ranking-loss", "bce"],
}
# rows 1 to 7, defined by the weights of their terms
TERMS = ("--image-alignment", "--patch-alignment", "--image-concentration", "--patch-ranking")


def of_terms(image: int, patch: int, concentration: int, ranking: int, *, filtered: bool = False) -> list[Any]:
    """Return the options of a row of the paper's ablation."""
    weights = zip(TERMS, (image, patch, concentration, ranking), strict=True)
    words = [word for pair in weights for word in pair]
    return words if filtered else [*words, "--no-filter", "--prototype-entropy", 0]


ABLATION: dict[str, list[Any]] = {
    "1: image alignment": of_terms(1, 0, 0, 0),
    "2: patch alignment": of_terms(0, 1, 0, 0),
    "3: both": of_terms(1, 1, 0, 0),
    "4: 1 + image concentration": of_terms(1, 0, 1, 0),
    "5: 2 + CoTAP": of_terms(0, 1, 0, 1),
    "6: 3 + image concentration + CoTAP": of_terms(1, 1, 1, 1),
    "7: 6 + filter": of_terms(1, 1, 1, 1, filtered=True),
}
# per dataset: rows, options of stage 1, dataset with masks, dataset with classes
SETS: dict[str, tuple[dict[str, list[Any]], list[Any], str, str | None]] = {
    "scene_objects": (
        SCENES,
        ["--dataset", "scene_objects", "--preset", "scene_objects_stage1"],
        "scenes",
        "scene_objects",
    ),
    "camvid": (CAMVID, ["--dataset", "none", "--preset", "camvid_cpu_stage1"], "camvid", None),
}
PIXELS = ("--backbone", "pixels")
UNTRAINED = ("--backbone", "vit_micro_p8_64", "--random-weights")
COLUMNS = {"linear": "linear mIoU", "clusters": "cluster mIoU", "knn": "kNN"}


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    comparison.add_options(parser, seeds=3)
    parser.set_defaults(dataset="scene_objects")
    parser.add_argument("--rows", nargs="+", help="rows, by the part of their name before the colon; default: all")
    parser.add_argument("--objects", help="dataset of images that show a single object, with --weights")
    parser.add_argument("--backbone", help="network that --weights belongs to")
    parser.add_argument("--weights", help="file with the initial weights of all rows")
    parser.add_argument("--image-size", type=int, help="image size in pixels, with --weights")
    parser.add_argument("--samples", type=int, default=6000, help="number of images to train the segmentation head on")
    options = parser.parse_args()
    if options.dataset not in SETS:
        parser.error(f"--dataset must be one of {', '.join(SETS)}")
    rows, first_words, scenes, objects = SETS[options.dataset]
    start: list[Any] = []
    if options.weights is not None:
        if None in (options.objects, options.backbone, options.image_size):
            parser.error("--weights needs --objects, --backbone and --image-size")
        start = ["--backbone", options.backbone, "--weights", options.weights, "--image-size", options.image_size]
        rows, first_words = ABLATION, ["--dataset", options.objects, "--scene-dataset", scenes]
    rows = {row: words for row, words in rows.items() if options.rows is None or row.split(":")[0] in options.rows}
    root = ["--data-root", options.data_root]
    with comparison.run_folder(options) as folder, ThreadPoolExecutor(options.jobs) as pool:

        def judge(name: str, seed: int, *network: object) -> dict[str, Any]:
            words = [*network, "--dataset", scenes, *root, "--seeds", 1, "--seed", seed]
            head, _ = comparison.run("evaluate", "segmentation", *words, "--no-augment", "--samples", options.samples)
            grouped, _ = comparison.run("evaluate", "patch-clusters", *words)
            found = {"linear": 100 * head["mean_iou"]["mean"], "clusters": 100 * grouped["mean_iou"]["mean"]}
            if objects is not None and network != PIXELS:
                store = folder / f"{name}-{seed}.h5"
                comparison.run(
                    "embed", *network, "--dataset", objects, *root, "--split", "all", "--out", store, "--overwrite"
                )
                voted, _ = comparison.run("evaluate", "knn", "--index", store, "-k", 20, "--queries", "val")
                found["knn"] = 100 * voted["knn_accuracy"]
            return {"seed": seed} | found

        def trained(name: str, seed: int, *words: object) -> dict[str, Any]:
            run = folder / f"{name}-{seed}"
            summary = comparison.train(run, "cotap", *root, *words, "--seed", seed)
            cost = {key: summary[key] for key in ("cpu_seconds",) if key in summary}
            return judge(name, seed, "--checkpoint", run) | cost

        def second(row: str, seed: int) -> dict[str, Any]:
            name = "".join(letter if letter.isalnum() else "-" for letter in row)
            if start:
                return trained(name, seed, *first_words, *rows[row], *start, *options.extra)
            before = ["--init-from", folder / f"stage1-{seed}"]
            return trained(name, seed, *first_words[:2], *rows[row], *before, *options.extra)

        seeds = range(options.seeds)
        runs = {
            "pixels": list(pool.map(lambda seed: judge("pixels", seed, *PIXELS), seeds)),
        }
        if start:
            runs["weights as they are"] = list(pool.map(lambda seed: judge("start", seed, *start), seeds))
        else:
            runs["untrained network"] = list(pool.map(lambda seed: judge("untrained", seed, *UNTRAINED), seeds))
            runs["stage 1"] = list(pool.map(lambda seed: trained("stage1", seed, *first_words), seeds))
        # seeds in the outer loop, so that an interrupted comparison has all rows
        cells = [(row, seed) for seed, row in product(seeds, rows)]
        made = dict(zip(cells, pool.map(lambda cell: second(*cell), cells), strict=True))
        runs |= {row: [made[row, seed] for seed in seeds] for row in rows}
    results = {row: comparison.summarize(found) for row, found in runs.items()}
    print(f"{options.dataset}, {options.seeds} seeds, %")
    print(f"| | {' | '.join(COLUMNS.values())} | CPU s |")
    print("|---|---|---|---|---|")
    for row, found in results.items():
        cost = f"{found['cpu_seconds']['mean']:.0f}" if "cpu_seconds" in found else ""
        print(f"| {row} | {' | '.join(comparison.shown(found.get(key)) for key in COLUMNS)} | {cost} |")
    comparison.write_record(options, results=results)


if __name__ == "__main__":
    main()
