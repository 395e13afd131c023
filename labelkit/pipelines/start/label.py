"""The command ``label``: labels from a file or the browser; on what ``start`` made, its tables are updated as well."""

from labelkit.commands.common.results import SimpleResult
from labelkit.pipelines.start.browser import read_start_call, start_in_browser
from labelkit.pipelines.start.run import start
from labelkit.studio.label.label import label_images
from labelkit.studio.label.options import LabelConfig


def label(config: LabelConfig) -> SimpleResult:
    """Merge labels from a CSV or the browser into those of a store, and write them as a result, a CSV or a label set.

    With ``serve`` on a store that ``start`` made, ``start`` is repeated at each "Ask again" and at the end, and its
    result is returned.

    Raises:
        StoreError: the store, or the result to add to, cannot be used.
        DatasetError: the CSV cannot be used, names unknown images, or gives images another label than they have.
        ConfigError: files that would be overwritten.
        BusyError: another server or call of ``start`` works there.
    """
    call = read_start_call(config)
    return label_images(config) if call is None else start_in_browser(call, start, config)
