"""Folders of images, decoded on access."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.errors import ArgumentError, BackburnError, DTypeError, FileFormatError, ShapeError
from backburn.base.foreign import printable
from backburn.base.foreign_files import inside, ordinary, room
from backburn.data.packages import package
from backburn.hints.arguments import explained
from backburn.tensor.core.options import integers_of, one_of

#: The names of image files end with one of these.
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
#: The number of channels of each of Pillow's modes that images can be converted to.
CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
#: Pillow's formats for these names: one of its other formats starts a program for files of PostScript.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
#: The bytes of memory of a pixel, without the result: in an image and its conversion; in the latter while its channels
#: are separated; and in deep gray images. Those of a row, and those that decoders take besides.
_CONVERTED, _CHANNEL, _DEEP, _ROW = 12, 9, 20, 40
_DECODED = {"WEBP": 12}
#: The most scans of a JPEG, each of which passes over all pixels but may have only 20 bytes; libtiff has the same
#: limit.
_MOST_SCANS = 100
#: The name of a file in memory in Pillow's messages.
_ADDRESS = re.compile(r" <\w+\.BytesIO object at 0x\w+>")
#: The next marker of a JPEG that is followed by a length, or is its end.
_MARKER = re.compile(rb"\xff+([^\x00\x01\xd0-\xd8\xff])")
_START_OF_SCAN, _END_OF_IMAGE = b"\xda", b"\xd9"


@explained
def image_folder(
    path: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    mode: str = "RGB",
    dtype: Any = "float32",
) -> ImageFolder:
    """The images below a folder with a sub-folder for each class: ``photos/cat/1.jpg``, ``photos/dog/1.png``.

    Images are read a batch at a time, by ``batches(image_folder(path), batch_size=32)`` or any loader that uses the
    length and the elements of a source. A batch is a dict: ``"image"`` has shape (number, channels, height, width),
    floats between 0 and 1 or, with ``dtype="uint8"``, the numbers in the files; ``"label"``, int64, has the numbers of
    the classes in the order of their names. Images that are not in sub-folders have no labels.

    ``size`` is the height and width to which images are resized, or one number for both. ``mode`` is Pillow's:
    ``"RGB"``, ``"L"`` for gray, ``"RGBA"``. Rotations recorded by a camera are applied. 16-bit gray images keep full
    precision, as floats; of 16-bit colours Pillow reads the upper 8 bits, with a note on standard error, and of several
    frames the first.

    Raises :class:`BackendUnavailableError` without the extra ``data``, :class:`FileFormatError` for a folder without
    images, for links out of the folder, and later for files that are not images, or whose pixels take more than ten
    times the file's size plus 200 MB, and :class:`ShapeError` for images of several sizes without ``size``.

        >>> import tempfile, PIL.Image
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("cat", "dog"):
        ...     os.mkdir(f"{folder}/{name}")
        ...     PIL.Image.new("RGB", (6, 4)).save(f"{folder}/{name}/1.png")
        >>> found = image_folder(folder, size=8)
        >>> len(found), found.classes, found[1]["label"]
        (2, ['cat', 'dog'], np.int64(1))
        >>> found[[0, 1]]["image"].shape
        (2, 3, 8, 8)
    """
    package("image_folder", "PIL.Image", "Pillow")
    one_of("image_folder", "mode", mode, CHANNELS)
    kind = np.dtype(dtype)
    if kind != np.uint8 and kind.kind != "f":
        raise DTypeError(f"image_folder: dtype is a float or uint8, not {dtype!r}")
    sides: tuple[int, ...] | None = None
    if size is not None:
        sides = integers_of("image_folder", "size", size)
        sides = sides * 2 if len(sides) == 1 else sides
        if len(sides) != 2 or min(sides) < 1:
            raise ArgumentError(f"image_folder: size is a height and a width of at least 1, not {size!r}")
    root = Path(path)
    if not root.is_dir():
        raise FileFormatError(f"image_folder: {root} is not a folder")
    classes = sorted(each.name for each in root.iterdir() if each.is_dir() and not each.name.startswith("."))
    files = [
        (found, number)
        for number, name in enumerate(classes)
        for found in _images(inside(root / name, root), "**/*", root)
    ]
    loose = _images(root, "*", root)
    if files and loose:
        where = f"in sub-folders ({files[0][0]}) and beside them ({loose[0]})"
        raise FileFormatError(f"image_folder: {root} has images {where}: only those in sub-folders have a class")
    if empty := [name for number, name in enumerate(classes) if files and number not in {n for _, n in files}]:
        raise FileFormatError(f"image_folder: {root / empty[0]} has no images, which a class needs")
    if not files and not loose:
        raise FileFormatError(f"image_folder: {root} has no images ({', '.join(sorted(SUFFIXES))})")
    paths = [found for found, _ in files] or loose
    labels = np.array([number for _, number in files], np.int64) if files else None
    return ImageFolder(paths, labels, classes if files else [], sides, mode, kind)


class ImageFolder:
    """The result of :func:`image_folder`: ``folder[i]`` is one element, ``folder[indices]`` a batch of them.

    It is a source for Grain and a dataset for PyTorch's ``DataLoader``, whose elements are dicts.
    """

    def __init__(
        self,
        paths: list[Path],
        labels: NDArray[np.int64] | None,
        classes: list[str],
        size: tuple[int, ...] | None,
        mode: str,
        dtype: np.dtype[Any],
    ) -> None:
        self.paths = paths
        self.labels = labels
        #: The names of the classes, in the order of their numbers.
        self.classes = classes
        self._size = size
        self._mode = mode
        self._dtype = dtype
        self._has_noted = False

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        if np.ndim(index) == 0:
            label = {} if self.labels is None else {"label": self.labels[index]}
            return {"image": self._read(self.paths[index]), **label}
        numbers = np.asarray(index, np.intp)
        images = [self._read(self.paths[i]) for i in numbers]
        for image, i in zip(images, numbers, strict=True):
            if image.shape != images[0].shape:
                (_, *first), (_, *other) = images[0].shape, image.shape
                raise ShapeError(
                    f"image_folder: {self.paths[numbers[0]]} has {first[0]} x {first[1]} pixels and {self.paths[i]} "
                    f"{other[0]} x {other[1]}: size=(height, width) resizes them"
                )
        none = np.empty((0, CHANNELS[self._mode], *(self._size or (0, 0))), self._dtype)
        label = {} if self.labels is None else {"label": self.labels[numbers]}
        return {"image": images[0][None] if len(images) == 1 else np.stack(images) if images else none, **label}

    def select(self, indices: Any) -> ImageFolder:
        """The images with these indices; nothing is read yet."""
        numbers = np.asarray(indices, np.intp)
        labels = None if self.labels is None else self.labels[numbers]
        paths = [self.paths[i] for i in numbers]
        return ImageFolder(paths, labels, self.classes, self._size, self._mode, self._dtype)

    def describe(self) -> dict[str, Any]:
        """The number of images, the classes and the form of the images, to compare two runs."""
        size = None if self._size is None else list(self._size)
        return {
            "images": len(self), "classes": self.classes, "size": size, "mode": self._mode, "dtype": self._dtype.name,
        }  # fmt: skip

    def _note_depth(self, path: Path, content: bytes, file: Any) -> None:
        """Note, once, that Pillow does not read all bits of the colours."""
        if not self._has_noted and _has_deep_colours(content, file):
            self._has_noted = True
            words = "has 16 bits per colour, and only the upper 8 are read; other files may have them, too"
            print(f"note: image_folder: {path} {words}", file=sys.stderr, flush=True)

    def _read(self, path: Path) -> NDArray[Any]:
        from PIL import Image, ImageOps

        ordinary(path)
        content = path.read_bytes()  # so that system errors are raised here: decoders seek where a file says
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as file:
                if content.startswith(b"\xff\xd8") and _scans(content) > _MOST_SCANS:
                    raise FileFormatError(
                        f"image_folder: {path} has more than {_MOST_SCANS} scans, which no picture needs"
                    )
                self._check_memory(path, file, room(len(content)))
                self._note_depth(path, content, file)
                ImageOps.exif_transpose(file, in_place=True)
                if file.mode.startswith(("I", "F")):
                    return self._of_gray(self._deep(path, file))
                image: Any = file
                if file.mode != self._mode:
                    image = file.convert(self._mode)
                    file.close()  # whose pixels are no longer needed
                if self._size is not None:
                    image = image.resize((self._size[1], self._size[0]), Image.Resampling.BILINEAR)
                return self._of_channels(image)
        except (BackburnError, MemoryError):
            raise
        except Exception as cause:  # of any decoder
            words = printable(_ADDRESS.sub("", str(cause)) or type(cause).__name__, 500)
            raise FileFormatError(f"image_folder: {path} cannot be read as an image: {words}") from cause

    def _check_memory(self, path: Path, file: Any, most: int) -> None:
        """Raise :class:`FileFormatError` for an image whose pixels take more than ``most`` bytes to read."""
        result = 0 if self._size is not None else CHANNELS[self._mode] * self._dtype.itemsize
        if file.mode.startswith(("I", "F")):
            pixel = _DEEP + result
        else:
            pixel = _DECODED.get(file.format, 0) + max(_CONVERTED, _CHANNEL + result)
        if file.width * file.height * pixel + file.height * _ROW > most:
            fix = "" if self._size is not None else "; with size=(height, width), or dtype='uint8', more are"
            raise FileFormatError(
                f"image_folder: {path} is said to have {file.width} x {file.height} pixels, too many for a "
                f"file of its size: at most {most // pixel} are read{fix}"
            )

    def _of_channels(self, image: Any) -> NDArray[Any]:
        """The pixels of an image, copied channel by channel to avoid a second array of all."""
        found = np.empty((CHANNELS[self._mode], image.height, image.width), self._dtype)
        for number, channel in enumerate(found):
            pixels = np.asarray(image.getchannel(number))
            if self._dtype == np.uint8:
                channel[...] = pixels
            else:
                np.divide(pixels, 255, out=channel, dtype=self._dtype)
        return found

    def _deep(self, path: Path, file: Any) -> NDArray[np.float64]:
        """Gray pixels of more than 8 bits, which Pillow's conversions would clip, as fractions of white."""
        tags = getattr(file, "tag_v2", {})
        bits = tags.get(258, (16,))[0]
        if file.mode == "F" or bits > 16 or (file.mode == "I" and file.format not in ("PNG", "PPM")):
            words = "floats" if file.mode == "F" else "32 bits"
            raise FileFormatError(
                f"image_folder: {path} has {words} a pixel, and does not say what white is: convert it to 16 bits"
            )
        if self._dtype == np.uint8:
            raise DTypeError(
                f"image_folder: {path} has {bits} bits for each pixel, which uint8 does not hold: take floats"
            )
        shares = np.asarray(file) / float((1 << bits) - 1)
        return np.subtract(1.0, shares, out=shares) if tags.get(262) == 0 else shares  # in some, 0 is white

    def _of_gray(self, shares: NDArray[np.float64]) -> NDArray[Any]:
        """An image of gray pixels, resized, with the channels of the mode."""
        from PIL import Image

        if self._size is not None:
            small = Image.fromarray(shares.astype(np.float32)).resize(
                (self._size[1], self._size[0]), Image.Resampling.BILINEAR
            )
            shares = np.asarray(small, np.float64)
        found = np.empty((CHANNELS[self._mode], *shares.shape), self._dtype)
        found[:] = shares
        if self._mode == "RGBA":
            found[3] = 1
        return found


def _scans(content: bytes) -> int:
    """The number of scans of a JPEG; counting stops above the limit."""
    found, place = 0, 2
    while (match := _MARKER.search(content, place)) is not None and match[1] != _END_OF_IMAGE:
        found += match[1] == _START_OF_SCAN
        if found > _MOST_SCANS:
            break
        place = match.end() + int.from_bytes(content[match.end() : match.end() + 2], "big")
    return found


def _has_deep_colours(content: bytes, file: Any) -> bool:
    """Whether colours, or gray with transparency, have more than 8 bits in a file; Pillow reads 8."""
    if file.mode.startswith(("I", "F")):
        return False
    if file.format == "PNG":
        return content[24:25] == b"\x10"  # the depth, after the width and the height
    if file.format == "PPM":
        header = re.match(rb"P[36](?:\s|#[^\n]*\n)+\d+(?:\s|#[^\n]*\n)+\d+(?:\s|#[^\n]*\n)+(\d+)", content)
        return header is not None and len(header[1]) < 10 and int(header[1]) > 255
    return max(getattr(file, "tag_v2", {}).get(258, (8,))) > 8


def _images(folder: Path, pattern: str, root: Path) -> list[Path]:
    """The image files of a folder below ``root`` in the order of their names, without hidden ones."""
    return sorted(
        inside(found, root) if found.is_symlink() else found
        for found in folder.glob(pattern)
        if found.suffix.lower() in SUFFIXES and not found.name.startswith(".") and found.is_file()
    )
