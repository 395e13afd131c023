"""Views of planned batches: of images in memory, or of files that workers decode."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from labelkit.data.batch import ViewGeometry
from labelkit.data.image_bank import ImageBank
from labelkit.data.sending import send_tensor
from labelkit.data.views.spec import Normalize
from labelkit.data.views.transforms import finish_view
from labelkit.data.workers import BatchPlan, Crops, Reader
from labelkit.errors import DatasetError

PlannedViews = tuple[BatchPlan, tuple[Tensor, ...], tuple[ViewGeometry, ...]]


def planned_views(
    bank: ImageBank, plans: Callable[[], Iterator[BatchPlan]], normalize: Normalize, reader: Reader | None
) -> Iterator[PlannedViews]:
    """Yield each plan with its views and their geometry.

    Args:
        bank: the images.
        plans: gives the plans, anew at each call: workers pull them ahead of time.
        normalize: applied last.
        reader: of images that are not in memory; ``None``: they are.

    Raises:
        DatasetError: an image that could be read before cannot be read any more.
    """
    if reader is None:
        for plan in plans():
            made, geometry = bank.make_views(
                plan.rows,
                plan.keys,
                plan.views,
                seed=plan.seed,
                epoch=plan.epoch,
                normalize=normalize,
                pairs=plan.pairs,
            )
            yield plan, made, geometry
        return
    for plan, crops in zip(plans(), reader.read(plans()), strict=True):
        yield _finished(bank, plan, crops, normalize)


def _finished(bank: ImageBank, plan: BatchPlan, crops: Crops, normalize: Normalize) -> PlannedViews:
    if crops.bad:
        row, reason = crops.bad[0]
        raise DatasetError(
            bank.dataset.sample_ids[row], f"could be read before training, now: {reason}", "Restore the file."
        )
    finished = [
        finish_view(
            send_tensor(crops.crops[view], bank.device),
            crops.boxes[view],
            crops.partner_sizes if spec.shows_partner else crops.sizes,
            spec,
            plan.keys,
            seed=plan.seed,
            epoch=plan.epoch,
            view=view,
            normalize=normalize,
            pairs=plan.pairs,
        )
        for view, spec in enumerate(plan.views)
    ]
    return plan, tuple(view for view, _ in finished), tuple(geometry for _, geometry in finished)
