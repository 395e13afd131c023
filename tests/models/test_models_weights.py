"""Weights files: honest ones load, hostile and damaged ones are refused, identity is by content."""

import hashlib
import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from labelkit.errors import CheckpointDamaged, CheckpointMismatch, CheckpointRefused
from labelkit.models.weights.files import assign_weights, fingerprint, load_weights_file
from safetensors.torch import save_file
from torch import Tensor, nn


class Bomb:
    """Makes a file when unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.trace),))


def network(seed: int = 0) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        parameter.data.normal_(generator=generator)
    return net


def state(seed: int = 0, prefix: str = "") -> dict[str, Tensor]:
    return {prefix + name: value.clone() for name, value in network(seed).state_dict().items()}


def assert_equal_states(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def raw_safetensors(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(start: int, stop: int, shape: Any = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(stop - start) // 4] if shape is None else shape, "data_offsets": [start, stop]}


def test_torch_file_gives_its_tensors_under_dotted_names(tmp_path: Path) -> None:
    half = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    content = {"model": {**state(), "half": half, "view": torch.arange(8.0).reshape(2, 4).T}, "epoch": 7, "name": "net"}
    torch.save(content, tmp_path / "weights.pth")

    loaded = load_weights_file(tmp_path / "weights.pth")

    expected = {**state(), "half": half, "view": torch.arange(8.0).reshape(2, 4).T}
    assert_equal_states(loaded, {f"model.{name}": value for name, value in expected.items()})


def test_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "executed"
    torch.save({"w": torch.ones(2), "x": Bomb(trace)}, tmp_path / "bad.pth")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")

    with pytest.raises(CheckpointRefused) as caught:
        load_weights_file(tmp_path / "bad.pth")

    assert not trace.exists()
    assert caught.value.where.endswith("bad.pth")
    assert "contains objects other than tensors, so it was not read: posix.mkdir" in caught.value.problem
    assert "save_file" in caught.value.remedy


def test_tensors_that_are_not_plain_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.eye(2).to_sparse()}, tmp_path / "sparse.pth")
    torch.save({"w": torch.empty(2, device="meta")}, tmp_path / "meta.pth")

    for name in ("sparse.pth", "meta.pth"):
        with pytest.raises(CheckpointRefused, match="w is not a plain tensor"):
            load_weights_file(tmp_path / name)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning", "ignore:.*is deprecated:DeprecationWarning")
def test_a_torchscript_program_is_not_run(tmp_path: Path) -> None:
    torch.jit.trace(network().eval(), torch.zeros(1, 3)).save(str(tmp_path / "program.pt"))

    with pytest.raises(CheckpointRefused, match=r"is a TorchScript program.*torch.jit.load\(FILE\).state_dict"):
        load_weights_file(tmp_path / "program.pt")


@pytest.mark.parametrize(
    "content", [b"", b"hello world", b"PK\x03\x04 torn", b"\x80\x02}q\x00.", pickle.dumps(object())]
)
def test_torn_torch_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.pth").write_bytes(content)

    with pytest.raises(CheckpointRefused, match="not a torch file of plain tensors") as caught:
        load_weights_file(tmp_path / "bad.pth")

    assert "weights_only" not in str(caught.value)  # torch's advice to trust the file


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", 1 << 60) + b"{}",
        raw_safetensors(b"[[[["),
        raw_safetensors({"a": entry(0, 8)}, bytes(4)),
        raw_safetensors({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
        raw_safetensors({"a": entry(0, 8, [2], "F33")}, bytes(8)),
    ],
)
def test_a_safetensors_file_that_contradicts_itself_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.safetensors").write_bytes(content)

    with pytest.raises(CheckpointDamaged, match=r"bad\.safetensors: cannot be read"):
        load_weights_file(tmp_path / "bad.safetensors")


@pytest.mark.parametrize("prefix", ["", "module.", "teacher.backbone.", "state_dict.module.net.", "a.b.c.d."])
def test_prefix_is_found_and_cut(prefix: str) -> None:
    model = network(1)
    given = {**state(prefix=prefix), f"{prefix}head.weight": torch.ones(5, 2), "optimizer.step": torch.ones(())}

    report = assign_weights(given, model)

    assert_equal_states(dict(model.state_dict()), state())
    assert report.prefix == prefix
    assert set(report.loaded) == set(state())
    assert {name.rpartition(".")[2] for name in report.unexpected} == {"weight", "step"}
    assert len(report.unexpected) == 2
    assert report.missing == ()


def test_weights_of_a_deeper_network_of_the_same_kind_are_refused() -> None:
    deep, shallow = (nn.ModuleDict({"stage": nn.Sequential(*(network() for _ in range(n)))}) for n in (3, 2))

    report = assign_weights({**shallow.state_dict(), "head.0.0.weight": torch.ones(2, 2)}, shallow)
    assert report.unexpected == ("head.0.0.weight",)
    with pytest.raises(CheckpointMismatch, match=r"contain 1 blocks that the network lacks \(stage\.2\)"):
        assign_weights(deep.state_dict(), shallow)


@pytest.mark.parametrize(
    ("used", "other"),
    [
        ("teacher.backbone.", "student.backbone."),
        ("module.encoder_q.", "module.encoder_k."),  # MoCo
        ("module.base_encoder.", "module.momentum_encoder."),
        ("state_dict.backbone.", "state_dict.momentum_backbone."),  # solo-learn
        ("backbone.", "backbone_momentum."),  # lightly's BYOL and MoCo
        ("online_encoder.net.", "target_encoder.net."),
        ("online_network.", "target_network."),
        ("teacher_backbone.", "student_backbone."),  # lightly's DINO
        ("ema_state_dict.", "state_dict."),
    ],
)
def test_of_the_copies_of_other_programs_one_is_used(used: str, other: str) -> None:
    model = network(2)

    report = assign_weights({**state(0, other), **state(1, used)}, model)

    assert report.prefix == used
    assert len(report.unexpected) == len(state())
    assert_equal_states(dict(model.state_dict()), state(1))


def test_two_copies_that_cannot_be_told_apart_are_refused() -> None:
    given = {**state(0, "branch_b."), **state(1, "branch_a.")}

    with pytest.raises(CheckpointMismatch, match=r"2 copies of the network: 'branch_a.', 'branch_b.'"):
        assign_weights(given, network())


def test_missing_and_mismatched_tensors_are_named_and_nothing_is_changed() -> None:
    model, given = network(1), state(0)
    del given["0.bias"]
    given["2.weight"] = torch.ones(2, 5)

    with pytest.raises(CheckpointMismatch) as caught:
        assign_weights(given, model, where="weights.pth")

    assert str(caught.value).startswith("weights.pth: 1 of 9 tensors are missing (0.bias)")
    assert "2.weight is [2, 5], expected [2, 4]" in str(caught.value)
    assert_equal_states(dict(model.state_dict()), state(1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    model, given = network(1), state(0)
    given["2.weight"][0, 0] = value

    with pytest.raises(CheckpointDamaged, match=r"2.weight: 1 values are not finite"):
        assign_weights(given, model)

    assert_equal_states(dict(model.state_dict()), state(1))


def test_converter_is_asked_only_when_names_do_not_fit() -> None:
    def refuse(_: dict[str, Tensor]) -> dict[str, Tensor]:
        raise AssertionError("not needed")

    assign_weights(state(0), network(1), convert=refuse)
    foreign = {f"layer{name}": value for name, value in state(0).items()}

    report = assign_weights(
        foreign, network(1), convert=lambda given: {name.removeprefix("layer"): value for name, value in given.items()}
    )

    assert set(report.loaded) == set(state())


def test_fingerprint_is_the_documented_digest() -> None:
    given = {"b": torch.tensor([[1.5, -2.0]]), "a.c": torch.tensor(3, dtype=torch.int64)}
    expected = hashlib.sha256(
        b"a.c\0int64\0\0" + struct.pack("<q", 3) + b"b\0float32\x001,2\0" + struct.pack("<2f", 1.5, -2.0)
    ).hexdigest()

    assert fingerprint(given) == expected
    assert fingerprint(dict(reversed(given.items()))) == expected


def test_fingerprint_survives_both_file_formats_and_sees_every_change(tmp_path: Path) -> None:
    net = network(0)
    save_file(state(), tmp_path / "weights.safetensors")
    torch.save(state(), tmp_path / "weights.pt")
    digest = fingerprint(net)

    assert fingerprint(load_weights_file(tmp_path / "weights.safetensors")) == digest
    assert fingerprint(load_weights_file(tmp_path / "weights.pt")) == digest
    changed = {
        "value": {**state(), "0.bias": state()["0.bias"] + 1e-3},
        "shape": {**state(), "0.weight": state()["0.weight"].reshape(3, 4)},
        "dtype": {**state(), "0.bias": state()["0.bias"].double()},
        "name": {**{name: value for name, value in state().items() if name != "0.bias"}, "0.bios": state()["0.bias"]},
    }
    assert len({digest, *(fingerprint(given) for given in changed.values())}) == 5
