"""What is on disk, and what reading does about damage."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attachment_pictures import MakeStore, encoded, noise, opened, shade

from dsh.base.files import Disk, writing_through
from dsh.capability.attachments import (
    AttachmentError,
    AttachmentStore,
    ImageInput,
    RequestImagePolicy,
    is_image_admission_error,
)

PNG = "image/png"
PICTURE = encoded(shade(64, 48))


@pytest.fixture
def v1(attachments_home: Path) -> Path:
    return attachments_home / "attachments" / "v1"


def all_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def object_path(v1: Path, ref: Any) -> Path:
    digest = ref["attachmentId"].removeprefix("sha256:")
    return v1 / "objects" / digest[:2] / digest


async def failure(store: AttachmentStore, ref: Any) -> str:
    with pytest.raises(AttachmentError) as caught:
        await store.read_image(ref)
    assert not is_image_admission_error(caught.value)
    return caught.value.code


async def test_an_object_is_named_by_its_digest_and_private(
    store: AttachmentStore, v1: Path
) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    path = object_path(v1, ref)
    assert ref["attachmentId"] == f"sha256:{hashlib.sha256(PICTURE).hexdigest()}"
    assert all_files(v1) == [path]
    assert path.read_bytes() == PICTURE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_equal_bytes_are_stored_once(store: AttachmentStore, v1: Path) -> None:
    image = ImageInput(PICTURE, PNG)
    refs = await asyncio.gather(*(store.save_images([image, image]) for _ in range(5)))
    assert {ref["attachmentId"] for pair in refs for ref in pair} == {
        f"sha256:{hashlib.sha256(PICTURE).hexdigest()}"
    }
    assert len(all_files(v1)) == 1


async def test_storing_bytes_again_heals_a_damaged_object(store: AttachmentStore, v1: Path) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    object_path(v1, ref).write_bytes(b"x" * len(PICTURE))
    assert await failure(store, ref) == "ATTACHMENT_CORRUPT"
    await store.save_image(ImageInput(PICTURE, PNG))
    assert await store.read_image(ref) == PICTURE
    assert len(all_files(v1)) == 1


@pytest.mark.parametrize("damage", [b"", PICTURE[:-1], PICTURE + b"x", PICTURE[:-1] + b"x"])
async def test_damaged_bytes_are_never_returned(
    store: AttachmentStore, v1: Path, damage: bytes
) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    object_path(v1, ref).write_bytes(damage)
    assert await failure(store, ref) == "ATTACHMENT_CORRUPT"


@pytest.mark.parametrize(
    "claim", [{"width": 63}, {"height": 1}, {"mediaType": "image/jpeg"}, {"bytes": 10}]
)
async def test_facts_that_differ_from_the_bytes_are_corrupt(
    store: AttachmentStore, claim: dict[str, Any]
) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    assert await failure(store, {**ref, **claim}) == "ATTACHMENT_CORRUPT"


@pytest.mark.parametrize(
    "claim",
    [
        {"attachmentId": "sha256:../../../etc/passwd"},
        {"attachmentId": "sha256:" + "A" * 64},
        {"attachmentId": 7},
        {"attachmentId": "sha256:" + "a" * 64 + "\n"},
        {"bytes": True},
        {"bytes": -1},
        {"width": 0},
        {"mediaType": None},
    ],
)
async def test_what_has_not_the_shape_of_a_reference_is_refused(
    store: AttachmentStore, claim: dict[str, Any]
) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    assert await failure(store, {**ref, **claim}) == "INVALID_ATTACHMENT_REF"
    with pytest.raises(AttachmentError) as caught:
        await store.read_image_request({**ref, **claim}, policy(max_pixels=10))
    assert caught.value.code == "INVALID_ATTACHMENT_REF"


async def test_an_absent_object_and_an_unreadable_one_have_codes_of_their_own(
    store: AttachmentStore, v1: Path
) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    path = object_path(v1, ref)
    path.unlink()
    assert await failure(store, ref) == "ATTACHMENT_NOT_FOUND"
    path.symlink_to("/etc/hostname")
    assert await failure(store, ref) == "ATTACHMENT_READ_FAILED"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
async def test_what_is_no_file_is_refused_and_leaves_no_descriptor_open(
    store: AttachmentStore, v1: Path, make: Callable[[Path], None]
) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    path = object_path(v1, ref)
    path.unlink()
    make(path)
    assert await failure(store, ref) == "ATTACHMENT_READ_FAILED"
    before = len(os.listdir("/proc/self/fd"))
    assert await failure(store, ref) == "ATTACHMENT_READ_FAILED"
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def in_the_way(attachments_home: Path) -> Path:
    attachments_home.write_text("not a folder")
    return attachments_home


async def test_a_folder_that_cannot_be_written_is_told_with_its_reason(
    store: AttachmentStore, in_the_way: Path
) -> None:
    with pytest.raises(AttachmentError, match=r"Not a directory|File exists") as caught:
        await store.save_image(ImageInput(PICTURE, PNG))
    assert caught.value.code == "ATTACHMENT_WRITE_FAILED"
    os.unlink(in_the_way)
    await store.save_image(ImageInput(PICTURE, PNG))


@pytest.mark.parametrize("call", ["fsync", "write", "link"])
async def test_a_write_that_fails_leaves_nothing_visible(
    store: AttachmentStore, v1: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(AttachmentError, match="Input/output error") as caught:
            await store.save_image(ImageInput(PICTURE, PNG))
    assert caught.value.code == "ATTACHMENT_WRITE_FAILED"
    assert all_files(v1) == []
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    assert await store.read_image(ref) == PICTURE


class Recorder(Disk):
    """Keeps the order of what is asked of the disk."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def write(self, fd: int, data: memoryview) -> int:
        self.calls.append("write")
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        self.calls.append("sync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        super().sync(fd)

    def link(self, source: Path, target: Path) -> None:
        self.calls.append("link")
        super().link(source, target)


async def test_the_bytes_are_durable_before_their_name_and_the_name_before_the_reference(
    store: AttachmentStore,
) -> None:
    with writing_through(recorder := Recorder()):
        await store.save_image(ImageInput(PICTURE, PNG))
        tail = recorder.calls[recorder.calls.index("write") :]
        assert tail == ["write", "sync file", "link", "sync folder"]
        recorder.calls.clear()
        await store.save_image(ImageInput(PICTURE, PNG))
        assert recorder.calls == ["sync folder"]


async def test_a_file_system_without_links_is_enough(
    store: AttachmentStore, v1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    assert all_files(v1) == [object_path(v1, ref)]
    assert await store.read_image(ref) == PICTURE


async def test_stored_images_stay_readable_when_limits_get_stricter(
    make_store: MakeStore,
) -> None:
    store = await make_store()
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    strict = await make_store(
        maxImageBytes=1, maxImagePixels=1, maxImageDimension=1, normalizedImageMaxBytes=1
    )
    assert await strict.read_image(ref) == PICTURE


async def test_what_killed_writers_left_is_removed_after_a_day(
    store: AttachmentStore, v1: Path
) -> None:
    staging = v1 / "tmp"
    staging.mkdir(parents=True)
    old, young = staging / "1-old", staging / "2-young"
    for path in (old, young):
        path.write_bytes(b"half")
    day_before = time.time() - 25 * 3600
    os.utime(old, (day_before, day_before))
    await store.save_image(ImageInput(PICTURE, PNG))
    assert [path.name for path in staging.iterdir()] == ["2-young"]


# request images


def policy(**limits: int) -> RequestImagePolicy:
    return RequestImagePolicy(**{"max_pixels": 10**9, "max_bytes": 10**9, **limits})


def cached(v1: Path) -> list[Path]:
    return all_files(v1 / "request-images")


async def test_an_image_that_fits_is_sent_as_it_is_stored(store: AttachmentStore, v1: Path) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    made = await store.read_image_request(ref, policy())
    assert (made.data, made.media_type, made.width, made.height) == (PICTURE, PNG, 64, 48)
    assert cached(v1) == []


async def test_a_request_image_fits_its_policy_and_is_made_once(
    store: AttachmentStore, v1: Path
) -> None:
    ref = await store.save_image(ImageInput(encoded(noise(300, 200)), PNG))
    small = policy(max_pixels=20_000, max_bytes=9_000)
    made = await store.read_image_request(ref, small)
    assert made.width * made.height <= 20_000
    assert len(made.data) <= 9_000
    assert opened(made.data).size == (made.width, made.height)
    (path,) = cached(v1)
    written = path.stat().st_mtime_ns
    assert made.variant_id == f"sha256:{path.name}"
    assert await store.read_image_request(ref, small) == made
    assert path.stat().st_mtime_ns == written


async def test_each_policy_has_a_request_image_of_its_own(store: AttachmentStore) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    policies = [policy(max_pixels=pixels) for pixels in (100, 200, 10**6)]
    made = [await store.read_image_request(ref, each) for each in policies]
    assert len({each.variant_id for each in made}) == 3


@pytest.mark.parametrize("damage", [b"", b"no line", b'{"sha256": "00"}\nabc', b"[]\n", b"{}\nx"])
async def test_a_damaged_request_image_is_made_again(
    store: AttachmentStore, v1: Path, damage: bytes
) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    made = await store.read_image_request(ref, policy(max_pixels=500))
    (path,) = cached(v1)
    whole = path.read_bytes()
    path.write_bytes(damage)
    assert await store.read_image_request(ref, policy(max_pixels=500)) == made
    assert path.read_bytes() == whole


async def test_a_cache_that_cannot_be_written_costs_time_only(
    store: AttachmentStore, v1: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    (v1 / "request-images").write_text("in the way")
    first = await store.read_image_request(ref, policy(max_pixels=500))
    assert await store.read_image_request(ref, policy(max_pixels=500)) == first
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "images of requests cannot be cached"
    ]


@pytest.mark.parametrize("limits", [{"max_bytes": 20}, {"max_pixels": 0}, {"max_bytes": -1}])
async def test_a_policy_that_no_image_fits_has_a_code(
    store: AttachmentStore, limits: dict[str, int]
) -> None:
    ref = await store.save_image(ImageInput(PICTURE, PNG))
    with pytest.raises(AttachmentError) as caught:
        await store.read_image_request(ref, policy(**limits))
    assert caught.value.code == "ATTACHMENT_PROJECTION_UNSUPPORTED"


async def test_a_store_without_request_images_says_so() -> None:
    class Plain:
        pass

    with pytest.raises(AttachmentError) as caught:
        await AttachmentStore.read_image_request(Plain(), {}, policy())  # type: ignore[arg-type]
    assert caught.value.code == "ATTACHMENT_PROJECTION_UNSUPPORTED"
