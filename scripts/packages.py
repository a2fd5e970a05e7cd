#!/usr/bin/env python3
"""Builds packages that contain the program: a .deb, a Python wheel and an npm package.

    scripts/packages.py FOLDER VERSION TARGET REPOSITORY

FOLDER is a folder that scripts/dist.sh has created. It contains the program, its completions and its man pages. The
script writes the packages next to that folder. All files in the packages have the timestamp SOURCE_DATE_EPOCH, so the
same FOLDER always produces the same bytes.
"""

import base64
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

# The name `baton` is taken on PyPI and npm.
NAME = "baton-host"
SUMMARY = "Runs the one job of a fleet that must run in exactly one place at a time"
LICENSE = "Apache-2.0 WITH LLVM-exception"
EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
# Names of the architectures: Rust's name, and the names in Debian, Python and Node.
MACHINES = {"x86_64": ("amd64", "x86_64", "x64"), "aarch64": ("arm64", "aarch64", "arm64")}
README = f"""# Baton

{SUMMARY}. This package contains the program `baton` for Linux. Start with `baton new --help`; the documentation is at
"""


def main() -> None:
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    folder, (version, target, repository) = Path(sys.argv[1]), sys.argv[2:]
    machine = target.split("-")[0]
    if machine not in MACHINES:
        sys.exit(f"cannot build packages for {target}: add its architecture to MACHINES in scripts/packages.py")
    debian, python, node = MACHINES[machine]
    libc = newest_libc(folder / "baton")
    made = [
        wheel(folder, version, f"manylinux_{libc.replace('.', '_')}_{python}", repository),
        npm(folder, version, node, repository),
        deb(folder, version, debian, libc, repository),
    ]
    for package in filter(None, made):
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        package.with_name(package.name + ".sha256").write_text(f"{digest}  {package.name}\n")
        print(f"{digest}  {package.name}")


def newest_libc(program: Path) -> str:
    """Returns the minimum version of glibc that the program needs."""
    versions = re.findall(rb"GLIBC_2\.(\d+)\0", program.read_bytes())
    return f"2.{max(map(int, versions))}"


def wheel(folder: Path, version: str, platform: str, repository: str) -> Path:
    """Builds a wheel: https://packaging.python.org/en/latest/specifications/binary-distribution-format/"""
    tag = f"py3-none-{platform}"
    base = f"{NAME.replace('-', '_')}-{version}"
    info = f"{base}.dist-info"
    files = {
        f"{base}.data/scripts/baton": (folder / "baton").read_bytes(),
        f"{info}/METADATA": f"Metadata-Version: 2.4\nName: {NAME}\nVersion: {version}\nSummary: {SUMMARY}\n"
        f"License-Expression: {LICENSE}\nProject-URL: Source, {repository}\nRequires-Python: >=3.8\n"
        f"Description-Content-Type: text/markdown\n\n{README}{repository}.\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: baton\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        f"{info}/licenses/LICENSE": (folder / "LICENSE").read_bytes(),
        f"{info}/licenses/LICENSES.txt": (folder / "LICENSES.txt").read_bytes(),
    }
    record = f"{info}/RECORD"
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=") for name, text in files.items()}
    lines = [f"{name},sha256={digests[name].decode()},{len(text)}\n" for name, text in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    path = folder.parent / f"{base}-{tag}.whl"
    moment = time.gmtime(EPOCH)[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name, moment)
            entry.external_attr = (0o100755 if name.endswith("/scripts/baton") else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text)
    return path


def npm(folder: Path, version: str, cpu: str, repository: str) -> Path | None:
    """Builds an npm package, whose `bin` is the program itself."""
    if missing("npm", "the npm package"):
        return None
    manifest = {
        "name": NAME,
        "version": version,
        "description": SUMMARY,
        "license": LICENSE,
        "repository": {"type": "git", "url": f"git+{repository}.git"},
        "bin": {"baton": "bin/baton"},
        "os": ["linux"],
        "cpu": [cpu],
        "libc": ["glibc"],
    }
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        install(folder / "baton", work / "bin/baton", 0o755)
        for name in ("LICENSE", "LICENSES.txt"):
            install(folder / name, work / name)
        (work / "README.md").write_text(f"{README}{repository}.\n")
        (work / "package.json").write_text(json.dumps(manifest, indent=2) + "\n")
        command = ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", folder.parent.resolve()]
        subprocess.run(command, cwd=work, check=True, stdout=subprocess.DEVNULL)
    # Add the architecture, which is missing from the file name that npm chooses.
    return (folder.parent / f"{NAME}-{version}.tgz").rename(folder.parent / f"{NAME}-{version}-linux-{cpu}.tgz")


def deb(folder: Path, version: str, machine: str, libc: str, repository: str) -> Path | None:
    """Builds a Debian package with the program, its service and user, man pages and completions."""
    if missing("dpkg-deb", "the .deb"):
        return None
    packaging = folder / "packaging"
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        root.chmod(0o755)
        install(folder / "baton", root / "usr/bin/baton", 0o755)
        install(packaging / "systemd/baton.service", root / "usr/lib/systemd/system/baton.service")
        install(packaging / "systemd/sysusers.conf", root / "usr/lib/sysusers.d/baton.conf")
        completions = {"baton.bash": "bash-completion/completions/baton", "_baton": "zsh/vendor-completions/_baton",
                       "baton.fish": "fish/vendor_completions.d/baton.fish"}  # fmt: skip
        for name, place in completions.items():
            install(folder / "completions" / name, root / "usr/share" / place)
        for page in sorted((folder / "man").iterdir()):
            compressed = root / "usr/share/man/man1" / f"{page.name}.gz"
            compressed.parent.mkdir(parents=True, exist_ok=True)
            compressed.write_bytes(gzip.compress(page.read_bytes(), 9, mtime=0))
        for name in ("LICENSE", "LICENSES.txt"):
            install(folder / name, root / "usr/share/doc/baton" / name)
        size = sum(file.stat().st_size for file in root.rglob("*") if file.is_file()) // 1024
        control = f"""Package: baton
Version: {version}
Architecture: {machine}
Maintainer: Baton <{repository}>
Installed-Size: {size}
Depends: libc6 (>= {libc}), libgcc-s1
Recommends: ca-certificates, systemd
Section: admin
Priority: optional
Homepage: {repository}
Description: {SUMMARY}
 Every node runs the same host. The hosts elect a leader with a lease on a blob in Azure Storage, or in SQLite on one
 machine. The leader runs a coordinator, a WebAssembly component.
"""
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(control)
        install(packaging / "debian/postinst", root / "DEBIAN/postinst", 0o755)
        install(packaging / "debian/prerm", root / "DEBIAN/prerm", 0o755)
        for directory in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            directory.chmod(0o755)
        path = folder.parent / f"baton_{version}_{machine}.deb"
        # The default compression differs between distributions.
        environment = {"DPKG_DEB_COMPRESSOR_TYPE": "xz", **os.environ}
        command = ["dpkg-deb", "--root-owner-group", "--build", root, path]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return path


def install(source: Path, place: Path, mode: int = 0o644) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, place)
    place.chmod(mode)


def missing(tool: str, package: str) -> bool:
    if shutil.which(tool):
        return False
    print(f"NOT MADE: {package}, because {tool} is missing", file=sys.stderr)
    return True


if __name__ == "__main__":
    main()
