"""Changes to the bytes of a file, by a number alone, so that a finding can be repeated."""

from __future__ import annotations

import random
import struct

_EXTREMES = (0, 1, 0x7F, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def mutated(data: bytes, seed: int) -> bytes:
    """Return a changed copy: bits, bytes, runs, sizes, blocks moved, ends cut."""
    chance = random.Random(seed)
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        _change(changed, chance)
    return bytes(changed)


def _change(data: bytearray, chance: random.Random) -> None:
    # structure lies in the first pages of these files, most of the rest is numbers
    end = len(data) if chance.random() < 0.4 else min(len(data), 6000)
    at = chance.randrange(max(1, end))
    kind = chance.randrange(8)
    if kind <= 1:
        data[at : at + 1] = bytes([data[at] ^ (1 << chance.randrange(8))]) if at < len(data) else b""
    elif kind <= 3:
        data[at : at + 1] = bytes([chance.randrange(256)])
    elif kind == 4:
        data[at : at + 8] = struct.pack("<Q", chance.choice(_EXTREMES))[: len(data) - at]
    elif kind == 5:
        size = chance.randrange(1, 64)
        data[at : at + size] = bytes([chance.choice((0, 0xFF))]) * min(size, len(data) - at)
    elif kind == 6:
        other, size = chance.randrange(max(1, end)), chance.choice((4, 8, 64, 512))
        block = data[other : other + size]
        data[at : at + len(block)] = block
    elif chance.random() < 0.5:
        del data[at:]
    else:
        del data[at : at + chance.randrange(1, 16)]
