"""The command ``label``: read labels from a file or the browser; for output of ``start``, also update its tables."""

from labelkit.commands.common.results import CommandResult
from labelkit.pipelines.start.browser import read_start_options, start_in_browser
from labelkit.pipelines.start.run import start
from labelkit.studio.label.label import label_images
from labelkit.studio.label.options import LabelConfig


def label(config: LabelConfig) -> CommandResult:
    """Merge labels from a CSV or the browser into those of a store, and write them as a result, a CSV or a label set.

    With ``serve`` on a store created by ``start``, ``start`` runs again for each "Predict again" and at the end, and
    its result is returned.

    Raises:
        StoreError: the store, or the earlier result, cannot be used.
        DatasetError: the CSV cannot be used, lists unknown images, or contradicts existing labels.
        ConfigError: files would be overwritten.
        BusyError: another server or run of ``start`` is using the folder.
    """
    call = read_start_options(config)
    return label_images(config) if call is None else start_in_browser(call, start, config)
