"""Keep a copy of a bucket in a folder: `python -m tests.chaos.bucket_copy URL FOLDER [--once]`.

It runs on the host that serves the bucket, so no fault of another host's link reaches it.
"""

import sys
import time
from contextlib import suppress
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store, from_url


def main(url: str, folder: Path, *, once: bool) -> None:
    """Copy new objects and remove those that are gone, again and again."""
    store = from_url(url, client_options={"allow_http": True})
    assert isinstance(store, S3Store)
    tags = dict[str, str]()
    while True:
        with suppress(BaseError, OSError):  # removed since it was listed; the next look tells
            _follow(store, folder, tags)
            if once:
                return
        time.sleep(0.1)


def _follow(store: S3Store, folder: Path, tags: dict[str, str]) -> None:
    found = {one["path"]: str(one["e_tag"]) for one in store.list().collect()}
    for key in set(tags) - set(found):
        (folder / key).unlink(missing_ok=True)
        del tags[key]
    for key, tag in found.items():
        if tags.get(key) != tag:
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            made = folder / ".made"
            made.write_bytes(bytes(obstore.get(store, key).bytes()))
            made.rename(path)
            tags[key] = tag


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), once="--once" in sys.argv)
