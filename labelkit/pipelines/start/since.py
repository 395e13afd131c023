"""What is different since the last call of ``start`` that had answers: which labels, and how right the guesses were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labelkit.store.embeddings import EmbeddingStore

CHANGED = "changed.csv"
COLUMNS = ("path", "label_before", "kind_before", "label", "kind", "confidence")
"""Of ``changed.csv``: photos whose label or kind is another one; the last three are those of ``labels.csv``."""

Answer = tuple[str, str, str]
"""Label, kind and confidence of a photo."""

_ANSWERED = ("known", "new")


@dataclass(frozen=True)
class Since:
    """What is different.

    Attributes:
        photos: that were there then and are there now.
        changed: rows of ``changed.csv``, in the order of the store.
        other_label: photos with another label than they had, or another guess.
        now_answered: photos that were unsure and are answered.
        now_unsure: photos that were answered and are unsure.
        labeled: photos that got a label since, of a class that had one then.
        guessed_right: how many of these had it as their answer or guess.
    """

    photos: int
    changed: list[tuple[str, ...]]
    other_label: int
    now_answered: int
    now_unsure: int
    labeled: int
    guessed_right: int

    def to_json(self) -> dict[str, int]:
        """Return the counts."""
        names = ("photos", "other_label", "now_answered", "now_unsure", "labeled", "guessed_right")
        return {name: getattr(self, name) for name in names}


def compare_answers(
    store: EmbeddingStore, answers: Sequence[Answer], store_then: EmbeddingStore, answers_then: Sequence[Answer]
) -> Since:
    """Compare the answers of two calls, photo by photo, by the bytes of their files.

    Args:
        store: of the photos now.
        answers: of its n rows.
        store_then: of the photos then.
        answers_then: of its m rows.
    """
    digests_then = [digest.tobytes() for digest in store_then.sha256]
    # of copies, the one with the same path; the first of others
    then = {(digest, ""): answer for digest, answer in zip(reversed(digests_then), reversed(answers_then), strict=True)}
    then |= dict(zip(zip(digests_then, store_then.sample_ids, strict=True), answers_then, strict=True))
    labeled_then = {label for label, kind, _ in answers_then if kind == "given"}
    both: list[tuple[str, Answer, Answer]] = []
    for digest, name, now in zip(store.sha256, store.sample_ids, answers, strict=True):
        before = then.get((digest.tobytes(), name)) or then.get((digest.tobytes(), ""))
        if before is not None:
            both.append((name, before, now))
    named = [
        (before[0], now[0])
        for _, before, now in both
        if now[1] == "given" and before[1] != "given" and now[0] in labeled_then
    ]
    return Since(
        photos=len(both),
        changed=[(name, *before[:2], *now) for name, before, now in both if before[:2] != now[:2]],
        other_label=sum(before[0] != now[0] for _, before, now in both),
        now_answered=sum(before[1] == "unsure" and now[1] in _ANSWERED for _, before, now in both),
        now_unsure=sum(before[1] in _ANSWERED and now[1] == "unsure" for _, before, now in both),
        labeled=len(named),
        guessed_right=sum(guess == label for guess, label in named),
    )
