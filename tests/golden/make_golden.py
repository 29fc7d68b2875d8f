#!/usr/bin/env python3
"""Writes the .pkv files of valid/ and rejected/: python3 tests/golden/make_golden.py

Made from docs/format.md and the specification in numpy (tests/oracle), without the library, so that
the library's own files are held against something. Needs numpy and the system's libxxhash.
tests/unit/index/golden_test.cpp makes the same keys and compares every byte.
"""

import ctypes
import pathlib
import struct
import sys
from dataclasses import dataclass, field

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "oracle"))

from oracle import encode, model  # noqa: E402

XXH = ctypes.CDLL("libxxhash.so.0")
XXH.XXH3_64bits.restype = ctypes.c_uint64
XXH.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

OPTIONAL = 1
PLANES = {  # in the order of the format
    "signs": b"SIGN",
    "vote_factors": b"VFAC",
    "codes": b"CODE",
    "factors": b"FACT",
    "value_signs": b"VSGN",
    "value_codes": b"VCOD",
    "value_factors": b"VWGT",
    "value_norms": b"VNRM",
}


def checksum(data):
    return XXH.XXH3_64bits(bytes(data), len(data))


def padded(data):
    return data + bytes(-len(data) % 64)


@dataclass
class Section:
    type: bytes
    data: bytes
    flags: int = 0
    checksum: int = None  # None: the right one


@dataclass
class File:
    sections: list = field(default_factory=list)
    version: int = 1
    byte_order: int = 0x01020304

    def data(self):
        front = 64 + 32 * len(self.sections)
        offset = front + -front % 64
        table = b""
        body = b""
        for section in self.sections:
            right = checksum(section.data)
            wrong = section.checksum
            table += section.type + struct.pack(
                "<IQQQ", section.flags, offset, len(section.data), right if wrong is None else wrong
            )
            body += padded(section.data)
            offset += len(padded(section.data))
        return self.header(offset, table) + table + bytes(-front % 64) + body

    def header(self, size, table):
        head = b"\x89PKV\r\n\x1a\n" + struct.pack(
            "<IIQIIQQQ",
            self.byte_order,
            self.version,
            size,
            len(self.sections),
            0,
            checksum(table),
            0,
            0,
        )
        return head + struct.pack("<Q", checksum(head))

    def find(self, kind):
        return next(section for section in self.sections if section.type == kind)


def mended(data):
    """The same bytes under a header checksum that fits."""
    return data[:56] + struct.pack("<Q", checksum(data[:56])) + data[64:]


def numbers(heads, tokens, width, salt):
    """Keys and values that both sides can make: small multiples of 1/32."""
    h, t, j = np.ogrid[:heads, :tokens, :width]
    mixed = h * 7919 + t * 104729 + j * 1299709 + salt * 15485863
    return ((mixed % 251 - 125) / 32).astype(np.float32)


def params_of(geometry, center_on, balance_on):
    def some(width, modulus, scale, start):
        index = np.arange(geometry.kv_heads * width).reshape(geometry.kv_heads, width)
        return (index % modulus * scale + start).astype(np.float32)

    center = some(geometry.head_dim, 7, 0.125, -0.375)
    balance = some(geometry.head_dim, 4, 0.5, 0.5)
    if not center_on:
        center[:] = 0
    if not balance_on:
        balance[:] = 1
    value_center = some(geometry.value_dim, 5, 0.25, -0.5) if geometry.sketch_bits else None
    return center, balance, value_center


def levels_checksum(geometry):
    tables = list(encode.key_tables(geometry.codec))
    if geometry.sketch_bits:
        tables += encode.value_tables(geometry.sketch_bits)
    return checksum(np.concatenate(tables).astype("<f4").tobytes())


@dataclass
class Case:
    geometry: model.Geometry
    lengths: list
    capacity: int
    center: int = 1
    balance: int = 1
    isolate: int = 0
    fit_picked: int = 1
    without_values: tuple = ()  # sequences
    bad: tuple = ()  # (sequence, head, token): one coordinate is NaN

    def file(self):
        g = self.geometry
        center, balance, value_center = params_of(g, self.center, self.balance)
        params = center.tobytes() + balance.tobytes()
        if g.sketch_bits:
            params += value_center.tobytes()
        planes = {name: b"" for name in PLANES}
        good, sums, sequences = b"", b"", b""
        for s, length in enumerate(self.lengths):
            has_values = g.value_dim > 0 and s not in self.without_values
            sequences += struct.pack("<qII", length, 0 if has_values or length == 0 else 1, 0)
            keys = numbers(g.kv_heads, length, g.head_dim, 2 * s)
            values = numbers(g.kv_heads, length, g.value_dim, 2 * s + 1) if has_values else None
            for sequence, head, token in self.bad:
                if sequence == s:
                    keys[head, token, 3] = np.nan
            for head in range(g.kv_heads):
                one = model.make_params(
                    g, center[head], balance[head], value_center[head] if g.sketch_bits else None
                )
                own = values[head] if has_values else None
                records = encode.encode(g, one, keys[head], own)
                for name, plane in records.planes().items():
                    planes[name] += np.ascontiguousarray(plane).tobytes()
                good += struct.pack("<q", int(records.good.sum()))
                total = np.zeros(g.value_dim)
                if has_values:
                    total = encode.value_sums(total, own, records.good)
                sums += total.tobytes()
        sections = [
            Section(b"GEOM", self.geom()),
            Section(b"PARM", params),
            Section(b"SEQS", sequences),
            Section(b"GOOD", good),
        ]
        if g.value_dim:
            sections.append(Section(b"VSUM", sums))
        present = {"signs", "codes", "factors"}
        present |= {"vote_factors"} if g.vote == model.GRADED else set()
        present |= {"value_signs", "value_codes", "value_factors"} if g.sketch_bits else set()
        present |= {"value_norms"} if g.value_norm else set()
        for name, kind in PLANES.items():
            if name in present:
                sections.append(Section(kind, planes[name]))
        return File(sections)

    def geom(self):
        g = self.geometry
        fields = struct.pack(
            "<I13iQq",
            8,
            g.kv_heads,
            g.head_dim,
            g.value_dim,
            g.v_source,
            g.codec,
            g.vote,
            g.rounds,
            g.sketch_bits,
            g.value_norm,
            self.center,
            self.balance,
            self.isolate,
            len(self.lengths),
            g.seed,
            self.capacity,
        )
        return fields + struct.pack("<Qii", levels_checksum(g), g.stride, self.fit_picked)


def default_case():
    geometry = model.Geometry(2, 16, 16, sketch_bits=4, sketch_stride=16, seed=42)
    return Case(geometry, [5, 0, 35], 40)


def valid():
    m = model
    extended = default_case().file()
    extended.sections.append(Section(b"NOTE", b"a later version may say more here", OPTIONAL))
    return {
        "default": default_case().file(),
        "paper_sketch2": Case(
            m.Geometry(1, 24, 8, codec=m.POLAR4, vote=m.TIER, sketch_bits=2, seed=7),
            [3, 4],
            4,
            center=0,
            balance=0,
            fit_picked=0,
        ).file(),
        "scalar5_sketch4_norms_bad_key": Case(
            m.Geometry(2, 32, 24, m.OWN, m.SCALAR5, m.GRADED, 2, 4, 1, 2**64 - 1),
            [6],
            100,
            isolate=1,
            bad=((0, 1, 2),),
        ).file(),
        "no_values": Case(m.Geometry(3, 8, 0, m.NONE, seed=1), [2, 1], 2).file(),
        "some_without_values": Case(
            m.Geometry(1, 8, 8, vote=m.TIER, seed=5),
            [3, 3],
            8,
            fit_picked=0,
            without_values=(1,),
        ).file(),
        "unknown_optional_section": extended,
    }


def edited(kind, offset, replacement):
    """The default file with other bytes in one section, all checksums right."""
    file = default_case().file()
    section = file.find(kind)
    section.data = section.data[:offset] + replacement + section.data[offset + len(replacement) :]
    return file.data()


def with_section(section):
    file = default_case().file()
    file.sections.append(section)
    return file.data()


def without_section(kind):
    file = default_case().file()
    file.sections.remove(file.find(kind))
    return file.data()


def made_optional(kind):
    file = default_case().file()
    file.find(kind).flags = OPTIONAL
    return file.data()


def rejected():
    """name: (bytes, status, a part of the text)"""
    good = default_case().file().data()
    wrong_sum = default_case().file()
    wrong_sum.find(b"SIGN").checksum = 1
    version = default_case().file()
    version.version = 2
    order = default_case().file()
    order.byte_order = 0x04030201
    overlong = bytearray(good)
    overlong[24:28] = struct.pack("<I", 2**32 - 1)
    gap = bytearray(good)
    geometry = good.index(default_case().geom())
    gap[geometry + len(default_case().geom())] = 1
    loss, other = "DATA_LOSS", "FAILED_PRECONDITION"
    i64 = struct.Struct("<q").pack
    u64 = struct.Struct("<Q").pack
    f32 = struct.Struct("<f").pack
    i32 = struct.Struct("<i").pack
    return {
        "empty": (b"", loss, "0 bytes"),
        "magic": (b"\x88" + good[1:], loss, "first 8 bytes"),
        "header_checksum": (good[:56] + bytes(8) + good[64:], loss, "header"),
        "version_unmended": (good[:12] + b"\x02" + good[13:], loss, "format version 2"),
        "version_2": (version.data(), other, "format version of the file=2, accepted: 1"),
        "big_endian": (order.data(), other, "byte order"),
        "truncated": (good[:-64], loss, "should have"),
        "trailing_byte": (good + b"\0", loss, "should have"),
        "trailing_sector": (
            mended(good[:16] + u64(len(good) + 64) + good[24:]) + bytes(64),
            loss,
            "last section ends",
        ),
        "section_count": (mended(bytes(overlong)), loss, "4294967295 sections"),
        "gap_not_zero": (bytes(gap), loss, "between sections"),
        "signs_checksum": (wrong_sum.data(), loss, "SIGN"),
        "unknown_mandatory_section": (with_section(Section(b"NOTE", b"x")), other, "NOTE"),
        "optional_section_damaged": (
            with_section(Section(b"NOTE", b"x", OPTIONAL, 1)),
            loss,
            "NOTE",
        ),
        "section_twice": (with_section(Section(b"SIGN", b"")), loss, "twice"),
        "section_flags": (with_section(Section(b"NOTE", b"x", 2)), loss, "flags=2"),
        "section_missing": (without_section(b"CODE"), loss, "CODE"),
        "section_of_another_geometry": (with_section(Section(b"VNRM", b"")), loss, "VNRM"),
        "known_section_optional": (
            made_optional(b"FACT"),
            loss,
            "FACT",
        ),
        "subspace_16": (edited(b"GEOM", 0, i32(16)), other, "subspace of the file=16"),
        "head_dim_12": (edited(b"GEOM", 8, i32(12)), loss, "head_dim=12"),
        "codec_9": (edited(b"GEOM", 20, i32(9)), loss, "codec=9"),
        "sequences_2_31": (edited(b"GEOM", 52, i32(-(2**31))), loss, "sequences"),
        "capacity_2_31": (edited(b"GEOM", 64, i64(2**31)), loss, "capacity=2147483648"),
        "capacity_2_63": (edited(b"GEOM", 64, u64(2**63)), loss, "capacity"),
        "levels": (edited(b"GEOM", 72, u64(1)), other, "levels"),
        "sketch_stride_0": (edited(b"GEOM", 80, i32(0)), loss, "sketch_stride=0"),
        "sketch_stride_65537": (edited(b"GEOM", 80, i32(65537)), loss, "sketch_stride=65537"),
        "stride_of_other_planes": (edited(b"GEOM", 80, i32(1)), loss, "VSGN"),
        "fit_picked_2": (edited(b"GEOM", 84, i32(2)), loss, "fit_picked=2"),
        "center_nan": (edited(b"PARM", 8, f32(float("nan"))), loss, "center[KV head 0, coord"),
        "balance_0": (edited(b"PARM", 128, f32(0)), loss, "balance[KV head 0, coordinate 0]=0"),
        "length_beyond_capacity": (edited(b"SEQS", 0, i64(41)), loss, "sequence 0=41"),
        "length_2_63": (edited(b"SEQS", 0, u64(2**63)), loss, "sequence 0="),
        "length_without_records": (edited(b"SEQS", 16, i64(1)), loss, "SIGN"),
        "sequence_flags": (edited(b"SEQS", 8, i32(2)), loss, "flags of sequence 0=2"),
        "good_above_length": (edited(b"GOOD", 0, i64(6)), loss, "6 good keys"),
        "value_sum_infinite": (edited(b"VSUM", 0, struct.pack("<d", float("inf"))), loss, "VSUM"),
    }


def main():
    for folder in ("valid", "rejected"):
        (HERE / folder).mkdir(exist_ok=True)
        for old in (HERE / folder).glob("*.pkv"):
            old.unlink()
    for name, file in valid().items():
        (HERE / "valid" / f"{name}.pkv").write_bytes(file.data())
    lines = []
    for name, (data, status, text) in rejected().items():
        (HERE / "rejected" / f"{name}.pkv").write_bytes(data)
        lines.append(f"{name} {status} {text}\n")
    (HERE / "rejected" / "expected.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
