"""The server of ``labelkit label --serve``, killed at random moments: nothing that was acknowledged is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import KMeansConfig
from labelkit.commands.embed.embed import embed_images
from labelkit.options.embed import EmbedConfig

pytest.importorskip("uvicorn", reason="the extra serve is not installed")


@pytest.mark.parametrize(
    "kills", [pytest.param(10, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.torture)]
)
@pytest.mark.timeout(1200)
def test_no_acknowledged_action_is_lost(kills: int, photos: Path, tmp_path: Path) -> None:
    index = tmp_path / "photos.h5"
    embed_images(EmbedConfig(dataset=str(photos), backbone="pixels", image_size=8, label_split="none", out=index))
    cluster_store(KMeansConfig(index=index, num_clusters=4))
    words = [sys.executable, "-m", "tests.studio.label.killed_server", "--index", str(index), "--kills", str(kills)]
    told = subprocess.run(words, capture_output=True, text=True)
    counts = json.loads(told.stdout) if told.returncode == 0 else {"failed": told.stderr}

    assert counts["kills"] == kills, counts
    assert counts["acknowledged"] >= kills
    assert (counts["lost"], counts["wrong labels"]) == (0, 0)
    assert counts["on the disk, not acknowledged"] <= kills
