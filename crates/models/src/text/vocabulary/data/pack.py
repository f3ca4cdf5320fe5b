"""Packs the vocabularies of /work/shared/data (see README.md beside this file) into what the program embeds.

usage: python3 pack.py FOLDER, where FOLDER has qwen2_merges.txt, t5_tokenizer.json and umt5_tokenizer.json.gz
"""
import base64, gzip, json, struct, sys, zlib
from pathlib import Path

here, source = Path(__file__).parent, Path(sys.argv[1])


def write(name, data):
    packed = zlib.compress(data, 9)
    (here / name).write_bytes(packed)
    print(name, len(data), "->", len(packed))


def merges(lines):
    printable = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    pairs = [tuple(line.split(" ")) for line in lines]
    ids = {name: i for i, name in enumerate(names)}
    table = []
    for left, right in pairs:
        table.append((ids[left], ids[right]))
        assert left + right not in ids
        ids[left + right] = len(ids)
    # The three bytes of all left tokens, lowest first, then those of the right ones: alike next to alike.
    columns = [bytes((pair[side] >> shift) & 255 for pair in table) for side in (0, 1) for shift in (0, 8, 16)]
    return struct.pack("<I", len(table)) + b"".join(columns)


def unigram(model, charsmap):
    pieces = [piece.encode() for piece, _ in model["vocab"]]
    scores = [score for _, score in model["vocab"]]
    bits = struct.pack(f"<{len(scores)}f", *scores)
    columns = [bits[i::4] for i in range(4)]
    head = struct.pack("<III", len(pieces), model["unk_id"], len(charsmap))
    return head + b"".join(columns) + bytes(map(len, pieces)) + b"".join(pieces) + charsmap


lines = (source / "qwen2_merges.txt").read_text(encoding="utf-8").split("\n")
write("qwen2.merges.z", merges([line for line in lines if line and not line.startswith("#version")]))
t5 = json.loads((source / "t5_tokenizer.json").read_text(encoding="utf-8"))
write("t5.pieces.z", unigram(t5["model"], base64.b64decode(t5["normalizer"]["normalizers"][0]["precompiled_charsmap"])))
umt5 = json.loads(gzip.open(source / "umt5_tokenizer.json.gz").read())
write("umt5.pieces.z", unigram(umt5["model"], b""))
