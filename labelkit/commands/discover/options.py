"""Options for ``labelkit discover categories``, ``head`` and ``answer``."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from labelkit.options.base import panel
from labelkit.options.memory import ProcessesConfig
from labelkit.options.shared import (
    RESULT_NAME,
    AddedLabelsOption,
    IndexConfig,
    NewClassesOption,
    PreviousOption,
    SplitOption,
    TableOption,
)

_STORE = panel("Store", preset=False)
_EARLIER = panel("Earlier predictions", preset=False)


class DiscoverCategoriesConfig(
    SplitOption,
    AddedLabelsOption,
    NewClassesOption,
    PreviousOption,
    IndexConfig,
):
    """Options for ``labelkit discover categories``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "categories")

    criterion: Literal["auto", "published"] = Field(
        "auto",
        description="Criterion for estimating the number of classes. auto: hide labels in turn; published: maximize "
        "the accuracy of k-means on the labels, as in generalized category discovery (GCD).",
    )
    num_classes: int | None = Field(None, ge=1, description="Number of classes, if known. Default: estimated.")
    min_size: int = Field(
        2, ge=1, description="Minimum size of a group without labels; smaller groups are merged into the nearest group."
    )
    min_classes: int | None = Field(
        None, ge=1, description="Minimum number of classes to try. Default: the number of labeled classes, at least 2."
    )
    max_classes: int | None = Field(
        None,
        ge=2,
        description="Maximum number of classes to try. Default with labels: three times the number of labeled "
        "classes, or that number plus 10 if larger; without labels: 1,000; in both cases at most a third of the "
        "number of images. With --criterion published: a tenth of the images, raised up to 1,000 while the maximum "
        "fits best.",
    )
    previous_answers: str | None = _EARLIER(
        None,
        "Predictions of `discover answer` in --previous. Labels added since then have less influence on the number of "
        "classes if they contradict these predictions more often than expected.",
        pattern=RESULT_NAME,
    )
    seed: int = Field(0, ge=0, description="Random seed.")

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


class DiscoverHeadConfig(PreviousOption, IndexConfig):
    """Options for ``labelkit discover head``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "head")

    temperature: float = Field(
        0.1,
        gt=0,
        description="Softmax temperature for computing confidence; set it to the student's training temperature.",
    )


class DiscoverAnswerConfig(TableOption, AddedLabelsOption, ProcessesConfig, IndexConfig):
    """Options for ``labelkit discover answer``."""

    command: ClassVar[tuple[str, ...]] = ("discover", "answer")

    grouping: str | None = _STORE(
        None,
        "Grouping from `discover head`, `discover categories` or `cluster ss-kmeans`. Default: the first of these "
        "that exists.",
        pattern=RESULT_NAME,
    )
    num_clusters: int | None = _STORE(
        None,
        "First group the images into this number of classes, as `discover categories` does, and save the result as "
        "--grouping (or as categories). Default: use an existing result.",
        ge=1,
    )
    min_confidence: float = Field(
        0.8, ge=0, le=1, description="Minimum confidence; images below it are marked as unsure."
    )
    calibration_labels: Path | None = Field(
        None,
        description="Labels for calibrating confidences, never used for training: a CSV with columns path,label, or a "
        "result of `labelkit label`. Default: labels in the store, hidden in repeated clusterings.",
    )
    previous: Path | None = _EARLIER(
        None,
        "Store with earlier predictions, often the same store. Labels added since then get less weight if they "
        "contradict these predictions more often than expected, so that corrections do not distort similar "
        "predictions.",
    )
    previous_result: str | None = _EARLIER(None, "Predictions in --previous. Default: answer.", pattern=RESULT_NAME)
    seed: int = Field(0, ge=0, description="Random seed for choosing the labels to hide.")

    @model_validator(mode="after")
    def _check_previous_result(self) -> Self:
        if self.previous_result is not None and self.previous is None:
            raise ValueError("--previous-result requires --previous STORE")
        return self
