"""CLIP's tokenizer for plain English captions, from the merge table the program itself uses."""

import pathlib
import re
import struct

START, END, LENGTH = 49406, 49407, 77
TABLE = pathlib.Path(__file__).resolve().parents[2] / "crates/models/src/text/clip_merges.bin"
PIECE = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d|[a-z]+|[0-9]|[^\sa-z0-9]+")


class Tokenizer:
    def __init__(self) -> None:
        data = TABLE.read_bytes()
        pairs = [struct.unpack_from("<HH", data, i) for i in range(0, len(data), 4)]
        self.ranks = {pair: i for i, pair in enumerate(pairs)}
        printable = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        order = printable + [b for b in range(256) if b not in printable]
        self.byte = {b: i for i, b in enumerate(order)}
        self.known: dict[str, list[int]] = {}

    def word(self, text: str) -> list[int]:
        if text not in self.known:
            ids = [self.byte[b] for b in text.encode()]
            ids[-1] += 256
            while len(ids) > 1:
                rank, at = min((self.ranks.get(p, 1 << 30), i) for i, p in enumerate(zip(ids, ids[1:])))
                if rank == 1 << 30:
                    break
                ids[at : at + 2] = [512 + rank]
            self.known[text] = ids
        return self.known[text]

    def __call__(self, text: str) -> list[int]:
        """Token ids without start and end."""
        return [i for piece in PIECE.findall(text.lower()) for i in self.word(piece)]
