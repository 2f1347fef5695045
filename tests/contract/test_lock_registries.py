"""The contract of lock registries, kept by those that the how-to shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.locks import Locks, Registry

from opencqrs_py.processing.ports import LockRegistry
from opencqrs_py.testing import FakeClock
from opencqrs_py.testing.contracts import LockRegistryContract

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "lead-by-locks.md"


def shown(name: str, folder: Path) -> ModuleType:
    """Return a module that the how-to shows."""
    (text,) = re.findall(
        rf'^```python title="{name}\.py"\n(.*?)^```$', PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (folder / f"{name}.py").write_text(text, "utf-8")
    spec = spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestLocksInMemory(LockRegistryContract):
    @pytest.fixture
    def locks(self) -> Locks:
        return Locks(FakeClock().monotonic)

    @pytest.fixture
    def registry(self, locks: Locks) -> LockRegistry:
        return Registry(locks)

    @pytest.fixture
    def another(self, locks: Locks) -> LockRegistry:
        return Registry(locks)

    @pytest.fixture
    def let_pass(self, locks: Locks) -> Callable[[float], None]:
        clock: Any = locks.now.__self__  # type: ignore[attr-defined]
        return lambda part: clock.advance(part * locks.seconds)


class TestFileLocks(LockRegistryContract):
    @pytest.fixture
    def registry(self, tmp_path: Path) -> Any:
        return shown("file_locks", tmp_path).FileLocks(str(tmp_path / "locks"))

    @pytest.fixture
    def another(self, tmp_path: Path) -> Any:
        return shown("file_locks", tmp_path).FileLocks(str(tmp_path / "locks"))

    def test_a_lock_is_lost_when_its_file_is_deleted(self, registry: Any, tmp_path: Path) -> None:
        lock = registry.obtain("a")
        assert lock.acquire(0.0)
        for file in (tmp_path / "locks").iterdir():
            file.unlink()
        assert lock.renew() is False
        lock.release()


@pytest.mark.postgresql
class TestAdvisoryLocks(LockRegistryContract):
    @pytest.fixture
    def open_registry(self, tmp_path: Path, postgresql_server: str) -> Iterator[Callable[[], Any]]:
        module, made = shown("advisory_locks", tmp_path), []

        def open_() -> Any:
            made.append(module.AdvisoryLocks(postgresql_server))
            return made[-1]

        yield open_
        for registry in made:
            registry.close()

    @pytest.fixture
    def registry(self, open_registry: Callable[[], Any]) -> Any:
        return open_registry()

    @pytest.fixture
    def another(self, open_registry: Callable[[], Any]) -> Any:
        return open_registry()

    def test_a_lock_ends_with_its_connection_and_the_next_uses_a_new_one(self, registry: Any, another: Any) -> None:
        mine, theirs = registry.obtain("a"), another.obtain("a")
        assert mine.acquire(0.0)
        pid = registry.connection().info.backend_pid
        another.connection().execute("SELECT pg_terminate_backend(%s, 30000)", (pid,))
        with pytest.raises(Exception, match="terminat"):
            mine.renew()
        mine.release()
        assert mine.acquire(0.0)
        assert theirs.acquire(0.0) is False
