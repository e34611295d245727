"""The head's store of code and input files, by digest."""

import hashlib
from pathlib import Path

import pytest

from launcher.blobs import BlobStore
from launcher.errors import FailureError

DATA = b"what a file holds"
DIGEST = hashlib.sha256(DATA).hexdigest()


def test_a_file_is_stored_once_under_its_digest(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "new" / "blobs")
    assert store.missing([DIGEST, "other"]) == [DIGEST, "other"]
    store.put(DIGEST, DATA, is_file=True)
    store.put(DIGEST, DATA, is_file=True)
    assert store.missing([DIGEST, "other"]) == ["other"]
    assert store.get(DIGEST) == DATA
    assert [path.name for path in store.folder.iterdir()] == [DIGEST]


def test_another_store_in_the_same_folder_has_it_too(tmp_path: Path) -> None:
    BlobStore(tmp_path).put(DIGEST, DATA, is_file=True)
    assert BlobStore(tmp_path).missing([DIGEST]) == []


def test_a_file_that_was_damaged_on_the_way_is_refused(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    with pytest.raises(FailureError, match=f"arrived with sha256 [0-9a-f]{{64}}, expected {DIGEST}: submit again"):
        store.put(DIGEST, DATA[:-1], is_file=True)
    assert store.missing([DIGEST]) == [DIGEST]
    assert list(tmp_path.iterdir()) == []


def test_the_digest_of_an_archive_is_that_of_its_files(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    store.put("d" * 64, b"archive", is_file=False)  # checked where it is unpacked
    assert store.get("d" * 64) == b"archive"
