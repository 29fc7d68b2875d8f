#!/usr/bin/env python3
"""package_test.py --build BUILD --prefix PREFIX --work FOLDER

What is handed out: Debian packages made of BUILD, the source archive, the manual pages that are
installed in PREFIX, and that all of them name one version.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import tarfile

from outside import REPOSITORY, from_command_line, run

PACKAGES = {
    "libpariskv0": ("usr/lib/libpariskv.so.0",),
    "libpariskv-dev": ("usr/include/pariskv/pariskv.h", "usr/lib/libpariskv.so"),
    "pariskv-tools": (
        "usr/bin/pariskv",
        "usr/bin/pkv-conformance",
        "usr/share/man/man1/pariskv.1.gz",
    ),
}


def version():
    text = (REPOSITORY / "CMakeLists.txt").read_text()
    return re.search(r"project\(pariskv VERSION ([\d.]+)", text)[1]


def test_one_version(outside):
    header = (outside.prefix / "include" / "pariskv" / "pariskv.h").read_text()
    parts = re.findall(r"#define PKV_VERSION_\w+ (\d+)", header)
    vcpkg = json.loads((REPOSITORY / "vcpkg.json").read_text())["version"]
    assert ".".join(parts) == vcpkg == version()
    for program in ("pariskv", "pkv-conformance"):
        assert run(outside.program(program), "--version").split()[-1] == version()


def test_hardened(outside):
    """SECURITY.md, "Binaries": of the library and of both programs, by what readelf says."""
    binaries = [outside.library.resolve(), *map(outside.program, ("pariskv", "pkv-conformance"))]
    for binary in binaries:
        header = run("readelf", "--wide", "--file-header", "--segments", "--dynamic", binary)
        symbols = run("readelf", "--wide", "--dyn-syms", binary)
        assert re.search(r"Type:\s+DYN", header), f"{binary}: at a fixed address"
        assert "GNU_RELRO" in header and "BIND_NOW" in header, f"{binary}: writable relocations"
        (stack,) = re.findall(r"GNU_STACK .* (\w+)\s+0x\w+$", header, re.MULTILINE)
        assert stack == "RW", f"{binary}: stack {stack}"
        segments = re.findall(r"^ +LOAD .* ([RWE ]{3}) 0x\w+$", header, re.MULTILINE)
        assert segments and not any("W" in s and "E" in s for s in segments), (binary, segments)
        assert "TEXTREL" not in header, f"{binary}: code that is relocated"
        paths = re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", header)
        assert all(path.startswith("$ORIGIN") for path in paths), (binary, paths)
        assert "__stack_chk_fail" in symbols, f"{binary}: no stack protector"
        assert re.search(r" __(?!stack)\w+_chk@", symbols), f"{binary}: no checked library calls"
        if platform.machine() == "x86_64":
            code = run("objdump", "--disassemble", "--no-show-raw-insn", "--section=.text", binary)
            assert code.count("endbr64") > 100, f"{binary}: no landing marks for indirect branches"


def test_manual_pages(outside):
    """Each verb and option of --help has its place, and man finds nothing to complain of."""
    for program in ("pariskv", "pkv-conformance"):
        page = next(outside.prefix.glob(f"**/man1/{program}.1"))
        text = page.read_text()
        words = run(outside.program(program), "--help")
        verbs = re.findall(r"^  ([a-z]+) ", words, re.MULTILINE)
        options = re.findall(r"^  --([a-z-]+)", words, re.MULTILINE)
        assert len(verbs) + len(options) > 4
        for verb in verbs:
            assert f".It Cm {verb}\n" in text, verb
        for option in options:
            assert f"Fl Fl {option}" in text, option
        if shutil.which("man"):
            done = subprocess.run(
                ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page],
                capture_output=True,
                text=True,
                env=dict(os.environ, LC_ALL="C.UTF-8", MANROFFSEQ="", MANWIDTH="100"),
            )
            assert done.returncode == 0 and done.stderr == "", done.stderr


def test_reference(outside):
    """The API reference is made, and has each function with the words that stand above it."""
    if shutil.which("doxygen") is None:
        print("skipped: doxygen is not installed", end=" ")
        return
    run(REPOSITORY / "tools" / "docs", outside.work / "docs")
    page = (outside.work / "docs" / "html" / "pariskv_8h.html").read_text()
    header = (outside.prefix / "include" / "pariskv" / "pariskv.h").read_text()
    functions = re.findall(r"^PKV_API [^;(]*?\b(pkv_\w+)\(", header, re.MULTILINE)
    assert len(functions) > 40 and all(name in page for name in functions)
    assert "Copies the K and V rows of the hits" in page


def make_packages(outside, build):
    folder = outside.work / "packages"
    # Beside the CMake that made the build, and so of its version.
    cpack = shutil.which("cpack", path=os.path.dirname(os.environ["CMAKE"])) or "cpack"
    run(cpack, "-G", "DEB", "--config", build / "CPackConfig.cmake", "-B", folder)
    return {path.name.partition("_")[0]: path for path in folder.glob("*.deb")}


def test_debian_packages(outside, build):
    if shutil.which("dpkg-shlibdeps") is None:
        print("skipped: dpkg-shlibdeps is not installed", end=" ")
        return
    packages = make_packages(outside, build)
    assert set(packages) == set(PACKAGES), packages
    root, owners = outside.work / "root", {}
    for name, path in packages.items():
        listing = run("dpkg-deb", "-c", path)
        files = re.findall(r" \./(\S*[^/\s])(?: -> \S+)?$", listing, re.MULTILINE)
        for file in files:
            assert owners.setdefault(file, name) == name, f"{file}: in {owners[file]} and {name}"
        assert set(PACKAGES[name]) <= set(files), (name, files)
        assert f"usr/share/doc/{name}/copyright" in files
        run("dpkg-deb", "-x", path, root)
    assert "libpariskv0 (= " in run("dpkg-deb", "-f", packages["pariskv-tools"], "Depends")
    assert "libc6" in run("dpkg-deb", "-f", packages["libpariskv0"], "Depends")
    environment = {"LD_LIBRARY_PATH": str(root / "usr" / "lib"), "PATH": "/nowhere"}
    info = json.loads(run(root / "usr" / "bin" / "pariskv", "info", "--json", env=environment))
    assert {"cpu", "cpu_ref"} <= {backend["name"] for backend in info["backends"]}
    if shutil.which("lintian") is None:
        print("lintian skipped: not installed", end=" ")
        return
    run("lintian", "--no-cfg", "--allow-root", "--fail-on", "error", *packages.values())


def test_source_archive(outside):
    if not (REPOSITORY / ".git").exists():
        print("skipped: no git here", end=" ")
        return
    sums, name = [], f"pariskv-{version()}"
    for folder in (outside.work / "a", outside.work / "b"):
        folder.mkdir()
        sums.append(run(REPOSITORY / "tools" / "source_archive", folder, cwd=folder))
    assert sums[0] == sums[1] and name in sums[0], sums
    with tarfile.open(outside.work / "a" / f"{name}.tar.gz") as archive:
        members = {m.name for m in archive.getmembers() if not m.isdir()}
        archive.extractall(outside.work)
    tracked = run("git", "ls-tree", "-r", "--name-only", "-z", "HEAD", cwd=REPOSITORY).split("\0")
    assert members == {f"{name}/{path}" for path in tracked if path}
    # Configuring takes nothing from a network: there is none in a name space of its own.
    alone = ["unshare", "-rn"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        alone = []
    run(*alone, os.environ["CMAKE"], "-G", outside.generator, "-S", outside.work / name,
        "-B", outside.work / "configured", "-DPARISKV_TESTS=OFF")  # fmt: skip


def main():
    outside, build = from_command_line()
    tests = test_one_version, test_hardened, test_manual_pages, test_reference, test_source_archive
    for test in tests:
        test(outside)
        print(f"{test.__name__}: ok")
    test_debian_packages(outside, build)
    print("test_debian_packages: ok")


if __name__ == "__main__":
    main()
