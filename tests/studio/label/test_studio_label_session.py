"""A session of labeling on the disk: every action a round, undo, two people, what a restart and a full disk leave."""

import contextlib
import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import KMeansConfig
from labelkit.commands.common.labels import choose_usable_labels
from labelkit.errors import BusyError, Mismatch, ResourceError
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import list_results, read_result
from labelkit.studio.label.actions import EditStep, InvalidStepError
from labelkit.studio.label.browser import load_store_for_labeling, open_session
from labelkit.studio.label.label import _lock_results_folder, label_images, read_session_labels
from labelkit.studio.label.options import LabelConfig
from labelkit.studio.label.rounds import initial_labels
from labelkit.studio.label.session import EditConflictError, LabelingSession

PER_BLOB = 8


@pytest.fixture
def store(make_store: Any, rng: np.random.Generator) -> EmbeddingStore:
    """Three blobs of eight rows in three clusters; the first row has a label."""
    rows = np.repeat(np.eye(3), PER_BLOB, axis=0) + 0.05 * rng.normal(size=(3 * PER_BLOB, 3))
    truth = np.repeat([0, 1, 2], PER_BLOB)
    made: EmbeddingStore = make_store(rows, labels=truth.tolist(), labeled=[1] + [0] * (len(rows) - 1))
    cluster_store(KMeansConfig(index=made.path, num_clusters=3))
    return made


def opened(store: EmbeddingStore, **options: Any) -> LabelingSession:
    config = LabelConfig(index=store.path, serve=True, **options)
    return open_session(config, store, load_store_for_labeling(config, store).grouping)


def act(session: LabelingSession, *steps: dict[str, Any], client: str = "a", seen: int | None = None) -> Any:
    return session.commit_action(
        "test", list(steps), user="me", client=client, seen_round=session.round if seen is None else seen
    )


def stored(store: EmbeddingStore, name: str = "labels-1") -> dict[int, str]:
    arrays = read_result(store, name).arrays
    return {
        row: arrays["class_names"][label]
        for row, label in enumerate(arrays["labels"].tolist())
        if arrays["labeled"][row]
    }


def test_every_action_is_a_round_on_the_disk(store: EmbeddingStore) -> None:
    session = opened(store)
    assert list_results(store) == ["k-means"]
    act(session, {"do": "name", "group": 0, "name": "umbrella"})
    members = np.flatnonzero(session.work.groups == 0)
    act(session, {"do": "label", "rows": [int(members[1])], "name": "dog"})
    result = read_result(store, "labels-1")

    assert stored(store)[int(members[1])] == "dog"
    assert stored(store)[int(members[2])] == "umbrella"
    assert result.arrays["label_rounds"][members[1]] == 2
    assert result.arrays["label_rounds"][members[2]] == 1
    assert [(one["round"], one["by"], one["kind"]) for one in result.params["actions"]] == [
        (1, "me", "test"),
        (2, "me", "test"),
    ]
    assert result.params["round"] == 2


def test_a_session_goes_on_where_it_was_and_undo_still_works(store: EmbeddingStore) -> None:
    first = opened(store)
    act(first, {"do": "name", "group": 1, "name": "umbrella"})
    act(first, {"do": "reject", "rows": [0, 9], "value": True}, {"do": "label", "rows": [3], "name": "dog"})

    again = opened(store)
    assert again.name == "labels-1"
    assert again.work.labels()[0].tolist() == first.work.labels()[0].tolist()
    again.undo(2, user="me", client="b", seen_round=2)
    again.undo(1, user="me", client="b", seen_round=3)

    assert stored(store) == {0: store.class_names[0]}
    assert [done.kind for done in opened(store).log] == ["test", "test", "undo", "undo"]


def test_a_session_with_many_steps_and_any_names_of_classes_is_read_again(
    store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelkit.studio.label.actions.MAX_STEPS", 1)
    names = {1: "x" * 201, 2: "tab\tin it", 3: "می\u200cروم"}
    session = opened(store)
    session.plan_and_commit(
        "predict",
        lambda _: [EditStep("label", rows=(row,), name=name) for row, name in names.items()],
        user="",
        client="",
    )
    act(session, {"do": "label", "rows": [1], "name": "dog"})

    opened(store).undo(2, user="", client="b", seen_round=2)

    assert stored(store) == {0: store.class_names[0], **names}


def test_a_class_of_the_store_may_have_any_name(store: EmbeddingStore) -> None:
    session = opened(store)
    session.work.classes.append("none")
    act(session, {"do": "label", "rows": [5], "name": "none"})

    assert stored(store)[5] == "none"


def test_a_label_stays_when_other_images_become_typical_of_its_group(
    store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelkit.commands.common.labels.TYPICAL", 2)
    session = opened(store)
    act(session, {"do": "name", "group": 0, "name": "cup"})
    last, learned, given = read_session_labels(store, "labels-1", None)
    # all commands use the same labels, not those of the whole group
    usable = choose_usable_labels(Path("labels-1"), store, np.arange(store.n))
    assert [store.sample_ids[row] for row in np.flatnonzero(usable.labeled)] == [path for path, _, _ in learned]
    exported = initial_labels(LabelConfig(index=store.path, labels=Path("labels-1"), serve=True), store)
    assert [store.sample_ids[row] for row in np.flatnonzero(exported.labels >= 0)] == [path for path, _, _ in learned]
    assert ((exported.rounds >= 0) == (exported.labels >= 0)).all()
    act(session, {"do": "group", "rows": np.flatnonzero(session.work.groups == 1).tolist(), "group": 0})
    _, every, fresh = read_session_labels(store, "labels-1", last)

    assert {text for _, text, _ in given} == {"cup"}
    assert set(given) < set(every)
    assert not set(given) & set(fresh)


def test_an_action_is_taken_back_once(store: EmbeddingStore) -> None:
    session = opened(store)
    act(session, {"do": "label", "rows": [5], "name": "dog"})
    session.undo(1, user="", client="a", seen_round=1)

    with pytest.raises(InvalidStepError, match="action 1 cannot be undone"):
        session.undo(1, user="", client="a", seen_round=2)
    session.undo(2, user="", client="a", seen_round=2)
    assert stored(store)[5] == "dog"


def test_the_last_writer_does_not_win_silently(store: EmbeddingStore) -> None:
    session = opened(store)
    act(session, {"do": "label", "rows": [4, 5], "name": "dog"}, client="a", seen=0)

    with pytest.raises(EditConflictError) as caught:
        act(session, {"do": "label", "rows": [5, 6], "name": "cat"}, client="b", seen=0)
    assert (caught.value.rows, caught.value.groups) == ([5], [])
    assert caught.value.theirs == [{"round": 1, "by": "me", "kind": "test"}]
    assert stored(store)[5] == "dog"
    # other images are no conflict, nor is what the page has been told of
    act(session, {"do": "label", "rows": [7], "name": "cat"}, client="b", seen=0)
    act(session, {"do": "label", "rows": [5], "name": "cat"}, client="b", seen=1)
    assert stored(store)[5] == "cat"


def test_undo_is_a_conflict_where_somebody_changed_the_same_since(store: EmbeddingStore) -> None:
    session = opened(store)
    act(session, {"do": "name", "group": 1, "name": "dog"}, client="a")
    act(session, {"do": "name", "group": 1, "name": "cat"}, client="b")

    with pytest.raises(EditConflictError):
        session.undo(1, user="", client="a", seen_round=1)


def test_a_full_disk_changes_nothing(store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(store)
    act(session, {"do": "label", "rows": [5], "name": "dog"})
    split = [{"do": "make", "group": 3, "name": "part"}, {"do": "group", "rows": [7], "group": 3}]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr("labelkit.store.commit.os.fsync", full)
        with pytest.raises(ResourceError, match="the disk is full"):
            act(session, {"do": "name", "group": 0, "name": "new name"}, {"do": "label", "rows": [5], "name": "cat"})
        with pytest.raises(ResourceError, match="the disk is full"):
            act(session, *split)
    before = stored(store)
    act(session, {"do": "label", "rows": [6], "name": "dog"})

    assert before[5] == "dog"
    assert "new name" not in read_result(store, "labels-1").arrays["class_names"]
    assert stored(store) == before | {6: "dog"}
    assert session.round == 2
    act(session, *split)
    assert session.work.group_names.count("part") == 1


def test_a_result_that_somebody_else_wrote_is_not_written_over(store: EmbeddingStore, tmp_path: Path) -> None:
    session = opened(store)
    act(session, {"do": "label", "rows": [5], "name": "dog"})
    table = tmp_path / "more.csv"
    table.write_text(f"path,label\n{store.sample_ids[7]},fish\n")
    label_images(LabelConfig(index=store.path, from_=table, result="labels-1", overwrite=True))

    with pytest.raises(Mismatch, match="was written by another program"):
        act(session, {"do": "label", "rows": [6], "name": "dog"})
    assert "fish" in stored(store).values()


def test_rounds_go_on_from_labels_that_were_there(store: EmbeddingStore, tmp_path: Path) -> None:
    table = tmp_path / "known.csv"
    table.write_text(f"path,label\n{store.sample_ids[7]},fish\n")
    label_images(LabelConfig(index=store.path, from_=table))
    session = opened(store, labels="labels-1")
    act(session, {"do": "label", "rows": [6], "name": "dog"})

    assert session.name == "labels-2"
    assert stored(store, "labels-2") == {0: store.class_names[0], 6: "dog", 7: "fish"}
    assert read_result(store, "labels-2").arrays["label_rounds"][[0, 6, 7]].tolist() == [0, 2, 1]
    # what the session wrote is what `label` adds to
    table.write_text(f"path,label\n{store.sample_ids[8]},fish\n")
    label_images(LabelConfig(index=store.path, from_=table, labels="labels-2", result="all"))
    assert stored(store, "all")[8] == "fish"


def test_a_second_server_is_told_to_use_the_link_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelkit.store.parts.LOCK_SECONDS", 0)
    with contextlib.ExitStack() as held:
        _lock_results_folder(held, tmp_path)
        with pytest.raises(BusyError, match="Use its link, or stop it with Ctrl-C") as caught:
            _lock_results_folder(held, tmp_path)

    assert "--out" not in str(caught.value)
