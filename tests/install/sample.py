"""The skeleton finished: backends/template under another name, whose stages are those of cpu_ref,
put in one by one as docs/backend-guide.md has them written. What comes out is a backend outside the
tree that does everything, with the skeleton's own device, memory and table."""

import re
import shutil

STAGES = ("store", "encode", "vote", "select", "rerank", "fetch", "attend", "fit")
# What several stages share, beside backends/host.
HELPERS = ("query.cpp", "rotate.cpp", "tail.cpp")
OURS = {"device.h", "stages.h"}  # the skeleton's stay
STORE_SLOTS = """
void fill_store_slots(pkv_backend& table) {
  table.store_row_bytes = store_row_bytes;
  table.store_import = store_import;
  table.store_export = store_export;
}
"""


def skeleton(outside, tree, name):
    """A copy of the installed template as <tree>/backends/<name>, renamed in all files."""
    folder = tree / "backends" / name
    shutil.copytree(outside.backends / "template", folder)
    for path in folder.iterdir():
        path.write_text(path.read_text().replace("template", name))
    return folder


def renamed(text, name):
    text = text.replace("backends/cpu_ref/", f"backends/{name}/")
    return text.replace("pkv::cpu_ref", f"pkv::{name}_backend")


def put_helpers(outside, folder):
    """What the stages include and call, into a skeleton."""
    name, reference = folder.name, outside.backends / "cpu_ref"
    for path in [*reference.glob("*.h"), *(reference / helper for helper in HELPERS)]:
        if path.name not in OURS:
            (folder / path.name).write_text(renamed(path.read_text(), name))
    shutil.copytree(outside.backends / "host", folder.parent / "host")
    lists = folder / "CMakeLists.txt"
    more = "".join(f"  {helper}\n" for helper in (*HELPERS, "../host/check.cpp"))
    text = lists.read_text().replace("  attend.cpp\n", more + "  attend.cpp\n", 1)
    assert more in text, lists
    lists.write_text(text)


def put_stage(outside, folder, stage):
    text = (outside.backends / "cpu_ref" / f"{stage}.cpp").read_text()
    text = renamed(text, folder.name)
    if stage == "store":
        head, end = re.fullmatch(r"(.*)(\n}  // namespace \S+\n)", text, re.DOTALL).groups()
        text = head + STORE_SLOTS + end
        text = f'#include "backends/{folder.name}/stages.h"\n' + text
    (folder / f"{stage}.cpp").write_text(text)


def finished(outside, tree, name):
    """The folder of a skeleton with every stage in it."""
    folder = skeleton(outside, tree, name)
    put_helpers(outside, folder)
    for stage in STAGES:
        put_stage(outside, folder, stage)
    return folder
