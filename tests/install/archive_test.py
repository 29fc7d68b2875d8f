#!/usr/bin/env python3
"""archive_test.py --build BUILD --prefix PREFIX --work FOLDER

Builds the source archive of the last commit in a name space without a network, and runs conformance
and the unit tests of what was built. Minutes.
"""

import os
import subprocess

from outside import REPOSITORY, from_command_line, run


def main():
    outside, _ = from_command_line()
    run(REPOSITORY / "tools" / "source_archive", outside.work)
    run("tar", "-xzf", next(outside.work.glob("pariskv-*.tar.gz")), "-C", outside.work)
    source = next(path for path in outside.work.glob("pariskv-*") if path.is_dir())
    alone = ["unshare", "-rn"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        print("a name space without a network is not to be had: built with one")
        alone = []
    cmake, build = os.environ.get("CMAKE", "cmake"), outside.work / "build"
    run(*alone, cmake, "-G", outside.generator, "-S", source, "-B", build, "-DPARISKV_TESTS=ON")
    run(*alone, cmake, "--build", build, "--target", "pkv-conformance", "pkv_unit_tests", "-j2")
    run(*alone, build / "bin" / "pkv-conformance", "--backend", "cpu")
    # Golden files are found from the root of the tree.
    run(*alone, next(build.resolve().glob("**/pkv_unit_tests")), cwd=source)


if __name__ == "__main__":
    main()
