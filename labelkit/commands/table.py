"""Table of commands with their options, functions, help texts and examples, for the command line and Python.

Config classes and functions are specified as strings and imported on use, so that help is shown instantly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labelkit.methods.spec import import_named

if TYPE_CHECKING:
    from labelkit.commands.common.results import CommandResult
    from labelkit.errors import LabelkitError
    from labelkit.options.base import BaseConfig


@dataclass(frozen=True)
class Command:
    """Command of ``labelkit``, with its options, its help text and the function that runs it.

    Attributes:
        text: description for the help and for the docstring of the Python function.
        example: example command line.
        config: options class, or its location as ``module:Class``.
        function: location of the function that runs the command, as ``module:function``; its argument is the config.
        distributed: whether torchrun may start several processes of this command.
    """

    text: str
    example: str
    config: str | type[BaseConfig]
    function: str
    distributed: bool = False

    @property
    def help(self) -> str:
        """Help text of the command, shown by ``--help`` above the options."""
        return f"{self.text}\n\nExample: {self.example}"

    @property
    def summary(self) -> str:
        """First sentence of the help text up to a colon, for the list of all commands."""
        return self.text.partition(". ")[0].partition(": ")[0].rstrip(".") + "."

    def load_config_class(self) -> type[BaseConfig]:
        """Import and return the options class of the command."""
        return import_named(self.config)

    def run(self, config: BaseConfig) -> tuple[CommandResult, LabelkitError | None]:
        """Check inputs and outputs, and run the command.

        Returns:
            The result, and the error to report after it, such as a limit that is not met or a damaged file, if any.

        Raises:
            ConfigError: torchrun started several processes of a command that does not support this.
        """
        from labelkit.commands.common.gate import check_score_limits
        from labelkit.commands.common.mirror import mirror_urls
        from labelkit.commands.common.outputs import check_inputs, check_outputs
        from labelkit.errors import ConfigError
        from labelkit.options.gate import GateConfig

        count = int(os.environ.get("WORLD_SIZE") or "1")  # set by torchrun
        if count > 1 and not self.distributed:
            raise ConfigError(
                f"labelkit {' '.join(config.command)}",
                f"was started as {count} processes (WORLD_SIZE), but does not support several processes",
                "Start it without torchrun, or unset WORLD_SIZE.",
            )
        with mirror_urls(config) as (local, upload):
            check_outputs(local)
            check_inputs(local)
            function: Callable[[BaseConfig], CommandResult] = import_named(self.function)
            result = function(local)
            fault = upload()
        if fault is None and isinstance(config, GateConfig):
            return check_score_limits(config, result)
        return result, fault or result.fault


@dataclass(frozen=True)
class Group:
    """Group of subcommands, such as those of ``labelkit cluster``.

    Attributes:
        summary: one line for the list of all commands.
        example: example command line.
        members: subcommands by name, or a function that returns them.
    """

    summary: str
    example: str
    members: Mapping[str, Command] | Callable[[], Mapping[str, Command]]

    @property
    def commands(self) -> Mapping[str, Command]:
        """Subcommands of the group, by name."""
        return self.members() if callable(self.members) else self.members

    @property
    def help(self) -> str:
        """Help text of the group, shown by ``--help`` above its subcommands."""
        return f"{self.summary}\n\nExample: {self.example}"


def all_commands() -> dict[tuple[str, ...], Command]:
    """Return all commands, keyed by the words after ``labelkit``, in the order of the help."""
    found: dict[tuple[str, ...], Command] = {}
    for name, entry in COMMANDS.items():
        if isinstance(entry, Group):
            found |= {(name, below): command for below, command in entry.commands.items()}
        else:
            found[name,] = entry
    return found


def _train_commands() -> dict[str, Command]:
    from labelkit.methods.registry import METHODS

    return {
        name: Command(
            spec.summary,
            f"labelkit train {name} --dataset digits --out runs/{name}-digits",
            spec.options,
            "labelkit.commands.train.run:train_method",
            distributed=True,
        )
        for name, spec in METHODS.items()
    }


COMMANDS: dict[str, Command | Group] = {
    "start": Command(
        "Turn a folder of photos and a few labels into a table of labels: embed the photos, estimate the number of "
        "classes, predict labels, suggest what to label next, and write a report page.\n\n"
        "Each step is also available as a separate command; the first run shows these commands. To add photos or "
        "labels, run `start` again: it continues from the previous run, and groups keep their names.",
        "labelkit start photos --labels known.csv",
        "labelkit.pipelines.start.options:StartConfig",
        "labelkit.pipelines.start.run:start",
    ),
    "predict": Command(
        "Predict the class or group of new photos. Each prediction has a confidence, or is unsure; the model was "
        "fitted to the photos in the store by `labelkit discover answer`.\n\nPhotos that are already in the store keep "
        "their stored prediction or label.",
        "labelkit predict new.jpg --from photos-labeled",
        "labelkit.pipelines.predict.options:PredictConfig",
        "labelkit.pipelines.predict.predict:predict_photos",
    ),
    "train": Group(
        "Train a network with one of the methods.", "labelkit train flipclass --dataset digits", _train_commands
    ),
    "reproduce": Command(
        "Reproduce a published table. Each row is run with several seeds, and the measured values are shown next to "
        "the published ones.\n\nFinished parts are not repeated, and interrupted training is resumed. Rows whose data "
        "are missing are listed.",
        'labelkit reproduce dl2pa-6 --row "dl2pa CIFAR-10 0.01" --dry-run',
        "labelkit.pipelines.reproduce.options:ReproduceConfig",
        "labelkit.pipelines.reproduce.running:reproduce",
    ),
    "embed": Command(
        "Embed the images of a dataset with a trained backbone, and write a store.",
        "labelkit embed --dataset digits --checkpoint runs/flipclass-digits --out digits.h5",
        "labelkit.options.embed:EmbedConfig",
        "labelkit.commands.embed.embed:embed_images",
    ),
    "import": Command(
        "Create a store from existing embeddings. Formats are .npy, .npz, CSV, HDF5 and AnnData, among others; all "
        "values are checked.",
        "labelkit import --source features.npy --ids paths.csv --model dinov2 --out features.h5",
        "labelkit.commands.exchange.options:ImportConfig",
        "labelkit.commands.exchange.importing:import_store",
    ),
    "export": Command(
        "Export embeddings, labels, results or the network of a store. Formats for other programs are .npz and CSV, "
        "and ONNX for the network.",
        "labelkit export --index digits.h5 --out digits.csv",
        "labelkit.commands.exchange.options:ExportConfig",
        "labelkit.commands.exchange.exporting:export_store",
    ),
    "cluster": Group(
        "Cluster the embeddings of a store.",
        "labelkit cluster ss-kmeans --index digits.h5 --num-clusters 10",
        {
            "k-means": Command(
                "Cluster images with k-means, without labels.",
                "labelkit cluster k-means --index digits.h5 --num-clusters 10",
                "labelkit.commands.cluster.options:KMeansConfig",
                "labelkit.commands.cluster.cluster:cluster_store",
            ),
            "spherical-k-means": Command(
                "Cluster images with spherical k-means, by the angles between their embeddings, without labels.",
                "labelkit cluster spherical-k-means --index digits.h5 --num-clusters 10",
                "labelkit.commands.cluster.options:SphericalKMeansConfig",
                "labelkit.commands.cluster.cluster:cluster_store",
            ),
            "ss-kmeans": Command(
                "Cluster images with semi-supervised k-means, which keeps the labeled images of a class together.",
                "labelkit cluster ss-kmeans --index digits.h5 --num-clusters 10",
                "labelkit.commands.cluster.options:SSKMeansConfig",
                "labelkit.commands.cluster.cluster:cluster_store",
            ),
            "sinkhorn": Command(
                "Cluster images into clusters of equal or given sizes, without labels.",
                "labelkit cluster sinkhorn --index digits.h5 --num-clusters 10",
                "labelkit.commands.cluster.options:SinkhornConfig",
                "labelkit.commands.cluster.cluster:cluster_store",
            ),
        },
    ),
    "discover": Group(
        "Discover new classes among the images of a store.",
        "labelkit discover categories --index digits.h5",
        {
            "categories": Command(
                "Estimate the number of classes, and assign each image to one.",
                "labelkit discover categories --index digits.h5",
                "labelkit.commands.discover.options:DiscoverCategoriesConfig",
                "labelkit.commands.discover.categories:discover_categories",
            ),
            "head": Command(
                "Assign each image to the class predicted by the trained classifier. `labelkit export --what result "
                "--result head` writes a CSV.",
                "labelkit discover head --index digits.h5",
                "labelkit.commands.discover.options:DiscoverHeadConfig",
                "labelkit.commands.discover.categories:classify_by_logits",
            ),
            "answer": Command(
                "Predict a known class, a new group or `unsure` for each unlabeled image, with a calibrated "
                "confidence.",
                "labelkit discover answer --index digits.h5 --min-confidence 0.8",
                "labelkit.commands.discover.options:DiscoverAnswerConfig",
                "labelkit.commands.discover.answer:predict_images",
            ),
            "snowball": Command(
                "Extend a few labels to more images: label the images nearest to a class mean with that class.",
                "labelkit discover snowball --index pixels.h5 --num-labels 20 --rounds 3",
                "labelkit.commands.discover.few_options:DiscoverSnowballConfig",
                "labelkit.commands.discover.few:discover_snowball",
            ),
            "lmcs": Command(
                "Extend a few labels to more images: label the most ambiguous of the images near a class mean.",
                "labelkit discover lmcs --index pixels.h5 --num-labels 20 --per-class 4",
                "labelkit.commands.discover.few_options:DiscoverLMCSConfig",
                "labelkit.commands.discover.few:discover_lmcs",
            ),
        },
    ),
    "suggest": Command(
        "Suggest images to label next, as a CSV to fill in.",
        "labelkit suggest --index photos.h5 -n 20 --out next.csv --sheet next.png",
        "labelkit.commands.suggest.options:SuggestConfig",
        "labelkit.commands.suggest.suggest:suggest_images",
    ),
    "label": Command(
        "Add labels to a store, from a CSV or in the browser. Other commands use them with --labels.",
        "labelkit label --index photos.h5 --from next.csv --by Ann",
        "labelkit.studio.label.options:LabelConfig",
        "labelkit.pipelines.start.label:label",
    ),
    "find": Group(
        "Find near-duplicates, outliers, label errors and new classes.",
        "labelkit find duplicates --index photos.h5 --out duplicates.csv",
        {
            "duplicates": Command(
                "List pairs of images that are identical files, copies (recompressed, resized, slightly cropped, "
                "mirrored or rotated), or photos of the same scene.",
                "labelkit find duplicates --index photos.h5 --out duplicates.csv --sheet duplicates.png",
                "labelkit.commands.find.options:FindDuplicatesConfig",
                "labelkit.commands.find.near_duplicates:find_duplicates",
            ),
            "odd": Command(
                "List outliers with the reasons: images that are unlike all others, blank, dark, bright, blurred, "
                "tiny, or oddly shaped.",
                "labelkit find odd --index photos.h5 --out odd.csv --sheet odd.png",
                "labelkit.commands.find.options:FindOddConfig",
                "labelkit.commands.find.outliers:find_outliers",
            ),
            "mislabeled": Command(
                "List labels that are probably wrong: the nearest labeled image, the class means and a linear "
                "classifier all prefer another class.",
                "labelkit find mislabeled --index photos.h5 --labels known.csv --out check.csv --sheet check.png",
                "labelkit.commands.find.options:FindMislabeledConfig",
                "labelkit.commands.find.label_errors:find_mislabeled",
            ),
            "novel": Command(
                "List the unlabeled images that are least similar to the labeled classes: they are in groups without "
                "labels, far from all labeled images.",
                "labelkit find novel --index photos.h5 --out novel.csv --sheet novel.png",
                "labelkit.commands.find.options:FindNovelConfig",
                "labelkit.commands.find.novel:find_novel",
            ),
        },
    ),
    "evaluate": Group(
        "Evaluate results against ground truth.",
        "labelkit evaluate clustering --index digits.h5",
        {
            "clustering": Command(
                "Evaluate clusters against the true classes: accuracy (All / Old / New), NMI, ARI, error types.",
                "labelkit evaluate clustering --index digits.h5",
                "labelkit.commands.evaluate.options:EvaluateClusteringConfig",
                "labelkit.commands.evaluate.groups:evaluate_clustering",
            ),
            "answer": Command(
                "Evaluate predictions and their confidence against the true classes: reliability, risk and coverage.",
                "labelkit evaluate answer --index digits.h5",
                "labelkit.commands.evaluate.options:EvaluateAnswerConfig",
                "labelkit.commands.evaluate.predictions:evaluate_predictions",
            ),
            "knn": Command(
                "Evaluate embeddings by kNN (and, with --linear, linear) classification of one split with the labels "
                "of another.",
                "labelkit evaluate knn --index digits.h5 -k 10 --temperature 0.1",
                "labelkit.commands.evaluate.options:EvaluateKNNConfig",
                "labelkit.commands.evaluate.knn:evaluate_knn",
            ),
            "linear": Command(
                "Evaluate embeddings by a linear classifier, trained and tested on different splits: top-1 and top-5.",
                "labelkit evaluate linear --index digits.h5",
                "labelkit.commands.evaluate.options:EvaluateLinearConfig",
                "labelkit.commands.evaluate.knn:evaluate_linear",
            ),
            "probes": Command(
                "Evaluate a network by linear probes after each convolution, or on its embedding: top-1 and top-5.",
                "labelkit evaluate probes --checkpoint runs/sela --augmentation digits",
                "labelkit.commands.evaluate.options:EvaluateProbesConfig",
                "labelkit.commands.evaluate.probes:evaluate_probes",
            ),
            "presence": Command(
                "Evaluate a frozen network by a multi-label classifier trained on it: average precision (VOC).",
                "labelkit evaluate presence --checkpoint runs/sela --train fully-connected",
                "labelkit.commands.evaluate.options:EvaluatePresenceConfig",
                "labelkit.commands.evaluate.multi_label:evaluate_presence",
            ),
            "retrieval": Command(
                "Evaluate embeddings by retrieval of images of the same class: Recall@K, MAP@R, R-precision, NMI.",
                "labelkit evaluate retrieval --index digits.h5 -k 1,2,4,8",
                "labelkit.commands.evaluate.options:EvaluateRetrievalConfig",
                "labelkit.commands.evaluate.retrieval:evaluate_retrieval",
            ),
            "classification": Command(
                "Evaluate a classifier: top-1 and top-5; accuracy on many-, medium- and few-shot classes; confusions.",
                "labelkit evaluate classification --index digits.h5",
                "labelkit.commands.evaluate.options:EvaluateClassificationConfig",
                "labelkit.commands.evaluate.classification:evaluate_classification",
            ),
            "segmentation": Command(
                "Evaluate patch features by a segmentation head trained on them: mean IoU, pixel accuracy.",
                "labelkit evaluate segmentation --backbone pixels --dataset scenes --image-size 64",
                "labelkit.commands.evaluate.options:EvaluateSegmentationConfig",
                "labelkit.commands.evaluate.segmentation:evaluate_segmentation",
            ),
            "detection": Command(
                "Evaluate a backbone by training a detector on it (Faster, Mask or Cascade Mask R-CNN): AP of boxes "
                "and masks.",
                "labelkit evaluate detection --checkpoint runs/cotap --dataset coco_2017",
                "labelkit.commands.evaluate.options:EvaluateDetectionConfig",
                "labelkit.commands.evaluate.detection:evaluate_detection",
            ),
            "patch-clusters": Command(
                "Evaluate patch features without training: k-means clusters of patches, matched to the classes of "
                "pixels.",
                "labelkit evaluate patch-clusters --backbone pixels --dataset scenes --image-size 64",
                "labelkit.commands.evaluate.options:EvaluatePatchClustersConfig",
                "labelkit.commands.evaluate.patch_clusters:evaluate_patch_clusters",
            ),
            "tracking": Command(
                "Evaluate patch features by tracking objects in videos from their masks in the first frame: J and F.",
                "labelkit evaluate tracking --backbone pixels --dataset scene_videos --radius 3",
                "labelkit.commands.evaluate.options:EvaluateTrackingConfig",
                "labelkit.commands.evaluate.tracking:evaluate_tracking",
            ),
        },
    ),
    "compare": Command(
        "Compare methods on the same split and training budget. All are evaluated in the same way: kNN, k-means, "
        "Recall@1.",
        "labelkit compare --methods flipclass,simgcd --dataset digits --budget 10m --seeds 3 --keep runs/compared",
        "labelkit.pipelines.compare.options:CompareConfig",
        "labelkit.pipelines.compare.compare:compare_methods",
    ),
    "retrieve": Command(
        "Find the images most similar to a query. A query is an image, a folder of images, or rows of a "
        "store.\n\nWith --patch or --pixel, find the patches in a store (created with `labelkit embed --dense`) that "
        "are most similar to a patch of an image.",
        "labelkit retrieve --query img.png --index digits.h5 -k 10",
        "labelkit.commands.retrieve.options:RetrieveConfig",
        "labelkit.commands.retrieve.retrieve:retrieve_images",
    ),
    "prototypes": Command(
        "Compute class prototypes that are well separated on the hypersphere. The vectors are written, and their "
        "separation is reported.",
        "labelkit prototypes --num-classes 100 --embed-dim 50",
        "labelkit.options.prototypes:PrototypesConfig",
        "labelkit.commands.prototypes.prototypes:make_prototypes",
    ),
    "match": Command(
        "Match images that show the same object by keypoints. Keypoints are affine SIFT, verified by a homography.",
        "labelkit match --index init.h5 --num-clusters 100 --out matches.h5",
        "labelkit.commands.match.options:MatchConfig",
        "labelkit.commands.match.pairs:match_store_images",
    ),
    "report": Command(
        "Write an HTML report about a store. It shows groups, a map, neighbors, the output of `find`, and "
        "scores.\n\nThe page is a single file that works offline in any browser, with the images as thumbnails.",
        "labelkit report --index photos.h5 --out report.html",
        "labelkit.studio.report.options:ReportConfig",
        "labelkit.studio.report.build:write_report",
    ),
    "show": Group(
        "Plot runs and stores: training curves, discoveries.",
        "labelkit show curves --run runs/flipclass-digits --out curves.png",
        {
            "curves": Command(
                "Plot the logged metrics of runs (losses, accuracies, diagnostics), several runs on the same axes.",
                "labelkit show curves --run runs/flipclass-digits --metrics loss,all_accuracy --out curves.png",
                "labelkit.commands.show.options:ShowCurvesConfig",
                "labelkit.commands.show.curves:show_curves",
            ),
            "discovered": Command(
                "Show the images discovered for each class, best first, marked as correct or wrong where known.",
                "labelkit show discovered --index pixels.h5 --result snowball --out sheet.png",
                "labelkit.commands.discover.few_options:ShowDiscoveredConfig",
                "labelkit.commands.discover.show_discovered:show_discovered",
            ),
        },
    ),
    "datasets": Command(
        "Show the registered datasets: their purpose, their source, and whether they are on this machine and complete; "
        "exit code 3 if --dataset is not.",
        "labelkit datasets --data-root data",
        "labelkit.commands.datasets.options:DatasetsConfig",
        "labelkit.commands.datasets.datasets:describe_registered_datasets",
    ),
    "status": Command(
        "Show the progress of a store or a run. Finished parts are verified, and nothing is changed.",
        "labelkit status --index cub.h5",
        "labelkit.commands.store_files.options:StatusConfig",
        "labelkit.commands.store_files.status:report_status",
    ),
    "verify": Command(
        "Verify the integrity of a store, result or checkpoint. Each block is compared with its digest; exit code 3 if "
        "any differs.",
        "labelkit verify --index cub.h5 --images data/cub",
        "labelkit.commands.store_files.options:VerifyConfig",
        "labelkit.commands.store_files.verify:verify_path",
    ),
    "pack": Command(
        "Pack a store and its results into one file. All commands can use this file like a store.",
        "labelkit pack --index cub.h5 --out all.h5",
        "labelkit.commands.store_files.options:PackConfig",
        "labelkit.commands.store_files.packing:pack_results",
    ),
}
