"""What one run of the tests compiled is there for the next, whole, and not without end."""

import os
import zlib
from pathlib import Path

import pytest

import compiling


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / f"jit_{name}-cache"
    path.write_bytes(content)
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A file as JAX writes it where Python has zlib and nothing better."""
    monkeypatch.setattr("jax._src.compilation_cache.decompress_executable", zlib.decompress)
    return zlib.compress(bytes(range(256)) * 20)


def test_the_next_run_has_what_is_whole_and_nothing_that_was_cut_off(tmp_path: Path, whole: bytes):
    base = tmp_path / "cache"
    kept = compiling.kept_in(base)
    first, beside = compiling.begin(base, kept), compiling.begin(base, kept)
    put(first, "whole", whole)
    put(first, "half", whole[: len(whole) // 2])
    put(first, "empty", b"")
    put(beside, "whole", whole)  # another run at the same time
    put(beside, "other", whole)
    for folder in (first, beside):
        compiling.end(folder, kept)
    assert names(base) == {kept.name}
    assert names(kept) == {"jit_whole-cache", "jit_other-cache"}
    assert names(compiling.begin(base, kept)) == names(kept)


def test_too_much_is_forgotten_and_so_are_runs_that_were_killed(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
):
    kept = compiling.kept_in(tmp_path)
    kept.mkdir()
    put(kept, "old", whole)
    killed, running = compiling.begin(tmp_path, kept), compiling.begin(tmp_path, kept)
    os.utime(killed, (0, 0))
    compiling.tidy(tmp_path)
    assert names(tmp_path) == {kept.name, running.name}
    monkeypatch.setattr(compiling, "LARGEST", len(whole) - 1.0)
    compiling.tidy(tmp_path)
    assert names(tmp_path) == {running.name}
    assert names(running) == {"jit_old-cache"}, "a run that goes on has its own links"


def test_other_ways_to_compile_have_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usual = compiling.kept_in(tmp_path)
    assert compiling.kept_in(tmp_path) == usual
    monkeypatch.setenv("XLA_FLAGS", f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa=AVX2")
    assert compiling.kept_in(tmp_path) != usual
