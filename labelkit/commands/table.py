"""The table of commands: for each its options, its stage, its help and an example; the shell and Python read it.

Config classes and stages are named by text and imported on use, so that help stays instant.
"""

# Longer than other files: it is one table.

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelkit.commands.common.results import SimpleResult
    from labelkit.errors import LabelkitError
    from labelkit.options.base import StageConfig


@dataclass(frozen=True)
class Command:
    """Command of ``labelkit`` with its options, help and the function that runs it.

    Attributes:
        text: what it does, in help and in the docstring of its Python function.
        example: a command line that runs it.
        config: ``module:Class`` of its options; or the class.
        stage: ``module:function`` that does the work; takes the config.
        summary: a line for the list of all commands; of a subcommand its group's stands there.
        distributed: several processes may run it together, as torchrun starts them; others are refused there.
    """

    text: str
    example: str
    config: str | type[StageConfig]
    stage: str
    summary: str = ""
    distributed: bool = False

    @property
    def help(self) -> str:
        """Help text of a command, shown by ``--help`` above the options."""
        return f"{self.text}\n\nExample: {self.example}"

    def config_class(self) -> type[StageConfig]:
        """Import and return the options class of a command."""
        if not isinstance(self.config, str):
            return self.config
        loaded: type[StageConfig] = _load(self.config)
        return loaded

    def run(self, config: StageConfig) -> tuple[SimpleResult, LabelkitError | None]:
        """Check inputs and outputs, run the command, and return its result with the error to report after it, if any.

        Returns:
            What was found, and what is wrong with it: a limit that is not kept, a file that is damaged.

        Raises:
            ConfigError: torchrun started several processes of a command that works alone.
        """
        from labelkit.commands.common.gate import Gate
        from labelkit.commands.common.inputs import check_inputs
        from labelkit.commands.common.outputs import check_outputs
        from labelkit.errors import ConfigError
        from labelkit.options.gate import GateConfig

        count = int(os.environ.get("WORLD_SIZE") or "1")  # torchrun says it
        if count > 1 and not self.distributed:
            raise ConfigError(
                f"labelkit {' '.join(config.command)}",
                f"was started as {count} processes (WORLD_SIZE), but cannot divide its work: each would do all of it",
                "Start it without torchrun, or unset WORLD_SIZE for a single process.",
            )
        check_outputs(config)
        gate = Gate(config) if isinstance(config, GateConfig) else None
        check_inputs(config)
        stage: Callable[[StageConfig], SimpleResult] = _load(self.stage)
        result = stage(config)
        if gate is not None:
            return gate.judge(result)
        return result, getattr(result, "fault", None)


@dataclass(frozen=True)
class Group:
    """Group of subcommands, such as those of ``labelkit cluster``.

    Attributes:
        summary: a line for the list of all commands.
        example: a command line of one of them.
        members: the commands by name, or a function that lists them.
    """

    summary: str
    example: str
    members: Mapping[str, Command] | Callable[[], Mapping[str, Command]]

    @property
    def commands(self) -> Mapping[str, Command]:
        """Subcommands of a group, by name."""
        return self.members() if callable(self.members) else self.members

    @property
    def help(self) -> str:
        """Help text of a group of commands, shown by ``--help`` above the list of them."""
        return f"{self.summary}\n\nExample: {self.example}"


def all_commands() -> dict[tuple[str, ...], Command]:
    """Return all commands by their words after ``labelkit``, in the order of the help."""
    found: dict[tuple[str, ...], Command] = {}
    for name, entry in COMMANDS.items():
        if isinstance(entry, Group):
            found |= {(name, below): command for below, command in entry.commands.items()}
        else:
            found[name,] = entry
    return found


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


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
        "Turn a folder of photos and a few labels into a table of labels: embed, count the classes, answer, say "
        "what to label next, make a page.\n\n"
        "Each step is a command of its own; the first call shows them. Call it again with more photos or labels: it "
        "goes on, and groups keep their names.",
        "labelkit start photos --labels known.csv",
        "labelkit.pipelines.start.options:StartConfig",
        "labelkit.pipelines.start.run:start",
        summary="Turn a folder of photos into a table of labels, in one command.",
    ),
    "predict": Command(
        "Answer for new photos: class, group or unsure, with confidence, as `labelkit discover answer` did for "
        "those of the store.\n\n"
        "A photo that is in the store gets the answer, or the label, that it has there.",
        "labelkit predict new.jpg --from photos-labeled",
        "labelkit.pipelines.predict.options:PredictConfig",
        "labelkit.pipelines.predict.predict:predict_photos",
        summary="Name the class or group of new photos.",
    ),
    "train": Group(
        "Train a representation with one of the methods.", "labelkit train flipclass --dataset digits", _train_commands
    ),
    "reproduce": Command(
        "Run the rows of a published table with several seeds, and set what was measured beside what was published.\n\n"
        "What is done is not done again; a training that was stopped goes on. Rows whose data are missing are named.",
        'labelkit reproduce dl2pa-6 --row "dl2pa CIFAR-10 0.01" --dry-run',
        "labelkit.pipelines.reproduce.options:ReproduceConfig",
        "labelkit.pipelines.reproduce.running:reproduce",
        summary="Run a published table and compare the results.",
    ),
    "embed": Command(
        "Embed every image of a data set with a trained backbone.",
        "labelkit embed --dataset digits --checkpoint runs/flipclass-digits --out digits.h5",
        "labelkit.options.embed:EmbedConfig",
        "labelkit.commands.embed.embed:embed_images",
        summary="Embed the images of a data set into a store.",
    ),
    "import": Command(
        "Make a store of embeddings that another program wrote: .npy, .npz, CSV or HDF5; everything is checked.",
        "labelkit import --source features.npy --ids paths.csv --model dinov2 --out features.h5",
        "labelkit.commands.exchange.options:ImportConfig",
        "labelkit.commands.exchange.importing:import_store",
        summary="Create a store from existing embeddings.",
    ),
    "export": Command(
        "Write rows, labels or a result of a store for other programs: .npy, .npz, CSV or Parquet; or the network "
        "that made the rows, as ONNX.",
        "labelkit export --index digits.h5 --out digits.csv",
        "labelkit.commands.exchange.options:ExportConfig",
        "labelkit.commands.exchange.exporting:export_store",
        summary="Export embeddings, labels, results or the network.",
    ),
    "cluster": Group(
        "Cluster the embeddings of a store.",
        "labelkit cluster ss-kmeans --index digits.h5 --num-clusters 10",
        {
            "k-means": Command(
                "Group rows by k-means; uses no labels. With --patches: the patches of the images.",
                "labelkit cluster k-means --index digits.h5 --num-clusters 10",
                "labelkit.commands.cluster.options:KMeansConfig",
                "labelkit.commands.cluster.cluster:cluster_store",
            ),
            "spherical-k-means": Command(
                "Group rows by the angle between them; uses no labels.",
                "labelkit cluster spherical-k-means --index digits.h5 --num-clusters 10",
                "labelkit.commands.cluster.options:SphericalKMeansConfig",
                "labelkit.commands.cluster.cluster:cluster_store",
            ),
            "ss-kmeans": Command(
                "Group rows by k-means that keeps labeled rows of a class together.",
                "labelkit cluster ss-kmeans --index digits.h5 --num-clusters 10",
                "labelkit.commands.cluster.options:SSKMeansConfig",
                "labelkit.commands.cluster.cluster:cluster_store",
            ),
            "sinkhorn": Command(
                "Group rows into groups of equal or given sizes; uses no labels.",
                "labelkit cluster sinkhorn --index digits.h5 --num-clusters 10",
                "labelkit.commands.cluster.options:SinkhornConfig",
                "labelkit.commands.cluster.cluster:cluster_store",
            ),
        },
    ),
    "discover": Group(
        "Discover new classes in a store.",
        "labelkit discover categories --index digits.h5",
        {
            "categories": Command(
                "Estimate the number of classes and assign every image to one.",
                "labelkit discover categories --index digits.h5",
                "labelkit.commands.discover.options:DiscoverCategoriesConfig",
                "labelkit.commands.discover.categories:discover_categories",
            ),
            "head": Command(
                "Assign every image to the class that the trained classifier names.",
                "labelkit discover head --index digits.h5",
                "labelkit.commands.discover.options:DiscoverHeadConfig",
                "labelkit.commands.discover.categories:discover_head",
            ),
            "answer": Command(
                "Answer for every unlabeled image: a known class, a new group, or unsure, with a "
                "calibrated confidence.",
                "labelkit discover answer --index digits.h5 --min-confidence 0.8",
                "labelkit.commands.discover.options:DiscoverAnswerConfig",
                "labelkit.commands.discover.answer:answer_images",
            ),
            "snowball": Command(
                "Grow a few labels: the images nearest to the mean of a class get its label.",
                "labelkit discover snowball --index pixels.h5 --num-labels 20 --rounds 3",
                "labelkit.commands.discover.few_options:DiscoverSnowballConfig",
                "labelkit.commands.discover.few:discover_snowball",
            ),
            "lmcs": Command(
                "Grow a few labels: of the images near the classes, the most ambiguous get a label.",
                "labelkit discover lmcs --index pixels.h5 --num-labels 20 --per-class 4",
                "labelkit.commands.discover.few_options:DiscoverLMCSConfig",
                "labelkit.commands.discover.few:discover_lmcs",
            ),
        },
    ),
    "suggest": Command(
        "Suggest the images most worth labeling next, as a CSV to fill in.",
        "labelkit suggest --index photos.h5 -n 20 --out next.csv --sheet next.png",
        "labelkit.commands.suggest.options:SuggestConfig",
        "labelkit.commands.suggest.suggest:suggest_images",
        summary="Suggest images to label next.",
    ),
    "label": Command(
        "Bring labels back: add those of a CSV to what is known, as a result that other commands take by --labels.",
        "labelkit label --index photos.h5 --from next.csv --by Ann",
        "labelkit.studio.label.options:LabelConfig",
        "labelkit.studio.label.label:label_images",
        summary="Add labels to a store, from a CSV or in the browser.",
    ),
    "find": Group(
        "Find near-duplicates, outliers, label errors and new classes.",
        "labelkit find duplicates --index photos.h5 --out duplicates.csv",
        {
            "duplicates": Command(
                "List pairs of images that are the same file, the same picture (saved again, resized, cropped a "
                "little), or a burst of one scene.",
                "labelkit find duplicates --index photos.h5 --out duplicates.csv --sheet duplicates.png",
                "labelkit.commands.find.options:FindDuplicatesConfig",
                "labelkit.commands.find.near_duplicates:find_duplicates",
            ),
            "odd": Command(
                "List images that are unlike all others, blank, dark, bright, blurred, tiny, or of an odd shape, "
                "with reasons.",
                "labelkit find odd --index photos.h5 --out odd.csv --sheet odd.png",
                "labelkit.commands.find.options:FindOddConfig",
                "labelkit.commands.find.outliers:find_odd",
            ),
            "mislabeled": Command(
                "List labels that the images contradict: nearest labeled images, means of classes and a linear "
                "classifier all prefer another class.",
                "labelkit find mislabeled --index photos.h5 --labels known.csv --out check.csv --sheet check.png",
                "labelkit.commands.find.options:FindMislabeledConfig",
                "labelkit.commands.find.label_errors:find_mislabeled",
            ),
            "novel": Command(
                "List the images without a label that are likely of no class with labels: groups without a label take "
                "them, and no labeled image is near.",
                "labelkit find novel --index photos.h5 --out novel.csv --sheet novel.png",
                "labelkit.commands.find.options:FindNovelConfig",
                "labelkit.commands.find.novel:find_novel",
            ),
        },
    ),
    "diff": Command(
        "Compare two groupings: groups kept, split, merged, changed, new or vanished, and images that moved.",
        "labelkit diff --index new.h5 --result k-means --previous old.h5",
        "labelkit.commands.cluster.options:DiffConfig",
        "labelkit.commands.cluster.diff:diff_groups",
        summary="Compare the groups of two runs.",
    ),
    "evaluate": Group(
        "Score results against ground truth.",
        "labelkit evaluate clustering --index digits.h5",
        {
            "clustering": Command(
                "Score groups against the true classes: accuracy All / Old / New, NMI, ARI, kinds of error.",
                "labelkit evaluate clustering --index digits.h5",
                "labelkit.commands.evaluate.options:EvaluateClusteringConfig",
                "labelkit.commands.evaluate.groups:evaluate_clustering",
            ),
            "answer": Command(
                "Score confident answers against the true classes: reliability, risk and coverage.",
                "labelkit evaluate answer --index digits.h5",
                "labelkit.commands.evaluate.options:EvaluateAnswerConfig",
                "labelkit.commands.evaluate.predictions:evaluate_answer",
            ),
            "knn": Command(
                "Judge features: classes of one split from the nearest rows of another, and from a linear classifier.",
                "labelkit evaluate knn --index digits.h5 -k 10 --temperature 0.1",
                "labelkit.commands.evaluate.options:EvaluateKNNConfig",
                "labelkit.commands.evaluate.knn:evaluate_knn",
            ),
            "linear": Command(
                "Judge features by a linear classifier: trained on one split, scored on another, top 1 and 5.",
                "labelkit evaluate linear --index digits.h5 --l2 1e-4,1e-3,1e-2",
                "labelkit.commands.evaluate.options:EvaluateLinearConfig",
                "labelkit.commands.evaluate.knn:evaluate_linear",
            ),
            "probes": Command(
                "Judge a network by a linear classifier after each convolution, or on its features: top 1 and 5.",
                "labelkit evaluate probes --checkpoint runs/sela --augmentation digits",
                "labelkit.commands.evaluate.options:EvaluateProbesConfig",
                "labelkit.commands.evaluate.probes:evaluate_probes",
            ),
            "presence": Command(
                "Judge a frozen network by a classifier of several classes in an image: average precision (VOC).",
                "labelkit evaluate presence --checkpoint runs/sela --train fully-connected",
                "labelkit.commands.evaluate.options:EvaluatePresenceConfig",
                "labelkit.commands.evaluate.multi_label:evaluate_presence",
            ),
            "retrieval": Command(
                "Score how well images of one class find each other: Recall@K, MAP@R, R-precision, NMI.",
                "labelkit evaluate retrieval --index digits.h5 -k 1,2,4,8",
                "labelkit.commands.evaluate.options:EvaluateRetrievalConfig",
                "labelkit.commands.evaluate.retrieval:evaluate_retrieval",
            ),
            "classification": Command(
                "Score a classifier: top 1 and 5, classes with many, medium and few images, confusions.",
                "labelkit evaluate classification --checkpoint runs/dl2pa-digits",
                "labelkit.commands.evaluate.options:EvaluateClassificationConfig",
                "labelkit.commands.evaluate.classification:evaluate_classification",
            ),
            "segmentation": Command(
                "Judge patch features: a head trained on them names the class of every pixel; mean IoU, pixels right.",
                "labelkit evaluate segmentation --backbone pixels --dataset scenes --image-size 64",
                "labelkit.commands.evaluate.dense_options:EvaluateSegmentationConfig",
                "labelkit.commands.evaluate.segmentation:evaluate_segmentation",
            ),
            "detection": Command(
                "Judge a backbone by training it as a detector (Faster, Mask, Cascade Mask R-CNN): AP of boxes, masks.",
                "labelkit evaluate detection --checkpoint runs/cotap --dataset coco_2017",
                "labelkit.commands.evaluate.dense_options:EvaluateDetectionConfig",
                "labelkit.commands.evaluate.detection:evaluate_detection",
            ),
            "patch-clusters": Command(
                "Judge patch features without training: groups of k-means, matched with the classes of the pixels.",
                "labelkit evaluate patch-clusters --backbone pixels --dataset scenes --image-size 64",
                "labelkit.commands.evaluate.dense_options:EvaluatePatchClustersConfig",
                "labelkit.commands.evaluate.patch_clusters:evaluate_patch_clusters",
            ),
            "tracking": Command(
                "Judge patch features by following objects through films from their masks in the first frame: J and F.",
                "labelkit evaluate tracking --backbone pixels --dataset scene_videos --radius 3",
                "labelkit.commands.evaluate.dense_options:EvaluateTrackingConfig",
                "labelkit.commands.evaluate.tracking:evaluate_tracking",
            ),
        },
    ),
    "compare": Command(
        "Train methods on the same images within the same time and judge their features alike: kNN, k-means, Recall@1.",
        "labelkit compare --methods flipclass,simgcd --dataset digits --budget 10m --seeds 3 --keep runs/compared",
        "labelkit.pipelines.compare.options:CompareConfig",
        "labelkit.pipelines.compare.compare:compare_methods",
        summary="Compare methods on the same split and training budget.",
    ),
    "retrieve": Command(
        "Find the images of a store that look most like a query: an image, a folder of them, or rows "
        "of a store.\n\n"
        "With --patch or --pixel: the patches of a store (made with embed --dense) that look most "
        "like one patch of an image.",
        "labelkit retrieve --query img.png --index digits.h5 -k 10",
        "labelkit.commands.retrieve.options:RetrieveConfig",
        "labelkit.commands.retrieve.retrieve:retrieve_images",
        summary="Find the images most similar to a query.",
    ),
    "prototypes": Command(
        "Spread one vector per class over the sphere, write them, and say how well they are spread.",
        "labelkit prototypes --num-classes 100 --embed-dim 50",
        "labelkit.options.prototypes:PrototypesConfig",
        "labelkit.commands.prototypes.prototypes:make_prototypes",
        summary="Compute class prototypes spread over the hypersphere.",
    ),
    "match": Command(
        "Find pairs of images that show the same thing: affine SIFT keypoints, and a homography that explains them.",
        "labelkit match --index init.h5 --num-clusters 100 --out matches.h5",
        "labelkit.commands.match.options:MatchConfig",
        "labelkit.commands.match.pairs:match_images_of_store",
        summary="Match images that show the same object, by keypoints.",
    ),
    "report": Command(
        "Write one HTML file about a store: groups, a map, neighbors, what `find` found, scores, "
        "curves.\n\n"
        "It opens from disk in any browser and loads nothing from elsewhere; the images are in it as "
        "thumbnails.",
        "labelkit report --index photos.h5 --out report.html",
        "labelkit.studio.report.options:ReportConfig",
        "labelkit.studio.report.build:write_report",
        summary="Write an HTML page about a store.",
    ),
    "show": Group(
        "Plot runs and stores: attention, training curves, discoveries, patches.",
        "labelkit show curves --run runs/flipclass-digits --out curves.png",
        {
            "attention": Command(
                "Draw what the class tokens of teacher and student attend to, before and after the "
                "teacher's update.\n\n"
                "Of a run of tac-ccl: attention of two views of an image, and how much they agree, "
                "before and after training.",
                "labelkit show attention --checkpoint runs/flipclass-digits --num-images 4 --out maps.png",
                "labelkit.commands.show.options:ShowAttentionConfig",
                "labelkit.commands.show.attention:show_attention",
            ),
            "assembly": Command(
                "Draw where the spatial assembly of a network moves the features of a few images, and what stays.",
                "labelkit show assembly --checkpoint runs/san-digits --num-images 4 --out assembly.png",
                "labelkit.commands.show.options:ShowAssemblyConfig",
                "labelkit.commands.show.assembly:show_assembly",
            ),
            "curves": Command(
                "Draw what runs logged: losses, accuracies, diagnostics; several runs in the same axes.",
                "labelkit show curves --run runs/flipclass-digits --metrics loss,all_accuracy --out curves.png",
                "labelkit.commands.show.options:ShowCurvesConfig",
                "labelkit.commands.show.curves:show_curves",
            ),
            "discovered": Command(
                "Draw what was discovered: images of each class, best first, right and wrong if "
                "known; or a 2-D map of all.",
                "labelkit show discovered --index pixels.h5 --result snowball --out sheet.png --map map.png",
                "labelkit.commands.discover.few_options:ShowDiscoveredConfig",
                "labelkit.commands.discover.show_discovered:show_discovered",
            ),
            "patches": Command(
                "Draw how similar the patches of a few images are to a chosen one, and their "
                "principal components as colors.",
                "labelkit show patches --index scenes.h5 --rows 3,8,21 --patch 4,2 --out patches.png",
                "labelkit.commands.show.options:ShowPatchesConfig",
                "labelkit.commands.show.patches:show_patches",
            ),
            "prototypes": Command(
                "Draw where the object-aware filter of a cotap run finds each of its prototypes in a few images.",
                "labelkit show prototypes --checkpoint runs/cotap --num-images 4 --out prototypes.png",
                "labelkit.commands.show.options:ShowPrototypesConfig",
                "labelkit.commands.show.prototypes:show_prototypes",
            ),
        },
    ),
    "datasets": Command(
        "Show the named data sets: what for, from where, and whether they are here and whole; exit 3 "
        "if --dataset is not.",
        "labelkit datasets --data-root data",
        "labelkit.commands.datasets.options:DatasetsConfig",
        "labelkit.commands.datasets.datasets:survey_datasets",
        summary="List the named data sets and check whether they are complete.",
    ),
    "status": Command(
        "Say how far a store that is embedded or a run that is trained is, and what of it is whole; changes nothing.",
        "labelkit status --index cub.h5",
        "labelkit.commands.store_files.options:StatusConfig",
        "labelkit.commands.store_files.status:report_status",
        summary="Show the progress of a store or a run.",
    ),
    "verify": Command(
        "Compare every block of a store, result, patches, matches or run with its digest; exit 3 if anything is wrong.",
        "labelkit verify --index cub.h5 --images data/cub",
        "labelkit.commands.store_files.options:VerifyConfig",
        "labelkit.commands.store_files.verify:verify_path",
        summary="Verify the integrity of a store, result or checkpoint.",
    ),
    "pack": Command(
        "Write one file with a store and all its results, for sending; every command reads it as it does a store.",
        "labelkit pack --index cub.h5 --out all.h5",
        "labelkit.commands.store_files.options:PackConfig",
        "labelkit.commands.store_files.packing:pack_results",
        summary="Pack a store and its results into one file.",
    ),
}
