"""Step 1 of 3, on a CPU: verses -> chapters -> a byte-level BPE vocabulary and the token ids of three splits.

    python prepare.py verses.txt build

`verses.txt` has one verse a line, "Ge1:1 In the beginning ...", as the Debian package `bible-kjv` prints it.
Writes `build/tokenizer.json` and `build/tokens.npz`. Needs numpy and tokenizers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
SEPARATOR = "<|endoftext|>"  # opens every chapter: both the first and the last token of a text
# Of every 40 chapters one selects the weights and one measures them; neither is trained on.
EVERY, VALID, TEST = 40, 7, 27

BOOKS = {
    "Ge": "Genesis", "Exo": "Exodus", "Lev": "Leviticus", "Num": "Numbers", "Deu": "Deuteronomy", "Josh": "Joshua",
    "Jdgs": "Judges", "Ruth": "Ruth", "1Sm": "1 Samuel", "2Sm": "2 Samuel", "1Ki": "1 Kings", "2Ki": "2 Kings",
    "1Chr": "1 Chronicles", "2Chr": "2 Chronicles", "Ezra": "Ezra", "Neh": "Nehemiah", "Est": "Esther", "Job": "Job",
    "Psa": "Psalms", "Prv": "Proverbs", "Eccl": "Ecclesiastes", "SSol": "Song of Solomon", "Isa": "Isaiah",
    "Jer": "Jeremiah", "Lam": "Lamentations", "Eze": "Ezekiel", "Dan": "Daniel", "Hos": "Hosea", "Joel": "Joel",
    "Amos": "Amos", "Obad": "Obadiah", "Jonah": "Jonah", "Mic": "Micah", "Nahum": "Nahum", "Hab": "Habakkuk",
    "Zep": "Zephaniah", "Hag": "Haggai", "Zec": "Zechariah", "Mal": "Malachi", "Mat": "Matthew", "Mark": "Mark",
    "Luke": "Luke", "John": "John", "Acts": "Acts", "Rom": "Romans", "1Cor": "1 Corinthians", "2Cor": "2 Corinthians",
    "Gal": "Galatians", "Eph": "Ephesians", "Phi": "Philippians", "Col": "Colossians", "1Th": "1 Thessalonians",
    "2Th": "2 Thessalonians", "1Tim": "1 Timothy", "2Tim": "2 Timothy", "Titus": "Titus", "Phmn": "Philemon",
    "Heb": "Hebrews", "Jas": "James", "1Pet": "1 Peter", "2Pet": "2 Peter", "1Jn": "1 John", "2Jn": "2 John",
    "3Jn": "3 John", "Jude": "Jude", "Rev": "Revelation",
}  # fmt: skip
VERSE = re.compile(r"(\d?[A-Za-z]+)(\d+):\d+ (.+)")


def chapters(lines: list[str]) -> Iterator[str]:
    """Each chapter: its book and number on the first line, then one verse a line."""
    verses: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if found := VERSE.fullmatch(line.strip()):
            book, chapter, text = found.groups()
            verses.setdefault((book, chapter), []).append(text.strip())
        elif line.strip():
            raise SystemExit(f"not a verse: {line!r}")
    for (book, chapter), texts in verses.items():
        yield f"{BOOKS[book]} {chapter}\n" + "\n".join(texts) + "\n"


def train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE as GPT-2's: the separator, 256 bytes, then merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[SEPARATOR], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SEPARATOR} $A", special_tokens=[(SEPARATOR, tokenizer.token_to_id(SEPARATOR))]
    )
    return tokenizer


def main(verses: Path, out: Path) -> None:
    vocabulary = json.loads((HERE / "config.json").read_text())["vocab_size"]
    texts = list(chapters(verses.read_text().splitlines()))
    names = {VALID: "valid", TEST: "test"}
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for number, text in enumerate(texts):
        splits[names.get(number % EVERY, "train")].append(text)
    tokenizer = train_tokenizer(splits["train"], vocabulary)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    ids = {
        name: np.array([i for t in part for i in tokenizer.encode(t).ids], np.uint16) for name, part in splits.items()
    }
    np.savez_compressed(out / "tokens.npz", **ids)
    for name, part in splits.items():
        size = sum(map(len, part))
        print(f"{name}: {len(part)} chapters, {size} bytes, {ids[name].size} tokens ({size / ids[name].size:.2f} each)")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
