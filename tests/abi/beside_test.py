#!/usr/bin/env python3
"""Plug-ins are found beside the library, wherever that was copied and however it was named, and
never in the current folder.

beside_test.py LIBRARY FAKE_BACKEND
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def backends(library):
    """What a runtime of this library lists."""
    pkv = ctypes.CDLL(library)
    pkv.pkv_last_error.restype = ctypes.c_char_p
    runtime, text = ctypes.c_void_p(), ctypes.c_char_p()
    for status in (
        pkv.pkv_runtime_create(None, ctypes.byref(runtime)),
        pkv.pkv_runtime_describe(runtime, ctypes.byref(text)),
    ):
        if status != 0:
            raise RuntimeError(pkv.pkv_last_error().decode())
    return json.loads(text.value)["backends"]


def listed(library, folder):
    """The same in a process of its own that runs in `folder`."""
    command = [sys.executable, __file__, "--list", library]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PKV_")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout)


def main():
    if sys.argv[1] == "--list":
        print(json.dumps(backends(sys.argv[2])))
        return 0
    library, plugin = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="pariskv_test_") as name:
        root = Path(name).resolve()
        (root / "lib/pariskv/backends").mkdir(parents=True)
        (root / "empty").mkdir()
        copy = root / "lib/libpariskv.so"
        beside = root / "lib/pariskv/backends/pariskv_backend_fake.so"
        shutil.copy(library, copy)
        (root / "link.so").symlink_to(copy)
        shutil.copy(plugin, beside)
        shutil.copytree(root / "lib/pariskv", root / "elsewhere/pariskv")
        shutil.copy(plugin, root / "elsewhere/pariskv_backend_fake.so")

        wrong = 0
        built_in = ["", ""]  # cpu_ref, cpu
        for loaded, folder in (
            (str(copy), root / "empty"),
            ("../lib/libpariskv.so", root / "empty"),
            ("./libpariskv.so", root / "lib"),
            (str(root / "link.so"), root / "elsewhere"),
        ):
            paths = [backend["path"] for backend in listed(loaded, folder)]
            if paths != [*built_in, str(beside)]:
                wrong += 1
                print(f"{loaded} in {folder}: {paths}")
        beside.unlink()
        for folder in ("lib", "elsewhere", "elsewhere/pariskv/backends"):
            paths = [backend["path"] for backend in listed(str(copy), root / folder)]
            if paths != built_in:
                wrong += 1
                print(f"nothing beside the library, in {folder}: {paths}")
    print(f"7 ways to load, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
