"""Options for ``labelkit discover categories``, ``head`` and ``answer``."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.base import OPTION, STORE, field_factory
from labelkit.options.memory import ProcessesConfig
from labelkit.options.shared import (
    RESULT_NAME,
    AddedLabelsOption,
    NamedResultConfig,
    NewClassesOption,
    PreviousOptions,
    SplitOption,
    TableOption,
)

_EARLIER = field_factory("Earlier predictions", preset=False)


class DiscoverCategoriesConfig(SplitOption, AddedLabelsOption, NewClassesOption, PreviousOptions, NamedResultConfig):
    """Options for ``labelkit discover categories``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "categories")

    criterion: Literal["auto", "published"] = OPTION(
        "auto",
        "Criterion for estimating the number of classes. auto: hold out some labels in turn; published: maximize "
        "the accuracy of k-means on the labels, as in generalized category discovery (GCD).",
    )
    num_classes: int | None = OPTION(None, "Number of classes, if known. Default: estimated.", ge=1)
    min_size: int = OPTION(
        2, "Minimum size of a group without labels; smaller groups are merged into the nearest group.", ge=1
    )
    min_classes: int | None = OPTION(
        None, "Minimum number of classes to try. Default: the number of labeled classes, at least 2.", ge=1
    )
    max_classes: int | None = OPTION(
        None,
        "Maximum number of classes to try. Default with labels: three times the number of labeled "
        "classes, or that number plus 10 if larger; without labels: 1,000; in both cases at most a third of the "
        "number of images. With --criterion published: a tenth of the images, raised up to 1,000 while the maximum "
        "fits best.",
        ge=2,
    )
    previous_answers: str | None = _EARLIER(
        None,
        "Result of `discover answer` in the store --previous. Labels added after it have less influence on the number "
        "of classes if they contradict its predictions more often than expected.",
        pattern=RESULT_NAME,
    )
    seed: int = OPTION(0, "Random seed.", ge=0)

    @model_validator(mode="after")
    def _reject_search_for_known_number(self) -> Self:
        if self.previous_answers is not None and self.previous is None:
            raise ValueError("--previous-answers requires --previous STORE")
        for name in ("min_classes", "max_classes"):
            if self.num_classes is not None and getattr(self, name) is not None:
                raise ValueError(
                    f"--{name.replace('_', '-')} applies only if the number is estimated: remove it or --num-classes"
                )
        return self


class DiscoverHeadConfig(PreviousOptions, NamedResultConfig):
    """Options for ``labelkit discover head``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "head")

    temperature: float = OPTION(
        0.1, "Softmax temperature for computing confidence; set it to the student's training temperature.", gt=0
    )


class DiscoverAnswerConfig(TableOption, AddedLabelsOption, ProcessesConfig, NamedResultConfig):
    """Options for ``labelkit discover answer``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "answer")

    grouping: str | None = STORE(
        None,
        "Grouping from `discover head`, `discover categories` or `cluster ss-kmeans`. Default: the first of these "
        "that exists.",
        pattern=RESULT_NAME,
    )
    num_clusters: int | None = STORE(
        None,
        "First group the images into this number of classes, as `discover categories` does, and save the result as "
        "--grouping (or as categories). Default: use an existing result.",
        ge=1,
    )
    min_confidence: float = OPTION(0.8, "Minimum confidence; images below it are marked as unsure.", ge=0, le=1)
    calibration_labels: Path | None = OPTION(
        None,
        "Labels for calibrating confidences, never used for training: a CSV with columns path,label, or a "
        "result of `labelkit label`. Default: labels in the store, hidden in repeated clusterings.",
    )
    ruled_out: Path | None = OPTION(
        None,
        "CSV with columns path,label of classes or groups to which an image does not belong; a line for each. They are "
        "not predicted for this image.",
    )
    previous: Path | None = _EARLIER(
        None,
        "Store with earlier predictions, often the same store. Labels added since then get less weight if they "
        "contradict these predictions more often than expected, so that corrections do not distort similar "
        "predictions.",
    )
    previous_result: str | None = _EARLIER(None, "Predictions in --previous. Default: answer.", pattern=RESULT_NAME)
    seed: int = OPTION(0, "Random seed for choosing the labels to hide.", ge=0)

    @model_validator(mode="after")
    def _check_previous_result(self) -> Self:
        if self.previous_result is not None and self.previous is None:
            raise ValueError("--previous-result requires --previous STORE")
        return self
