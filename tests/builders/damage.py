"""Bytes as a bad link, a bug or a forger leaves them. Knows nothing of what they say."""

from __future__ import annotations

import random


def damaged(frame: bytes, rng: random.Random) -> bytes:
    """`frame` with something flipped, replaced, cut out, put in, cut off or repeated; never as it
    was. It is not empty.
    """
    while True:
        begin, end = sorted(rng.randrange(len(frame) + 1) for _ in range(2))
        other = rng.choice(
            [
                _flipped(frame, rng),
                frame[:begin] + rng.randbytes(end - begin) + frame[end:],
                frame[:begin] + frame[end:],
                frame[:begin] + rng.randbytes(rng.randint(1, 9)) + frame[begin:],
                frame[:begin],
                frame[:end] + frame[begin:],
            ]
        )
        if other != frame:
            return other


def _flipped(frame: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(frame))
    return frame[:place] + bytes([frame[place] ^ 1 << rng.randrange(8)]) + frame[place + 1 :]
