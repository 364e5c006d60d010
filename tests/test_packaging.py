"""What a user installs: the wheel and the sdist hold the package, all of it, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest


def packages_on_disk(root: Path) -> set[str]:
    found = {"rsm_fast"}
    for folder in (root / "rsm_fast").rglob("*"):
        if (folder / "__init__.py").is_file():
            found.add(".".join(folder.relative_to(root).parts))
    found.add("rsm_fast.kernels")
    return {name for name in found if "__pycache__" not in name}


def test_package_list_matches_the_folders(repo_root: Path) -> None:
    config = tomllib.loads((repo_root / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(config["tool"]["setuptools"]["packages"]) == packages_on_disk(repo_root)


def test_kernels_is_a_symlink_inside_the_package(repo_root: Path) -> None:
    link = repo_root / "rsm_fast" / "kernels"
    assert link.is_symlink()
    assert os.readlink(link) == "../kernels"


@pytest.fixture(scope="module")
def built(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel (made from the sdist) and the sdist of a clean export of the tracked files."""
    source = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=repo_root, capture_output=True, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("not a git checkout: nothing tells which files belong to the project")
    for name in tracked.stdout.decode().split("\0"):
        path = repo_root / name
        if not name or not (path.exists() or path.is_symlink()):
            continue
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(os.readlink(path))
        else:
            target.write_bytes(path.read_bytes())
    out = tmp_path_factory.mktemp("dist")
    run = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert "would be ignored" not in run.stdout + run.stderr  # a newcomer would read that first
    return out


def test_wheel_holds_every_module_and_nothing_else(repo_root: Path, built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"rsm_fast"}
    expected = {
        path.relative_to(repo_root).as_posix()
        for path in (repo_root / "rsm_fast").rglob("*.py")
        if "kernels" not in path.relative_to(repo_root).parts
    }
    expected |= {f"rsm_fast/kernels/{path.name}" for path in (repo_root / "kernels").glob("*.py")}
    assert expected <= names
    data = {
        path.relative_to(repo_root).as_posix()
        for path in (repo_root / "rsm_fast").rglob("*.*")
        if path.suffix not in (".py", ".pyc") and "kernels" not in path.parts
    }
    assert {"rsm_fast/py.typed", "rsm_fast/sample/conversation.jsonl"} <= data <= names
    assert not any(name.endswith((".nbi", ".nbc", ".pyc")) for name in names)


def test_sdist_holds_the_sources(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert any(name.endswith("kernels/jit.py") for name in names)


def test_installed_wheel_works_from_another_folder(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        "import rsm_fast, sys; from rsm_fast import Memory\n"
        "assert rsm_fast.__file__.startswith(sys.argv[1]), rsm_fast.__file__\n"
        "import importlib.util\n"
        "assert importlib.util.find_spec('kernels') is None\n"
        "with Memory(embedder='hashing') as memory:\n"
        "    memory.add('The tram leaves at 7:40 from Praca do Comercio.')\n"
        "    pack = memory.pack('When does the tram leave?', budget=200)\n"
        "assert '7:40' in pack.text and pack.tokens <= 200\n"
    )
    env = {**os.environ, "PYTHONPATH": str(site), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    run = subprocess.run(
        [sys.executable, "-c", code, str(site)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
