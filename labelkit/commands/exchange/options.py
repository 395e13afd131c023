"""Options for ``labelkit import`` and ``labelkit export``."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, model_validator

from labelkit.options.base import OUTPUT, STORE, field_factory
from labelkit.options.shared import RESULT_NAME, IndexOption, OverwriteOption, ShardsOption, StoreOutOption

_FILES = field_factory("Files", preset=False)
_MEANING = field_factory("Contents", preset=False)
_EMBEDDINGS = field_factory("Embeddings", preset=False)

TORCH_SUFFIXES = (".safetensors", ".pt", ".pth")
IMPORT_SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".h5", ".hdf5", ".hdf", ".h5ad", *TORCH_SUFFIXES)
EXPORT_SUFFIXES = (".npz", ".csv", ".onnx")
IDS_SUFFIXES = (".csv", ".tsv", ".txt")
_FAISS = "i = faiss.read_index(FILE); numpy.save('x.npy', i.reconstruct_n(0, i.ntotal))"
_CONVERSIONS = {
    ".faiss": _FAISS,
    ".index": _FAISS,
    ".parquet": "t = pandas.read_parquet(FILE); numpy.savez('x.npz', x=numpy.stack(t.EMBEDDINGS), ids=list(t.PATHS))",
    ".pkl": "numpy.savez('x.npz', x=EMBEDDINGS, ids=NAMES) with the contents of the file, if you trust it",
}


def _ends_in(*known: str) -> AfterValidator:
    def check(path: Path | None) -> Path | None:
        if path is not None and path.suffix.lower() not in known:
            code = _CONVERSIONS.get(path.suffix.lower()) if ".h5" in known else None
            hint = f"; convert it in Python: {code}" if code else ""
            raise ValueError(f"must end in {', '.join(known[:-1])} or {known[-1]}{hint}")
        return path

    return AfterValidator(check)


class ImportConfig(OverwriteOption, StoreOutOption, ShardsOption):
    """Options for ``labelkit import``."""

    command: ClassVar[tuple[str, ...]] = ("import",)

    source: Annotated[Path, _ends_in(*IMPORT_SUFFIXES)] = _FILES(
        ..., "File that contains the embeddings: .npy, .npz, .csv, .tsv, .h5, .hdf5, .h5ad, .safetensors, .pt or .pth."
    )
    ids: Annotated[Path | None, _ends_in(*IDS_SUFFIXES)] = _FILES(
        None,
        "Image names, in the same order as the embeddings (any order if --source has the same names): a .txt with one "
        "name per line, or a .csv or .tsv with a path column and optional label and split columns. Default: the names "
        "in --source, otherwise row numbers.",
    )
    images: Path | None = _FILES(
        None,
        "Folder to which the image names are relative. The store then also records sizes and digests of the files. "
        "Default: none; sizes and digests remain unknown.",
    )
    embeddings_key: str | None = _MEANING(
        None,
        "Array with the embeddings, such as /feats. For a CSV, a comma-separated list of columns (a,b,c) or the prefix "
        "of numbered columns. Default: a common name such as embeddings or features; failing that, the only array in "
        "the file or the numbered columns of the CSV.",
    )
    ids_key: str | None = _MEANING(
        None,
        "Array or column with the image names. Default: an array or column with a common name such as paths or ids.",
    )
    labels_key: str | None = _MEANING(
        None,
        "Array or column with the labels: text or integers; empty or -1 means unlabeled. Default: an array or column "
        "with a common name such as labels, if there is one.",
    )
    splits_key: str | None = _MEANING(
        None,
        "Array or column with the split of each image, such as train or test. Default: an array or column called "
        "split or splits, if there is one.",
    )
    model: str | None = _EMBEDDINGS(
        None,
        "Name of the model that computed the embeddings; only stores with the same model name can be compared. "
        "Default: unknown, so that the store cannot be compared with any other.",
        min_length=1,
        max_length=200,
    )
    metric: Literal["cosine", "l2", "dot"] = _EMBEDDINGS("cosine", "Metric for comparing embeddings.")
    dtype: Literal["auto", "float32", "float16"] = _EMBEDDINGS(
        "auto", "Data type of the stored embeddings; auto: float16 for float16 input, otherwise float32."
    )

    @model_validator(mode="after")
    def _reject_ignored_options(self) -> Self:
        kind = self.source.suffix.lower()
        if kind in (".csv", ".tsv") and self.ids is not None:
            raise ValueError("--ids applies to array files: for a CSV, pass the name column as --ids-key")
        if kind == ".npy" and self.embeddings_key is not None:
            raise ValueError("--embeddings-key has no effect on a .npy file, which contains a single array: remove it")
        if self.ids is not None and kind != ".npy" and self.ids_key is not None:
            raise ValueError("pass either --ids or --ids-key, not both")
        if kind == ".npy" and self.ids is None and (self.ids_key or self.labels_key or self.splits_key):
            raise ValueError("--ids-key, --labels-key and --splits-key require --ids FILE.csv with a .npy file")
        return self


class ExportConfig(OverwriteOption, IndexOption):
    """Options for ``labelkit export``."""

    command: ClassVar[tuple[str, ...]] = ("export",)

    out: Annotated[Path, _ends_in(*EXPORT_SUFFIXES)] = OUTPUT(
        ...,
        "File to write: .npz or .csv; .onnx for --what model (needs onnx, onnxruntime, onnxscript).",
        makes="export",
    )
    what: Literal["embeddings", "labels", "result", "model"] = STORE(
        "embeddings",
        "What to write. embeddings: embeddings with names, labels and splits; labels: only names, labels and splits; "
        "result: a stored result; model: the network that computed the embeddings.",
    )
    checkpoint: Path | None = STORE(
        None, "Run folder or weights file of the network (with --what model). Default: its last known location."
    )
    result: str | None = STORE(None, "Name of the result (with --what result).", pattern=RESULT_NAME)

    @model_validator(mode="after")
    def _check_what(self) -> Self:
        if (self.what == "result") != (self.result is not None):
            raise ValueError("--what result and --result NAME must be passed together")
        if (self.what == "model") != (self.suffix == ".onnx"):
            raise ValueError("--what model writes only ONNX: pass --out NAME.onnx")
        if self.checkpoint is not None and self.what != "model":
            raise ValueError("--checkpoint requires --what model")
        return self

    @property
    def suffix(self) -> str:
        """Suffix of the exported file in lower case."""
        return self.out.suffix.lower()
