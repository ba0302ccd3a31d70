"""Files that other libraries wrote: each example is read as it was given to them.

`written/` holds what mosaicml-streaming 0.13.0 and webdataset 1.0.2 made of twelve examples.
"""

import io
import json
import os
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import default_collate

from downpour.base.errors import DownpourError, FileCorrupt, SpecError, StoreError
from downpour.data import TokenWindows
from downpour.learning.blocks import Blocks

WRITTEN = Path(__file__).parent / "written"
COUNT = 12


def pixels(number: int) -> NDArray[np.uint8]:
    """The picture of an example, [h, w, c]."""
    return np.full((2, 3, 3), [number, number + 1, number + 2], np.uint8)


def png(number: int) -> bytes:
    """The file of a picture."""
    file = io.BytesIO()
    Image.fromarray(pixels(number)).save(file, "PNG")
    return file.getvalue()


def table(begin: int = 0, end: int = COUNT) -> pa.Table:
    """Examples as Hugging Face `datasets` writes them."""
    numbers = range(begin, end)
    columns = {
        "image": [{"bytes": png(i), "path": None} for i in numbers],
        "label": [i % 3 for i in numbers],
        "ids": [[1, 2, i] for i in numbers],
        "matrix": [[[0.5, 1.0], [2.0, float(i)]] for i in numbers],
        "text": ["é" * i for i in numbers],
    }
    said = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["a"]}}}}
    return pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(said)})


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """Two files with row groups of four and three examples."""
    pq.write_table(table(0, 8), tmp_path / "train-0.parquet", row_group_size=4)
    pq.write_table(table(8), tmp_path / "train-1.parquet", row_group_size=3, compression="zstd")
    return tmp_path


def test_a_row_group_of_parquet_is_a_block(parquet: Path) -> None:
    """Images are decoded, lists of numbers are tensors, and torch makes a batch of it."""
    blocks = Blocks(parquet, files="train-*")
    assert blocks.block_ends.tolist() == [4, 8, 11, 12]
    for number, row in enumerate(blocks.__getitems__(range(COUNT))):
        assert np.array_equal(row["image"], pixels(number).transpose(2, 0, 1))
        assert row["ids"].tolist() == [1, 2, number]
        assert row["matrix"].tolist() == [[0.5, 1.0], [2.0, number]]
        assert (row["label"], row["text"]) == (number % 3, "é" * number)
    batch = default_collate(blocks.__getitems__([11, -2, 0]))
    assert batch["label"].tolist() == [2, 1, 0]
    assert batch["image"].shape == (3, 3, 2, 3)
    assert Blocks(parquet, columns={"image": "bytes"})[5]["image"] == png(5)
    with pytest.raises(IndexError):
        blocks[COUNT]


def test_only_the_bytes_of_wanted_columns_are_read(parquet: Path) -> None:
    """From the first of them to the last; what changes elsewhere in the row group is not seen."""
    rows, digests = [], []
    for _ in range(2):
        blocks = Blocks(parquet, files="train-0*", columns=["label", "ids"])
        rows.append([(row["label"], row["ids"].tolist()) for row in blocks.__getitems__(range(8))])
        digests.append(blocks.digests)
        group = pq.read_metadata(parquet / "train-0.parquet").row_group(1)
        content = bytearray((parquet / "train-0.parquet").read_bytes())
        for number in (0, 4):  # image and text
            content[group.column(number).data_page_offset] ^= 1
        (parquet / "train-0.parquet").write_bytes(content)
    assert rows[0] == rows[1] == [(number % 3, [1, 2, number]) for number in range(8)]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("name", ["mds", "mds-zstd"])
def test_a_shard_of_mds_is_a_block(name: str) -> None:
    """Every encoding that holds no code gives what was written; an image may be lossy."""
    blocks = Blocks(WRITTEN / name)
    assert blocks.block_ends.tolist() == [4, 8, 12]
    for i, row in enumerate(blocks.__getitems__(range(COUNT))):
        whole = torch.from_numpy(pixels(i).transpose(2, 0, 1).copy())
        assert torch.equal(row.pop("png"), whole)
        assert torch.equal(row.pop("pil"), whole)
        assert row.pop("jpeg").shape == whole.shape
        assert np.array_equal(row.pop("any"), np.full((i + 1, 2), i / 4))
        assert torch.equal(row.pop("fixed"), torch.full((2, 2), float(i)))
        assert torch.equal(row.pop("typed"), torch.arange(i + 1, dtype=torch.int16))
        assert row == {
            "number": i - 5,
            "text": "é" * i,
            "small": i,
            "real": i / 3,
            "json": {"i": [i]},
            "bytes": b"\0" * i,
            "big": 10**20 + i,
        }
    kinds = {"number": "number", "small": "integer", "any": "tensor", "text": "bytes"}
    row = Blocks(WRITTEN / name, columns=kinds)[1]
    assert (row["number"], row["small"], row["text"]) == (-4.0, 1, "é".encode())
    assert row["any"].shape == (2, 2)


def test_a_merged_index_names_no_shard_twice(tmp_path: Path) -> None:
    """As mosaicml-streaming merges them: the parts keep theirs, and examples count once."""
    shutil.copytree(WRITTEN / "mds", tmp_path / "part")
    merged = json.loads((tmp_path / "part" / "index.json").read_text())
    for shard in merged["shards"]:
        shard["raw_data"]["basename"] = f"part/{shard['raw_data']['basename']}"
    (tmp_path / "index.json").write_text(json.dumps(merged))
    assert Blocks(tmp_path).block_ends.tolist() == [4, 8, 12]


def test_members_of_a_tar_with_one_key_are_an_example(tmp_path: Path) -> None:
    """The second opening finds the blocks in a note, which a changed tar makes void."""
    shutil.copytree(WRITTEN / "tars", tmp_path / "tars")
    for _ in range(2):
        blocks = Blocks(tmp_path / "tars")
        for i, row in enumerate(blocks.__getitems__(range(COUNT))):
            assert np.array_equal(row.pop("png"), pixels(i).transpose(2, 0, 1))
            assert torch.equal(row.pop("npy"), torch.full((2, 2), i))
            assert row == {"cls": i % 3, "json": {"i": i}, "txt": "é" * i}
    note = tmp_path / "tars" / ".01.tar.blocks"
    assert json.loads(note.read_text())["blocks"][0][2] == 5
    shutil.copy(WRITTEN / "tars" / "00.tar", tmp_path / "tars" / "01.tar")
    assert len(Blocks(tmp_path / "tars")) == 14
    with pytest.raises(SpecError, match=r"00\.tar, block 0, row 2'?: columns = 'jpg': there are"):
        Blocks(tmp_path / "tars", columns=["jpg"])[2]


def test_large_tars_are_cut_between_examples(tmp_path: Path, monkeypatch: Any) -> None:
    """However small a block is, it holds whole examples, and all of them."""
    shutil.copytree(WRITTEN / "tars", tmp_path / "tars")
    monkeypatch.setattr("downpour.learning.blocks.formats._TAR_BYTES", 1)
    blocks = Blocks(tmp_path / "tars", columns=["cls"])
    assert blocks.block_ends.tolist() == list(range(1, COUNT + 1))
    assert [row["cls"] for row in blocks.__getitems__(range(COUNT))] == [0, 1, 2] * 4


def test_tokens_are_windows_and_other_files_are_examples(tmp_path: Path, monkeypatch: Any) -> None:
    """Windows are those of `TokenWindows`, wherever a block ends."""
    np.arange(500, dtype=np.uint16).tofile(tmp_path / "train.bin")
    monkeypatch.setattr("downpour.learning.blocks.formats._TOKENS_BYTES", 7 * 2 * 10)
    windows, blocks = TokenWindows(tmp_path / "train.bin", 7), Blocks(tmp_path, length=7)
    assert len(blocks.block_ends) == 8
    for number, other in enumerate(blocks.__getitems__(range(len(windows)))):
        assert all(map(torch.equal, windows[number], other))
    (tmp_path / "b.txt").write_text("é")
    (tmp_path / "a.png").write_bytes(png(3))
    first, second = read_all(tmp_path, "*.[pt]*")
    assert (first["path"], second) == ("a.png", {"path": "b.txt", "content": "é"})
    assert np.array_equal(first["content"], pixels(3).transpose(2, 0, 1))


def test_a_batch_of_many_blocks_takes_the_memory_of_one(tmp_path: Path, monkeypatch: Any) -> None:
    """As in a random order over large blocks; each is closed before the next is opened."""
    np.zeros(1 << 20, np.uint16).tofile(tmp_path / "train.bin")
    monkeypatch.setattr("downpour.learning.blocks.formats._TOKENS_BYTES", 1 << 17)
    blocks = Blocks(tmp_path, length=8, memory_megabytes=0)
    assert len(blocks.block_ends) == 16
    tracemalloc.start()
    blocks.__getitems__((blocks.block_ends - 1).tolist())
    assert tracemalloc.get_traced_memory()[1] < 4 << 17
    tracemalloc.stop()


def cut(path: Path) -> None:
    """End a file in its middle, between two parts of 512 bytes if it has several."""
    size = path.stat().st_size // 2
    path.write_bytes(path.read_bytes()[: size - size % 512 or size])


def overwrite(path: Path, offset: int) -> None:
    """Change bytes of a file behind a reader's back: size and time of change stay."""
    content = bytearray(path.read_bytes())
    content[offset : offset + 8] = b"\xff" * 8
    path.write_bytes(content)


def first_example(folder: Path) -> int:
    """Return where the sizes of the second shard's first example begin."""
    return int(np.fromfile(folder / "shard.00001.mds", np.uint32)[1])


def other_columns(folder: Path) -> None:
    """Give one file other columns."""
    pq.write_table(table(8).drop_columns(["ids"]), folder / "train-1.parquet")


def flipped(folder: Path) -> None:
    """Change labels of a file whose writer has added checksums."""
    path = folder / "train-1.parquet"
    pq.write_table(
        table(8), path, use_dictionary=False, compression="none", write_page_checksum=True
    )
    labels = pq.read_metadata(path).row_group(0).column(2)
    overwrite(path, labels.data_page_offset + labels.total_compressed_size - 8)


def misnamed(folder: Path) -> None:
    """Let the name of a column be no text."""
    content = bytearray((folder / "train-1.parquet").read_bytes())
    content[content.rindex(b"matrix")] = 0xFF
    (folder / "train-1.parquet").write_bytes(content)


def undecodable(folder: Path) -> None:
    """Let the third picture be no picture."""
    rows = table().to_pylist()
    rows[2]["image"]["bytes"] = b"no picture"
    pq.write_table(pa.Table.from_pylist(rows, schema=table().schema), folder / "train-0.parquet")


def edit(index: Path, old: str, new: str) -> None:
    """Let it say something else of each shard."""
    index.write_text(index.read_text().replace(old, new))


def member(tar: Path, number: int) -> tarfile.TarInfo:
    """Return a member of a tar."""
    with tarfile.open(tar) as opened:
        return opened.getmembers()[number]


def append(tar: Path, kind: bytes) -> None:
    """Repeat a tar's last member, perhaps as a link."""
    last = member(tar, -1)
    last.type, last.size = kind, 0
    with tarfile.open(tar, "a") as opened:
        opened.addfile(last)


BAD: list[tuple[str, Callable[[Path], object], str]] = [
    ("pq", lambda at: cut(at / "train-1.parquet"), r"train-1\.parquet'?: is no Parquet file"),
    ("pq", other_columns, r"train-1\.parquet'?: its columns differ from those of train-0"),
    ("pq", flipped, r"train-1\.parquet'?: row group 0: .*checksum"),
    ("pq", misnamed, r"train-1\.parquet'?: is no Parquet file: 'utf-8'"),
    ("pq", undecodable, r"train-0\.parquet, block 0, row 2: cannot be decoded"),
    ("mds", lambda at: (at / "shard.00001.mds").unlink(), r"names shard\.00001\.mds, which is m"),
    ("mds", lambda at: cut(at / "shard.00001.mds"), "but index.json says 4402"),
    ("mds", lambda at: cut(at / "index.json"), "is no index of MDS"),
    ("mds", lambda at: overwrite(at / "shard.00001.mds", 0), "does not hold 4 examples"),
    ("mds", lambda at: edit(at / "index.json", ": 4,", ": 4000,"), "does not hold 4000 examples"),
    ("mds", lambda at: edit(at / "index.json", ": 4,", ": 50,"), "does not hold 50 examples"),
    ("mds", lambda at: edit(at / "index.json", ": 4,", ": -4,"), "does not hold -4 examples"),
    (
        "mds",
        lambda at: edit(at / "index.json", "_sizes", ""),
        "no index of MDS: KeyError 'column_s",
    ),
    ("mds", lambda at: overwrite(at / "shard.00001.mds", first_example(at)), "its columns have"),
    ("tars", lambda at: cut(at / "01.tar"), r"01\.tar'?: is cut"),
    (
        "tars",
        lambda at: overwrite(at / "01.tar", member(at / "01.tar", 7).offset),
        r"01\.tar'?: is damaged: no member begins at byte \d+$",
    ),
    ("tars", lambda at: append(at / "01.tar", tarfile.REGTYPE), r"01\.tar'?: has \S+ twice"),
    ("tars", lambda at: append(at / "01.tar", tarfile.LNKTYPE), r"01\.tar'?: \S+ is sparse or a"),
    ("pickled", lambda _: None, "column x is encoded as pkl, which is pickled"),
    (
        "tars",
        lambda at: (at / "x.tar").write_bytes(b"x" * 1024),
        r"x\.tar'?: is cut, or no tar file",
    ),
]


def read_all(folder: Path, files: str) -> list[Any]:
    """Read all examples of a folder."""
    blocks = Blocks(folder, files=files)
    return blocks.__getitems__(range(len(blocks)))


@pytest.mark.parametrize(("kind", "damage", "said"), BAD)
def test_damage_is_named_in_one_line(
    kind: str, damage: Callable[[Path], object], said: str, tmp_path: Path, parquet: Path
) -> None:
    """A missing, cut, overwritten or pickled file, and one with other columns."""
    folder = parquet if kind == "pq" else tmp_path / kind
    if kind != "pq":
        shutil.copytree(WRITTEN / kind, folder)
    damage(folder)
    with pytest.raises(DownpourError, match=said) as raised:
        read_all(folder, "*" if kind != "pq" else "train*")
    assert "\n" not in str(raised.value)


def test_a_note_that_lies_is_named(tmp_path: Path) -> None:
    """It says that a tar has an example more than it has."""
    shutil.copytree(WRITTEN / "tars", tmp_path / "tars")
    Blocks(tmp_path / "tars")
    note = tmp_path / "tars" / ".00.tar.blocks"
    said = json.loads(note.read_text())
    said["blocks"][0][2] += 1
    note.write_text(json.dumps(said))
    with pytest.raises(FileCorrupt, match=r"its note says 8: remove \.00\.tar\.blocks"):
        Blocks(tmp_path / "tars")[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"files": "*.mp4"}, "no file there matches files = '[*].mp4'"),
        ({"columns": ["colour"]}, "columns = 'colour': there are any, "),
        ({"columns": {"text": "video"}}, "must be one of bytes, image, "),
        ({"length": 0}, "must be at least 1"),
        ({"length": 8, "dtype": "word"}, "must name a type of integers"),
        ({"length": 8, "dtype": "float32"}, "must name a type of integers"),
    ],
)
def test_a_mistake_is_refused(options: dict[str, Any], said: str) -> None:
    """The line names the argument and what it accepts."""
    with pytest.raises(SpecError, match=said):
        Blocks(WRITTEN / "mds", **options)
    with pytest.raises(SpecError, match="address = 'nowhere': no such file or folder"):
        Blocks("nowhere")


def test_other_files_beside_containers_and_other_names_of_columns_are_refused(
    tmp_path: Path,
) -> None:
    """They would count as examples, or as rows without columns."""
    shutil.copytree(WRITTEN / "tars", tmp_path / "tars")
    (tmp_path / "tars" / "README.md").write_text("read me")
    with pytest.raises(SpecError, match=r"00\.tar'?: holds many examples"):
        Blocks(tmp_path / "tars")
    (tmp_path / "tars" / "a.tar.gz").touch()
    with pytest.raises(SpecError, match=r"a\.tar\.gz'?: a compressed tar cannot be read by index"):
        Blocks(tmp_path / "tars", files="*.gz")
    for name in ("a", "b"):
        shutil.copytree(WRITTEN / "mds", tmp_path / "mds" / name)
    index = tmp_path / "mds" / "b" / "index.json"
    index.write_text(index.read_text().replace('"number"', '"count"'))
    with pytest.raises(SpecError, match="its columns differ"):
        Blocks(tmp_path / "mds")


def test_values_without_a_number_are_no_damage_unseen(tmp_path: Path) -> None:
    """An empty list is empty; a null number, or one of more than 8 bits in a picture, is told."""
    kind = pa.list_(pa.list_(pa.int64()))
    rows = [[], [[1, 2]], [[None]], None]
    pq.write_table(pa.table({"boxes": pa.array(rows, kind)}), tmp_path / "a.parquet")
    blocks = Blocks(tmp_path)
    assert len(blocks[0]["boxes"]) == 0
    assert blocks[1]["boxes"].tolist() == [[1, 2]]
    for row in (2, 3):
        with pytest.raises(FileCorrupt, match=f"row {row}: cannot be decoded"):
            blocks[row]
    Image.fromarray(np.full((2, 2), 30_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(FileCorrupt, match="more than 8 bits"):
        Blocks(tmp_path, files="*.png")[0]


def test_a_block_that_differs_from_its_first_reading_is_named(tmp_path: Path) -> None:
    """Although the file has the same size and time; what was read is known by its digest."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"1234")
    (tmp_path / "c").symlink_to(tmp_path / "nowhere")
    blocks = Blocks(tmp_path, memory_megabytes=0)
    assert [blocks[index] for index in (0, 1)]
    assert [*blocks.digests] == ["a, block 0", "b, block 1"]
    assert len(set(blocks.digests.values())) == 1
    was = (tmp_path / "a").stat()
    (tmp_path / "a").write_bytes(b"4321")
    os.utime(tmp_path / "a", ns=(was.st_atime_ns, was.st_mtime_ns))
    with pytest.raises(FileCorrupt, match="a, block 0: has changed since it was first read"):
        blocks[0]


def test_a_file_that_is_written_while_it_is_read_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    """What was read may be parts of two versions."""

    class Shared(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            content = super().read(size)
            os.truncate(tmp_path / "a", 9)
            return content

    (tmp_path / "a").write_bytes(b"1234")
    blocks = Blocks(tmp_path)
    monkeypatch.setattr(Path, "open", lambda path, _: Shared(path))
    with pytest.raises(FileCorrupt, match="a: has changed since it was opened"):
        blocks[0]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    """Its files would be missing, unseen."""
    (tmp_path / "a").write_bytes(b"1234")
    monkeypatch.setattr("os.scandir", Mock(side_effect=PermissionError(13, "denied", "inside")))
    with pytest.raises(StoreError, match="inside: cannot be listed: denied"):
        Blocks(tmp_path)
