"""Zip archives of tensors: members that can be mapped into memory, and what is looked at before a member is read."""

from __future__ import annotations

import struct
import zipfile

from lezero.io.safetensors import ALIGN

ZIP64_FROM = 0xFFFF_FFFF - (1 << 20)
_PADDING_FIELD = 0xD935  # the extra field that Android's zipalign pads with
_MOST_INFLATED = 200
"""Times a compressed archive's length that its members may have; weights shrink to half, made-up zeros to a thousandth."""


class ArchiveError(ValueError):
    """An archive that claims more than it can hold."""


def stored_member(name: str, size: int, offset: int) -> zipfile.ZipInfo:
    """A member whose data begins at a multiple of ALIGN; the same bytes whenever it is written.

    size : bytes of its data
    offset : where in the file the member begins
    """
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_STORED
    info.external_attr = 0o644 << 16
    info.file_size = size
    zip64 = 20 if size >= ZIP64_FROM else 0  # the extra field that zipfile adds in front
    begin = offset + 30 + len(name.encode()) + zip64 + 4
    padding = -begin % ALIGN
    info.extra = struct.pack("<HH", _PADDING_FIELD, padding) + bytes(padding)
    return info


def check_members(archive: zipfile.ZipFile, size: int, *, compressed: bool = False) -> None:
    """Refuse members that lie upon each other or inflate to what no weights do, before any is read.

    size : bytes of the file
    compressed : whether members may be compressed

    Raises
    ------
    ArchiveError
    """
    inside = archive.infolist()
    if not compressed and any(i.compress_type != zipfile.ZIP_STORED or i.file_size != i.compress_size for i in inside):
        raise ArchiveError("its members are compressed, which this format's never are; store them (zip -0)")
    if sum(i.compress_size for i in inside) > size:
        raise ArchiveError("its members claim more bytes than the file has: they lie upon each other")
    claimed = sum(i.file_size for i in inside)
    if claimed > _MOST_INFLATED * size:
        raise ArchiveError(f"its members claim to inflate to {claimed:,} bytes, and the file has {size:,}")
    if len({i.filename for i in inside}) != len(inside):
        raise ArchiveError("two of its members have the same name")
